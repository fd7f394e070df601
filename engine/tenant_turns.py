"""Which tenant has had least compute for its weight: the order of tenants within a class."""

from core.request import bounded_weight


class TenantTurns:
    """Virtual time per tenant, in nanoseconds of predicted reference cost per weight (start-time fair
    queueing, Goyal et al. 1996): who comes back after a pause starts where the one last chosen stood.
    """

    def __init__(self) -> None:
        self._served_ns: dict[str, int] = {}
        self._chosen_ns = 0

    def __getitem__(self, tenant: str) -> int:
        return self._served_ns.get(tenant, 0)

    def come(self, tenant: str) -> None:
        """It has work waiting and had none."""
        self._served_ns[tenant] = max(self[tenant], self._chosen_ns)

    def chosen(self, tenant: str) -> None:
        self._chosen_ns = max(self._chosen_ns, self[tenant])

    def after(self, tenant: str, weight: float, cost_ns: int) -> int:
        """Where it will stand when it has spent this."""
        return self[tenant] + round(cost_ns / bounded_weight(weight))

    def spend(self, tenant: str, weight: float, cost_ns: int) -> None:
        self._served_ns[tenant] = self.after(tenant, weight, cost_ns)
