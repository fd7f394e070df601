"""What the global capacity store grants: the rules of its scripts, over virtual time."""

from dataclasses import dataclass

from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig, Quantity, QuantityKind
from sim.loop import Loop


@dataclass(slots=True)
class _Lease:
    amount: int
    number: int
    expires_us: int


@dataclass(slots=True)
class _Bucket:
    level: float
    updated_us: int


class Store:
    """One for the whole fleet; while it is away nobody is answered."""

    def __init__(self, loop: Loop, config: LeaseConfig) -> None:
        self._loop, self._config = loop, config
        self._leases: dict[Quantity, dict[str, _Lease]] = {}
        self._buckets: dict[Quantity, _Bucket] = {}
        self._quarantined_until_us = 0
        self.away = False
        self.most: dict[Quantity, int] = {}
        """The most permits that were ever granted at once."""

    def ask(self, holder: str, ask: Ask) -> Answer:
        if ask.quantity.kind is QuantityKind.RATE:
            return self._spend(ask.quantity, ask.want, ask.limit)
        return self._lease(holder, ask)

    def give_back(self, given: GiveBack) -> None:
        self._spend(given.quantity, -given.tokens, given.limit)

    def forget(self) -> None:
        """It restarts without its memory: for a term it confirms claims and grants nothing new."""
        self._leases.clear()
        self._buckets.clear()
        self._quarantined_until_us = self._loop.now_us + self._config.term_us

    @property
    def _quarantined(self) -> bool:
        return self._loop.now_us < self._quarantined_until_us

    def _lease(self, holder: str, ask: Ask) -> Answer:
        now_us, held = self._loop.now_us, self._leases.setdefault(ask.quantity, {})
        for name in [name for name, lease in held.items() if lease.expires_us <= now_us]:
            held[name].amount = 0
        others = sum(lease.amount for name, lease in held.items() if name != holder)
        mine = held.setdefault(holder, _Lease(0, -1, 0))
        if ask.number > mine.number:
            want = min(ask.want, max(ask.claim, mine.amount)) if self._quarantined else ask.want
            granted = min(want, max(0, ask.limit - others))
            held[holder] = mine = _Lease(granted, ask.number, now_us + self._config.term_us)
        self.most[ask.quantity] = max(self.most.get(ask.quantity, 0), others + mine.amount)
        free = max(0, ask.limit - others - mine.amount)
        return Answer(mine.amount, free, self._quarantined)

    def _spend(self, quantity: Quantity, want: int, limit: int) -> Answer:
        now_us = self._loop.now_us
        bucket = self._buckets.setdefault(quantity, _Bucket(0.0 if self._quarantined else limit, now_us))
        refilled = bucket.level + (now_us - bucket.updated_us) * limit / 60_000_000
        bucket.level, bucket.updated_us = min(limit, refilled), now_us
        granted = min(want, int(bucket.level))
        bucket.level = min(limit, bucket.level - granted)
        return Answer(max(0, granted), int(bucket.level), self._quarantined)
