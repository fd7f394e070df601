"""How much of each tenant's limits this router may give out, with the store or without it."""

from dataclasses import dataclass

from capacity.permits import PermitLease
from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig, QuantityKind
from capacity.token_rate import TokenRate
from core.events import event
from core.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may use; 0 is no limit."""

    concurrency: int = 0
    tokens_per_minute: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Admitted: one concurrent request and its estimated tokens are taken, until `release`."""

    tenant: str
    request: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was taken of any limit."""

    outcome: Outcome
    """CONCURRENCY_LIMITED or RATE_LIMITED."""
    retry_after_us: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Nothing was taken; acquire again once the store has answered these, or is lost.

    Empty where the questions are on their way already.
    """

    asks: tuple[Ask, ...]


Acquired = Held | Refused | Wanted
Action = Ask | GiveBack


@dataclass(frozen=True, slots=True)
class _Admitted:
    tenant: str
    has_permit: bool
    charged: int


class LeaseBook:
    """One router's part of the tenants' concurrency and rates.

    The store never grants more than a limit over all routers, and a router never gives out more than
    it was granted, so the limit holds whatever is delayed or lost. While the store is lost a router
    goes on with what it holds; where it holds nothing it takes limit // routers, at least 1: that
    much, over all routers, is the declared slack (`slack`).
    """

    def __init__(self, config: LeaseConfig, routers: int = 1) -> None:
        self._config = config
        self._routers = max(1, routers)
        self._lost = False
        self._asks = 0
        self._permits: dict[str, PermitLease] = {}
        self._rates: dict[str, TokenRate] = {}
        self._admitted: dict[str, _Admitted] = {}

    @event
    def acquire(self, tenant: str, request: str, limits: Limits, tokens: int, now_us: int) -> Acquired:
        """One concurrent request and `tokens` (estimated: prompt + expected output), or nothing.

        Idempotent by request. A request of more tokens than a minute's limit needs a full minute's.
        """
        if request in self._admitted:
            return Held(tenant, request)
        permits = self._permits_of(tenant, now_us) if limits.concurrency > 0 else None
        rate = self._rate_of(tenant, now_us) if limits.tokens_per_minute > 0 and tokens > 0 else None
        runs = permits is None or permits.has_room(limits.concurrency, self._routers, self._lost, now_us)
        pays = rate is None or rate.has_room(
            tokens, limits.tokens_per_minute, self._routers, self._lost, now_us
        )
        if permits is not None and not runs and not permits.asking_helps(self._lost, now_us):
            return Refused(Outcome.CONCURRENCY_LIMITED, self._config.renew_us)
        if rate is not None and not pays and not rate.asking_helps(tokens, self._lost, now_us):
            wait_us = rate.retry_after_us(tokens, self._routers, self._lost, now_us)
            return Refused(Outcome.RATE_LIMITED, wait_us)
        asks: list[Ask | None] = []
        if permits is not None and not runs:
            asks.append(permits.want(self._next_number(), now_us))
        if rate is not None and not pays:
            asks.append(rate.want(tokens, self._next_number(), now_us))
        if asks:
            return Wanted(tuple(ask for ask in asks if ask is not None))
        return self._admit(tenant, request, permits, rate, tokens, now_us)

    @event
    def release(self, request: str, tokens: int, now_us: int) -> bool:
        """The request is over and used so many tokens; the rest of its charge is refunded.

        Idempotent: False where it held nothing (any more).
        """
        admitted = self._admitted.pop(request, None)
        if admitted is None:
            return False
        if admitted.has_permit:
            self._permits[admitted.tenant].release(request, now_us)
        if admitted.charged:
            self._rates[admitted.tenant].settle(admitted.charged, tokens, now_us)
        return True

    @event
    def answered(self, ask: Ask, answer: Answer, now_us: int) -> None:
        """What the store said. Whoever waits for this tenant may acquire again."""
        tenant = ask.quantity.tenant
        if ask.quantity.kind is QuantityKind.CONCURRENCY:
            if tenant in self._permits:
                self._permits[tenant].answered(ask, answer, now_us)
        elif tenant in self._rates:
            self._rates[tenant].answered(ask, answer, now_us)

    @event
    def store_lost(self, now_us: int) -> None:
        """A question was not answered in time, or the connection is gone. Whoever waits may acquire again."""
        self._lost = True
        for permits in self._permits.values():
            permits.store_lost()
        for rate in self._rates.values():
            rate.store_lost(now_us)

    @event
    def store_returned(self, now_us: int) -> list[Action]:
        """The store answers again: what is held or used is claimed before anything is added."""
        self._lost = False
        for permits in self._permits.values():
            permits.store_returned()
        for rate in self._rates.values():
            rate.store_returned()
        return self.tick(now_us)

    @event
    def routers_known(self, count: int, now_us: int) -> None:
        self._routers = max(1, count)

    @event
    def tick(self, now_us: int) -> list[Action]:
        """Renewals and returns that are due; tenants without either are forgotten."""
        if self._lost:
            return []
        self._permits = {tenant: lease for tenant, lease in self._permits.items() if not lease.is_over()}
        self._rates = {tenant: rate for tenant, rate in self._rates.items() if not rate.is_over(now_us)}
        actions: list[Action | None] = []
        for permits in self._permits.values():
            if now_us >= permits.next_deadline_us:
                actions.append(permits.renew(self._next_number(), now_us))
        actions += [rate.give_back(now_us) for rate in self._rates.values()]
        return [action for action in actions if action is not None]

    @property
    def next_deadline_us(self) -> int | None:
        if self._lost:
            return None
        deadlines = [lease.next_deadline_us for lease in self._permits.values()]
        rates = [rate.next_deadline_us for rate in self._rates.values()]
        return min(deadlines + [due_us for due_us in rates if due_us is not None], default=None)

    @property
    def store_is_lost(self) -> bool:
        return self._lost

    def in_use(self, tenant: str) -> int:
        """Concurrent requests admitted here."""
        return self._permits[tenant].used if tenant in self._permits else 0

    def held(self, tenant: str) -> int:
        """Permits granted to this router."""
        return self._permits[tenant].held if tenant in self._permits else 0

    def balance(self, tenant: str) -> int:
        """Tokens that may be charged here without asking."""
        return self._rates[tenant].balance if tenant in self._rates else 0

    def check(self) -> None:
        used = sum(permits.used for permits in self._permits.values())
        assert used == sum(admitted.has_permit for admitted in self._admitted.values()), "a permit leaked"
        for permits in self._permits.values():
            permits.check()
        for rate in self._rates.values():
            rate.check()

    def _permits_of(self, tenant: str, now_us: int) -> PermitLease:
        if tenant not in self._permits:
            self._permits[tenant] = PermitLease(self._config, tenant, now_us)
        return self._permits[tenant]

    def _rate_of(self, tenant: str, now_us: int) -> TokenRate:
        if tenant not in self._rates:
            self._rates[tenant] = TokenRate(self._config, tenant, now_us)
        return self._rates[tenant]

    def _admit(
        self,
        tenant: str,
        request: str,
        permits: PermitLease | None,
        rate: TokenRate | None,
        tokens: int,
        now_us: int,
    ) -> Held:
        if permits is not None:
            permits.use(request, now_us)
        if rate is not None:
            rate.charge(tokens, now_us)
        self._admitted[request] = _Admitted(tenant, permits is not None, tokens if rate is not None else 0)
        return Held(tenant, request)

    def _next_number(self) -> int:
        self._asks += 1
        return self._asks


def slack(limit: int, routers: int) -> int:
    """Concurrent requests beyond `limit` that `routers` may admit while the store is lost: those that
    hold no lease of the tenant take their share. 0 where every router of the tenant holds one."""
    return routers * max(1, limit // routers)
