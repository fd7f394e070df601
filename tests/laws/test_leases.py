"""Over all routers a tenant's limit holds, whatever is delayed, reordered or lost."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capacity.leases import Held, LeaseBook, Limits, Wanted, slack
from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig, QuantityKind

TENANT = "tenant"
CONFIG = LeaseConfig()
MINUTE_US = 60_000_000
ANSWERED_WITHIN_US = 200_000
HEALED_WITHIN_US = 500_000


@dataclass
class StoreModel:
    """What capacity/scripts.py does, in Python, for one tenant."""

    epoch: int = 0
    quarantine_us: int = 0
    leases: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Router to (amount, number of its newest question, expiry)."""
    bucket: tuple[float, int] | None = None
    handed: int = 0

    def forget(self) -> None:
        self.epoch, self.quarantine_us = self.epoch + 1, 0
        self.leases.clear()
        self.bucket = None

    def ask(self, router: int, ask: Ask, known: int | None, now_us: int) -> Answer:
        if known not in (None, self.epoch) and self.quarantine_us == 0:
            self.quarantine_us = now_us + CONFIG.term_us
        if ask.quantity.kind is QuantityKind.RATE:
            return self.take(ask.want, ask.limit, now_us)
        mine, newest, expires_us = self.leases.get(router, (0, -1, 0))
        mine = mine if expires_us > now_us else 0
        others = sum(
            amount
            for holder, (amount, _, expires_us) in self.leases.items()
            if holder != router and expires_us > now_us
        )
        granted = mine
        if ask.number > newest:
            want = min(ask.want, max(ask.claim, mine)) if self.quarantine_us > now_us else ask.want
            granted = min(want, max(0, ask.limit - others))
            self.leases[router] = (granted, ask.number, now_us + CONFIG.term_us)
        return Answer(granted, max(0, ask.limit - others - granted), self.quarantine_us > now_us)

    def take(self, want: int, limit: int, now_us: int) -> Answer:
        fresh = (0.0, self.quarantine_us - CONFIG.term_us) if self.quarantine_us else (float(limit), now_us)
        level, since_us = self.bucket or fresh
        level = min(limit, level + (now_us - since_us) * limit / MINUTE_US)
        moved = min(want, int(level))
        self.bucket = (min(limit, level - moved), now_us)
        self.handed += moved
        return Answer(max(0, moved), int(self.bucket[0]), self.quarantine_us > now_us)


@dataclass
class Flight:
    """A question on its way: executed at the store at one moment, answered at a later one."""

    router: int
    ask: Ask
    known: int | None
    sent_us: int
    answer: Answer | None = None
    epoch: int = -1


