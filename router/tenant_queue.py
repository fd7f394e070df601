"""What one tenant has waiting, and how much service it has had."""

from collections import OrderedDict
from dataclasses import dataclass, field

from core.request import AttemptKey, TenantClass

LaneKey = tuple[TenantClass, bool]
"""(class, short): short prompts and long ones wait in lanes of their own."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One attempt in the queue."""

    key: AttemptKey
    tenant: str
    tenant_class: TenantClass
    weight: float
    cost_us: int
    """Predicted GPU time by the declared reference cost."""
    short: bool
    arrived_us: int

    @property
    def lane(self) -> LaneKey:
        return (self.tenant_class, self.short)


@dataclass(slots=True)
class TenantQueue:
    """Service so far is what workers reported plus charges they do not report yet.

    0 <= unreported <= the charges of live attempts, so a wrong estimate is forgotten with its attempt.
    """

    name: str
    weight: float = 1.0
    virtual_us: float = 0.0
    """Service divided by weight; the least goes next."""
    unreported_us: int = 0
    live_us: int = 0
    """Charges of attempts that were taken and have not ended."""
    live: int = 0
    lanes: dict[LaneKey, OrderedDict[AttemptKey, Waiting]] = field(default_factory=dict)
    lane_us: dict[LaneKey, int] = field(default_factory=dict)
    """What each lane was given; the lane that had less goes first."""

    @property
    def waiting(self) -> int:
        return sum(len(lane) for lane in self.lanes.values())

    @property
    def idle(self) -> bool:
        return not self.live and not self.waiting

    def charge(self, cost_us: int) -> None:
        self.live += 1
        self.live_us += cost_us
        self.unreported_us += cost_us
        self.virtual_us += cost_us / self.weight

    def settle(self, cost_us: int) -> None:
        """An attempt ended: what of its charge nobody reported is taken back."""
        self.live -= 1
        self.live_us -= cost_us
        excess = self.unreported_us - self.live_us
        if excess > 0:
            self.unreported_us -= excess
            self.virtual_us -= excess / self.weight

    def served(self, service_us: int) -> None:
        """Workers report this much more GPU time for the tenant."""
        known = min(self.unreported_us, service_us)
        self.unreported_us -= known
        self.virtual_us += (service_us - known) / self.weight

    def push(self, waiting: Waiting) -> bool:
        """True where its lane was empty."""
        lane = self.lanes.setdefault(waiting.lane, OrderedDict())
        lane[waiting.key] = waiting
        if len(lane) > 1:
            return False
        other = (waiting.tenant_class, not waiting.short)
        if self.lanes.get(other):
            self.lane_us[waiting.lane] = max(self.lane_us.get(waiting.lane, 0), self.lane_us.get(other, 0))
        return True

    def remove(self, waiting: Waiting) -> None:
        lane = self.lanes[waiting.lane]
        del lane[waiting.key]
        if not lane:
            del self.lanes[waiting.lane]
        if not self.lanes:
            self.lane_us.clear()

    def took(self, waiting: Waiting) -> None:
        self.lane_us[waiting.lane] = self.lane_us.get(waiting.lane, 0) + waiting.cost_us

    def check(self) -> None:
        assert 0 <= self.unreported_us <= self.live_us, (self.name, self.unreported_us, self.live_us)
        assert self.live >= 0 and (self.live > 0 or self.live_us == 0)
        assert all(self.lanes.values()), "an empty lane is kept"
