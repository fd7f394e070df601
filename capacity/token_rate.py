"""How many tokens of one tenant's rate this router may charge."""

from collections import deque

from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig, Quantity, QuantityKind

MINUTE_US = 60_000_000


class TokenRate:
    """A balance of tokens that the store's bucket handed out in portions.

    It falls below 0 where requests used more than they were charged; the next portions pay for that.
    """

    def __init__(self, config: LeaseConfig, tenant: str, now_us: int) -> None:
        self._config = config
        self._quantity = Quantity(tenant, QuantityKind.RATE)
        self._per_minute = 0
        self._balance = 0
        self._waiting = 0
        """Tokens."""
        self._level = 0
        """What the bucket held after the last answer."""
        self._answered_us: int | None = None
        self._asked: tuple[Ask, int] | None = None
        self._charged_us = now_us
        self._charges_live = 0
        self._granted: deque[tuple[int, int]] = deque()
        """(when, tokens) of the last minute."""
        self._refilled_us: int | None = None
        """While the store is lost: until when the balance was refilled here."""

    @property
    def balance(self) -> int:
        return self._balance

    def has_room(self, tokens: int, per_minute: int, routers: int, lost: bool, now_us: int) -> bool:
        """Whether so many tokens may be charged; more than a minute's wait for a full minute's."""
        self._per_minute = per_minute
        if lost:
            self._refill_alone(routers, now_us)
        return self._missing(tokens) <= 0

    def asking_helps(self, tokens: int, lost: bool, now_us: int) -> bool:
        """Whether the bucket could hold what is missing."""
        return not lost and (self._asked is not None or self._wait_us(tokens, now_us) <= 0)

    def retry_after_us(self, tokens: int, routers: int, lost: bool, now_us: int) -> int:
        """When the missing tokens will have flowed, if nobody else takes them."""
        if lost:
            return self._missing(tokens) * MINUTE_US // self._alone_per_minute(routers) + 1
        return max(1, self._wait_us(tokens, now_us))

    def want(self, tokens: int, number: int, now_us: int) -> Ask | None:
        """A request of so many tokens waits. The question, where none is on its way."""
        self._waiting += min(tokens, self._per_minute)
        if self._asked is not None:
            return None
        portion = self._per_minute * self._config.portion_us // MINUTE_US
        wanted = min(self._per_minute, self._waiting + portion) - self._balance
        ask = Ask(number, self._quantity, max(1, wanted), 0, self._per_minute)
        self._asked, self._waiting = (ask, now_us), 0
        return ask

    def charge(self, tokens: int, now_us: int) -> None:
        self._balance -= tokens
        self._charges_live += 1
        self._charged_us = now_us

    def settle(self, charged: int, used: int, now_us: int) -> None:
        """Refunds what was not used, or takes what was used beyond the charge."""
        self._balance += charged - used
        self._charges_live -= 1
        self._charged_us = now_us

    def answered(self, ask: Ask, answer: Answer, now_us: int) -> None:
        if self._asked is None or self._asked[0].number != ask.number:
            return
        self._balance += answer.granted
        self._level, self._answered_us = answer.free, now_us
        self._asked, self._waiting = None, 0
        self._granted.append((now_us, answer.granted))
        self._forget_old_grants(now_us)

    def store_lost(self, now_us: int) -> None:
        self._asked, self._waiting = None, 0
        if self._refilled_us is None:
            self._refilled_us = now_us
            self._forget_old_grants(now_us)

    def store_returned(self) -> None:
        self._refilled_us, self._answered_us = None, None

    def give_back(self, now_us: int) -> GiveBack | None:
        """What lay unspent for a while goes back to whoever needs it."""
        if self._balance <= 0 or self._asked is not None or now_us < self._unspent_us:
            return None
        tokens, self._balance = self._balance, 0
        self._answered_us = None
        return GiveBack(self._quantity, tokens, self._per_minute)

    @property
    def next_deadline_us(self) -> int | None:
        if self._balance > 0 and self._asked is None:
            return self._unspent_us
        return None if self._asked is not None or self._charges_live else self._charged_us + MINUTE_US

    def is_over(self, now_us: int) -> bool:
        """Nothing is charged, kept or asked, for a minute: that pays for a debt, too."""
        idle = self._asked is None and self._charges_live == 0 and self._balance <= 0
        return idle and now_us >= self._charged_us + MINUTE_US

    def check(self) -> None:
        assert self._charges_live >= 0, "a charge was settled twice"
        assert self._waiting >= 0

    @property
    def _unspent_us(self) -> int:
        return self._charged_us + 2 * self._config.renew_us

    def _missing(self, tokens: int) -> int:
        return min(tokens, self._per_minute) - self._balance

    def _wait_us(self, tokens: int, now_us: int) -> int:
        """Until the bucket holds what is missing, going by its last answer."""
        if self._answered_us is None:
            return 0
        short = self._missing(tokens) - self._level
        return self._answered_us + -(-short * MINUTE_US // self._per_minute) - now_us if short > 0 else 0

    def _refill_alone(self, routers: int, now_us: int) -> None:
        since_us = self._refilled_us if self._refilled_us is not None else now_us
        per_minute = self._alone_per_minute(routers)
        tokens = (now_us - since_us) * per_minute // MINUTE_US
        self._balance = min(max(self._balance, per_minute), self._balance + tokens)
        self._refilled_us = since_us + tokens * MINUTE_US // per_minute

    def _alone_per_minute(self, routers: int) -> int:
        """Tokens a minute without the store: what we were handed in its last minute, or our share."""
        share = max(1, self._per_minute // routers)
        return max(share, min(self._per_minute, sum(tokens for _, tokens in self._granted)))

    def _forget_old_grants(self, now_us: int) -> None:
        while self._granted and self._granted[0][0] <= now_us - MINUTE_US:
            self._granted.popleft()