class Fleet(RuleBasedStateMachine):
    """LeaseBooks, one store, and a network that delays what it carries, but not beyond a call's bound."""

    routers = 8
    limits = Limits(concurrency=20)

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000_000
        self.books = [LeaseBook(CONFIG, self.routers) for _ in range(self.routers)]
        self.known: list[int | None] = [None] * self.routers
        self.lost_us: list[int | None] = [None] * self.routers
        self.took_share = [False] * self.routers
        self.store = StoreModel()
        self.store_up = True
        self.flights: list[Flight] = []
        self.late: list[Flight] = []
        self.live: list[list[tuple[str, int]]] = [[] for _ in range(self.routers)]
        self.parked: list[list[tuple[str, int]]] = [[] for _ in range(self.routers)]
        self.requests = 0

    @rule(number=st.integers(0, 7), count=st.integers(1, 25), tokens=st.integers(1, 400))
    def acquire(self, number: int, count: int, tokens: int) -> None:
        router = number % self.routers
        for _ in range(count):
            self.requests += 1
            request = f"r{self.requests}"
            self.attempt(router, request, tokens)

    @rule(number=st.integers(0, 7), count=st.integers(1, 25), part=st.floats(0, 1))
    def release(self, number: int, count: int, part: float) -> None:
        router = number % self.routers
        for _ in range(min(count, len(self.live[router]))):
            request, tokens = self.live[router].pop()
            assert self.books[router].release(request, int(tokens * part), self.now_us)
            assert not self.books[router].release(request, 0, self.now_us)

    @precondition(lambda self: self.flights)
    @rule(number=st.integers(0, 7))
    def execute(self, number: int) -> None:
        self.run(self.flights[number % len(self.flights)])

    @precondition(lambda self: self.flights)
    @rule(number=st.integers(0, 7))
    def answer(self, number: int) -> None:
        self.finish(self.flights[number % len(self.flights)])

    @rule()
    def a_second_passes_and_renewals_leave(self) -> None:
        self.pass_time(CONFIG.renew_us)
        for router, book in enumerate(self.books):
            self.send(router, book.tick(self.now_us))

    @rule(microseconds=st.sampled_from([10_000, 120_000, 4_000_000, 12_000_000]))
    def time_passes(self, microseconds: int) -> None:
        self.pass_time(microseconds)

    @invariant()
    def the_limit_holds(self) -> None:
        """Beyond it are only the shares of routers that had no lease when they lost the store."""
        limit = self.limits.concurrency
        share = max(1, limit // self.routers)
        total = sum(book.in_use(TENANT) for book in self.books)
        assert not limit or total <= limit + share * sum(self.took_share)
        assert share * sum(self.took_share) <= slack(limit, self.routers)
        settled = not self.flights and self.lost_us.count(None) == self.routers
        if settled and all(book.in_use(TENANT) <= book.held(TENANT) for book in self.books):
            self.took_share = [False] * self.routers

    @invariant()
    def books_are_whole(self) -> None:
        for book, live in zip(self.books, self.live, strict=True):
            book.check()
            assert not self.limits.concurrency or book.in_use(TENANT) == len(live)

    def pass_time(self, microseconds: int) -> None:
        end_us = self.now_us + microseconds
        while self.now_us < end_us:
            self.now_us = min(end_us, self.now_us + 50_000)
            for router, lost_us in enumerate(self.lost_us):
                if lost_us is not None and self.now_us >= lost_us + HEALED_WITHIN_US:
                    self.heal(router)
            for flight in list(self.flights):
                if self.now_us >= flight.sent_us + ANSWERED_WITHIN_US - 50_000:
                    self.finish(flight)
            for router, book in enumerate(self.books):
                self.send(router, book.tick(self.now_us))

    def send(self, router: int, actions: list[Ask | GiveBack]) -> None:
        for action in actions:
            if isinstance(action, GiveBack):
                self.store.take(-action.tokens, action.limit, self.now_us)
            else:
                self.flights.append(Flight(router, action, self.known[router], self.now_us))

    def attempt(self, router: int, request: str, tokens: int) -> None:
        answer = self.books[router].acquire(TENANT, request, self.limits, tokens, self.now_us)
        if isinstance(answer, Held):
            self.live[router].append((request, tokens))
            self.took_share[router] |= self.books[router].held(TENANT) == 0
        elif isinstance(answer, Wanted):
            self.parked[router].append((request, tokens))
            self.send(router, list(answer.asks))

    def unpark(self, router: int) -> None:
        """Whoever waited tries again, as the store has answered or is lost."""
        waiting, self.parked[router] = self.parked[router], []
        for request, tokens in waiting:
            self.attempt(router, request, tokens)

    def run(self, flight: Flight) -> None:
        if flight.answer is None and self.store_up:
            flight.answer = self.store.ask(flight.router, flight.ask, flight.known, self.now_us)
            flight.epoch = self.store.epoch

    def finish(self, flight: Flight) -> None:
        self.run(flight)
        self.flights.remove(flight)
        if flight.answer is None:
            self.lose(flight.router)
            return
        self.known[flight.router] = flight.epoch
        self.books[flight.router].answered(flight.ask, flight.answer, self.now_us)
        self.unpark(flight.router)

    def lose(self, router: int) -> None:
        self.flights = [flight for flight in self.flights if flight.router != router]
        self.books[router].store_lost(self.now_us)
        if self.lost_us[router] is None:
            self.lost_us[router] = self.now_us
        self.unpark(router)

    def heal(self, router: int) -> None:
        if self.store_up and self.lost_us[router] is not None:
            self.lost_us[router] = None
            self.send(router, self.books[router].store_returned(self.now_us))


class FewRouters(Fleet):
    routers = 2


class CutOff(Fleet):
    """Routers lose the store one by one, and find it again within a term."""

    routers = 2

    @rule(number=st.integers(0, 7))
    def a_router_is_cut_off(self, number: int) -> None:
        """Its questions may still arrive, much later."""
        router = number % self.routers
        self.late += [flight for flight in self.flights if flight.router == router and flight.answer is None]
        self.flights = [flight for flight in self.flights if flight.router != router]
        self.lose(router)

    @precondition(lambda self: self.store_up)
    @rule()
    def everyone_reconnects(self) -> None:
        for router in range(self.routers):
            self.heal(router)

    @precondition(lambda self: self.late and self.store_up)
    @rule(number=st.integers(0, 7))
    def late_mail(self, number: int) -> None:
        self.run(self.late.pop(number % len(self.late)))


class MortalStore(CutOff):
    """The store is killed as well, and comes back without its memory within a term."""

    @precondition(lambda self: self.store_up)
    @rule()
    def the_store_dies(self) -> None:
        for flight in list(self.flights):
            self.finish(flight)
        self.store_up = False
        self.store.forget()
        self.late.clear()
        for router in range(self.routers):
            self.lose(router)

    @precondition(lambda self: not self.store_up)
    @rule(first=st.integers(0, 7))
    def the_store_returns(self, first: int) -> None:
        self.store_up = True
        for number in range(self.routers):
            self.heal((first + number) % self.routers)


class RatedFleet(Fleet):
    """Tokens a minute instead of permits, with every request within the minute's tokens."""

    limits = Limits(tokens_per_minute=1000)

    @invariant()
    def nothing_is_spent_that_was_not_handed_out(self) -> None:
        live = sum(tokens for requests in self.live for _, tokens in requests)
        assert live <= self.store.handed

    @invariant()
    def no_more_is_handed_out_than_flows(self) -> None:
        limit = self.limits.tokens_per_minute
        assert self.store.handed <= limit + (self.now_us - 1_000_000) * limit / MINUTE_US + 1


def _cases(machine: type[Fleet], examples: int) -> type:
    case: type = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=50, deadline=None)  # type: ignore[attr-defined]
    return case


TestFleet = _cases(Fleet, 25)
TestFewRouters = _cases(FewRouters, 40)
TestCutOff = _cases(CutOff, 40)
TestMortalStore = _cases(MortalStore, 40)
TestRatedFleet = _cases(RatedFleet, 25)
