"""How many concurrent requests of one tenant this router may run."""

from capacity.quantities import Answer, Ask, LeaseConfig, Quantity, QuantityKind


class PermitLease:
    """A number of permits that the store counts as ours, and the requests that use them."""

    def __init__(self, config: LeaseConfig, tenant: str, now_us: int) -> None:
        self._config = config
        self._quantity = Quantity(tenant, QuantityKind.CONCURRENCY)
        self._limit = 0
        self._held = 0
        """What the store granted, less what was given back since."""
        self._used: dict[str, None] = {}
        self._waiting = 0
        self._free = 0
        """What nobody held at the last answer."""
        self._asked: tuple[Ask, int] | None = None
        """The question on its way, and when it left."""
        self._renewed_us: int | None = None
        """When the question left whose answer counts; None: nothing is confirmed."""
        self._answered_us = now_us
        self._used_us = now_us
        self._quarantined = False

    @property
    def held(self) -> int:
        return self._held

    @property
    def used(self) -> int:
        return len(self._used)

    def has_room(self, limit: int, routers: int, lost: bool, now_us: int) -> bool:
        """Whether one more request may run, by what is held."""
        self._limit = limit
        return len(self._used) < self._allowance(routers, lost, now_us)

    def asking_helps(self, lost: bool, now_us: int) -> bool:
        """Whether the store could have more for us than at its last answer."""
        if lost or len(self._used) >= self._limit:
            return False
        if self._asked is not None or self._renewed_us is None:
            return True
        return self._free > 0 or now_us >= self._answered_us + self._config.retry_us

    def want(self, number: int, now_us: int) -> Ask | None:
        """One more request waits. The question, where none is on its way."""
        self._waiting += 1
        self._used_us = now_us
        return self._ask(number, now_us) if self._asked is None else None

    def use(self, request: str, now_us: int) -> None:
        self._used[request] = None
        self._used_us = now_us

    def release(self, request: str, now_us: int) -> None:
        self._used.pop(request, None)
        self._used_us = now_us

    def answered(self, ask: Ask, answer: Answer, now_us: int) -> None:
        if self._asked is None or self._asked[0].number != ask.number:
            return
        self._held, self._free, self._quarantined = answer.granted, answer.free, answer.quarantined
        self._renewed_us, self._answered_us = self._asked[1], now_us
        self._asked, self._waiting = None, 0

    def store_lost(self) -> None:
        self._asked, self._waiting = None, 0

    def store_returned(self) -> None:
        """What is held has to be claimed before it counts."""
        self._renewed_us = None

    def renew(self, number: int, now_us: int) -> Ask:
        """Due at `next_deadline_us`."""
        return self._ask(number, now_us)

    @property
    def next_deadline_us(self) -> int:
        if self._asked is not None:
            return self._asked[1] + self._config.term_us
        return self._answered_us + self._config.renew_us if self._renewed_us is not None else 0

    def is_over(self) -> bool:
        """Nothing is held, used or asked: the tenant may be forgotten."""
        return self._asked is None and self._renewed_us is not None and not self._used and self._held == 0

    def check(self) -> None:
        assert self._held >= 0 and self._waiting >= 0

    def _allowance(self, routers: int, lost: bool, now_us: int) -> int:
        if lost or self._quarantined:
            return min(self._limit, self._held or max(1, self._limit // routers))
        # Past its term a lease may be another's, unless there is nobody to give it away.
        current = self._renewed_us is not None and now_us < self._renewed_us + self._config.term_us
        return min(self._limit, self._held) if current else 0

    def _ask(self, number: int, now_us: int) -> Ask:
        want = self._wanted(now_us)
        claim = min(max(self._held, self.used), want)
        # What goes back is gone before the question leaves: the store may give it away at once.
        self._held = min(self._held, want)
        ask = Ask(number, self._quantity, want, claim, self._limit)
        self._asked, self._waiting = (ask, now_us), 0
        return ask

    def _wanted(self, now_us: int) -> int:
        """Permits to hold in all: what is used and waits, and a spare while nobody else lacks it."""
        busy = self.used + self._waiting
        if busy == 0 and now_us >= self._used_us + self._config.idle_us:
            return 0
        contended = self._renewed_us is not None and self._free == 0
        spare = 0 if contended else max(1, self._limit // self._config.spare_part)
        return max(self.used, min(self._limit, busy + spare))
