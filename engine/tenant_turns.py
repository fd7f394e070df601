"""Which tenant has had least compute for its weight: the order of tenants within a class."""

from collections.abc import Iterable

from core.request import bounded_weight

CROWDED = 64
"""Tenants remembered below which nobody is forgotten."""
ABSENT_MAX = 1_000
"""Tenants that are remembered although they have nothing here."""


class TenantTurns:
    """Virtual time per tenant, in nanoseconds of predicted reference cost per weight (start-time fair
    queueing, Goyal et al. 1996): who comes back after a pause starts where the one last chosen stood,
    the floor, or where it stood itself if that is further. So those at or below it need no memory.
    """

    def __init__(self) -> None:
        self._served_ns: dict[str, int] = {}
        self._floor_ns = 0
        self._crowded = CROWDED

    def __len__(self) -> int:
        return len(self._served_ns)

    def __getitem__(self, tenant: str) -> int:
        return self._served_ns.get(tenant, self._floor_ns)

    def come(self, tenant: str) -> None:
        """It has work waiting, or bound, and had none waiting."""
        self._served_ns[tenant] = max(self[tenant], self._floor_ns)

    def chosen(self, tenant: str) -> None:
        self._floor_ns = max(self._floor_ns, self[tenant])

    def after(self, tenant: str, weight: float, cost_ns: int) -> int:
        """Where it will stand when it has spent this."""
        return self[tenant] + round(cost_ns / bounded_weight(weight))

    def spend(self, tenant: str, weight: float, cost_ns: int) -> None:
        self._served_ns[tenant] = self.after(tenant, weight, cost_ns)

    @property
    def is_crowded(self) -> bool:
        """Whether forgetting is worth its time: as many have come since the last time as were left then."""
        return len(self._served_ns) > self._crowded

    def forget(self, present: Iterable[str]) -> None:
        """All but these have nothing here; whoever of them is not above the floor is forgotten.

        Where too many are above it, it rises to where half of them stand: they come back no further
        forward than they left.
        """
        here = dict.fromkeys(present)
        absent_ns = [ns for name, ns in self._served_ns.items() if name not in here and ns > self._floor_ns]
        if len(absent_ns) > ABSENT_MAX:
            self._floor_ns = sorted(absent_ns)[len(absent_ns) // 2]
        self._served_ns = {
            name: ns for name, ns in self._served_ns.items() if name in here or ns > self._floor_ns
        }
        self._crowded = max(CROWDED, 2 * len(self._served_ns))
