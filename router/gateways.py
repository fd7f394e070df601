"""Which gateways are connected, and which attempts each of them owns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.deadlines import Deadlines
from core.request import AttemptKey
from router.attempt import Attempt

RETIRED_MAX = 4096


@dataclass(slots=True)
class _Gateway:
    incarnation: str = ""
    connected: bool = True
    owned: dict[AttemptKey, None] = field(default_factory=dict)


class Gateways:
    """A gateway is its incarnation; one that comes back inside its grace still owns what it had."""

    def __init__(self) -> None:
        self._known: dict[str, _Gateway] = {}
        self._graces: Deadlines[str] = Deadlines()
        self._retired: dict[tuple[str, str], None] = {}

    def up(self, gateway: str, incarnation: str) -> bool:
        """False where this is a stream of an incarnation that was replaced already."""
        if (gateway, incarnation) in self._retired:
            return False
        known = self._known.setdefault(gateway, _Gateway(incarnation))
        if known.incarnation != incarnation and known.incarnation:
            self._retired[gateway, known.incarnation] = None
            if len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]
        known.incarnation, known.connected = incarnation, True
        self._graces.clear(gateway)
        return True

    def down(self, gateway: str, incarnation: str, grace_ends_us: int) -> bool:
        """False where that stream is not its current one."""
        known = self._known.get(gateway)
        if known is None or known.incarnation != incarnation or not known.connected:
            return False
        known.connected = False
        self._graces.set(gateway, grace_ends_us)
        return True

    def connected(self, gateway: str) -> bool:
        known = self._known.get(gateway)
        return known is not None and known.connected

    def expired(self, now_us: int) -> list[str]:
        """Gateways whose grace is over."""
        return self._graces.due(now_us)

    def forget(self, gateway: str) -> None:
        assert not self._known[gateway].owned, f"{gateway} still owns attempts"
        del self._known[gateway]

    def own(self, gateway: str, key: AttemptKey) -> None:
        self._known.setdefault(gateway, _Gateway()).owned[key] = None

    def disown(self, gateway: str, key: AttemptKey) -> None:
        del self._known[gateway].owned[key]

    def attempts(self, gateway: str) -> list[AttemptKey]:
        """What it owns, oldest first."""
        known = self._known.get(gateway)
        return [] if known is None else list(known.owned)

    @property
    def next_deadline_us(self) -> int | None:
        return self._graces.next_us

    def check(self, attempts: Mapping[AttemptKey, Attempt]) -> None:
        owned = [(name, key) for name, known in self._known.items() for key in known.owned]
        assert sorted(owned) == sorted((one.gateway, key) for key, one in attempts.items())
