"""Who is admitted, who goes next, where it runs: the events of the router, each with its answer."""

from dataclasses import dataclass

from capacity.leases import LeaseBook, Refused, Wanted
from capacity.quantities import Answer, Ask, GiveBack, LeaseConfig
from core.ends import End
from core.events import event
from core.outcomes import Outcome
from core.request import AttemptKey, InstanceKey
from router.actions import Place, Refuse, Resync
from router.admission import limited, refusal
from router.attempt import Attempt, Phase
from router.attempts import Attempts
from router.fleet_view import FleetView
from router.messages import LiveRequest, LoadReport, PrefixEvents, Submission, WorkerHello, WorkerView
from router.permits import Permits
from router.policy import RouterPolicy
from router.prefix_index import PrefixIndex
from router.reservation import Reservation
from router.service_totals import ServiceTotals

Action = Place | Refuse | Resync | Ask | GiveBack
"""Ask and GiveBack go to the global capacity store; an Ask is answered by `lease_answered`."""


DRAINING = End(Outcome.DRAINING, "this router is leaving; another one takes it", retry_after_us=200_000)


@dataclass(frozen=True, slots=True)
class RouterSnapshot:
    """What the router counts, when asked."""

    in_flight: int
    """Placed attempts that have not been settled."""
    queued: int
    workers: tuple[WorkerView, ...]
    tenants_in_flight: dict[str, int]
    """Live attempts, waiting ones included."""
    stale_instances: tuple[InstanceKey, ...]
    """Connected instances placed by reservations alone, because their reports stopped."""


class Router:
    """The router as a plain object. Every submit has one answer, unless its gateway takes it back.

    `first_reservation` must exceed every number an earlier process of this router gave out. `seed`
    makes this router's order among near ties its own.
    """

    def __init__(
        self,
        router: str,
        policy: RouterPolicy,
        first_reservation: int = 1,
        seed: int = 0,
        leases: LeaseConfig | None = None,
    ) -> None:
        self._policy = policy
        self._prefixes = PrefixIndex(policy.prefix_hashes_max)
        self._fleet = FleetView(router, policy, self._prefixes, seed)
        self._leases = LeaseBook(leases or LeaseConfig())
        self._permits = Permits(self._leases)
        self._attempts = Attempts(policy, self._fleet, self._prefixes, self._permits, first_reservation)
        self._services = ServiceTotals(policy.tenants_max)
        self._resync_asked_us: dict[InstanceKey, int] = {}
        self._draining = False
        self._retry_us: int | None = None
        """When to try the queues again after load reports."""

    # What gateways say.

    @event
    def submit(self, gateway: str, submission: Submission, now_us: int) -> list[Action]:
        """A request wants to run. Idempotent by (request, attempt)."""
        key = submission.key
        known = self._attempts.live.get(key)
        if known is not None and known.gateway == gateway:
            return [self._attempts.placed_again(known)] if known.phase is Phase.PLACED else []
        if known is None and key in self._attempts.answers:
            return [Refuse(gateway, key, self._attempts.answers[key])]
        if known is not None:
            message = "another gateway's attempt has this id"
            return [Refuse(gateway, key, End(Outcome.DUPLICATE_REQUEST, message, "request"))]
        end = DRAINING if self._draining else refusal(submission, self._fleet, self._policy)
        if end is not None:
            return [self._refuse(gateway, key, end, now_us)]
        permit = self._permits.acquire(submission, now_us)
        if isinstance(permit, Refused):
            return [self._refuse(gateway, key, limited(submission, permit), now_us)]
        if isinstance(permit, Wanted):
            self._attempts.ask_leases(gateway, submission, now_us)
            return [*permit.asks]
        return [*self._attempts.enqueue(gateway, submission, now_us)]

    @event
    def first_token(self, key: AttemptKey, now_us: int) -> list[Action]:
        """Its prefill is over: what was reserved for that is free. Idempotent."""
        attempt = self._attempts.live.get(key)
        if attempt is None or attempt.phase is not Phase.PLACED or attempt.first_token_seen:
            return []
        self._attempts.prefill_over(attempt)
        return self._room(attempt, now_us)

    @event
    def settle(
        self,
        key: AttemptKey,
        outcome: Outcome,
        prompt_tokens: int,
        output_tokens: int,
        final: bool,
        now_us: int,
    ) -> list[Action]:
        """A placed attempt is over. `final`: no other attempt follows. Idempotent."""
        used_tokens = prompt_tokens + output_tokens
        attempt = self._attempts.live.get(key)
        if attempt is None:
            if final:
                self._attempts.abandon(key.request, now_us)
            return []
        submission = attempt.submission
        if outcome is Outcome.COMPLETED:
            each = output_tokens // submission.choices
            self._attempts.expected.learn(submission.tenant, submission.model, each)
        return [*self._attempts.end(attempt, outcome, now_us, final=final, used_tokens=used_tokens)]

    @event
    def withdraw(self, key: AttemptKey, now_us: int) -> list[Action]:
        """The client left before its answer, or its deadline passed. Idempotent."""
        attempt = self._attempts.live.get(key)
        return [] if attempt is None else [*self._attempts.end(attempt, Outcome.CANCELLED, now_us)]

    @event
    def gateway_up(
        self, gateway: str, incarnation: str, live: tuple[LiveRequest, ...], now_us: int
    ) -> list[Action]:
        """A gateway's stream opened; `live` is all it has here, whatever this router remembers."""
        if not self._attempts.gateways.up(gateway, incarnation):
            return []
        announced = [request.submission.key for request in live]
        actions: list[Action] = []
        for key in self._attempts.gateways.attempts(gateway):
            if key not in announced and key in self._attempts.live:
                actions += self._attempts.end(self._attempts.live[key], Outcome.WORKER_LOST, now_us)
        for request in live:
            actions += self._announced(gateway, request, now_us)
        return actions

    @event
    def gateway_down(self, gateway: str, incarnation: str, now_us: int) -> list[Action]:
        """Its stream broke: what waits leaves the queue, what runs has a grace."""
        gateways = self._attempts.gateways
        if not gateways.down(gateway, incarnation, now_us + self._policy.gateway_grace_us):
            return []
        for key in gateways.attempts(gateway):
            attempt = self._attempts.live[key]
            if attempt.phase is not Phase.PLACED:
                # It is announced again, without legs, if the gateway comes back.
                self._attempts.end(attempt, Outcome.CANCELLED, now_us, remember=False)
        return []

    # What workers say.

    @event
    def worker_hello(self, hello: WorkerHello, now_us: int) -> list[Action]:
        """A worker's stream opened; a new incarnation owes nothing of the old one."""
        gone = self._fleet.hello(hello, now_us)
        if gone is None:
            return []
        self._forget(gone)
        for info in hello.instances:
            self._attempts.claim_for(InstanceKey(hello.worker, hello.incarnation, info.model), now_us)
        return [*self._attempts.dispatch_all(now_us)]

    @event
    def load_report(self, worker: str, incarnation: str, report: LoadReport, now_us: int) -> list[Action]:
        """One instance's counts."""
        instance = InstanceKey(worker, incarnation, report.model)
        ended = self._fleet.report(instance, report, now_us)
        if ended is None:
            return []
        for reservation in ended:
            self._fleet.release(reservation.number, reservation.key)
        backlog = self._attempts.backlog_of(report.model)
        for tenant, service_us in self._services.increments(instance, report.service):
            backlog.queue.served(tenant, service_us)
        if len(backlog.queue) and self._retry_us is None:
            self._retry_us = now_us + self._policy.report_dispatch_us
        return []

    @event
    def prefix_events(self, worker: str, incarnation: str, events: PrefixEvents, now_us: int) -> list[Action]:
        """Prefixes cached and evicted at one instance."""
        instance = InstanceKey(worker, incarnation, events.model)
        known = self._fleet.instance(instance)
        if known is None or self._prefixes.apply(known.slot, events):
            self._resync_asked_us.pop(instance, None)
            return []
        asked_us = self._resync_asked_us.get(instance)
        if asked_us is not None and asked_us + self._policy.resync_us > now_us:
            return []
        self._resync_asked_us[instance] = now_us
        return [Resync(worker, incarnation, events.model, f"gap before event {events.first_sequence}")]

    @event
    def worker_down(self, worker: str, incarnation: str, now_us: int) -> list[Action]:
        """Its stream broke: nothing new goes there; it is forgotten unless it reattaches soon."""
        self._fleet.lost(worker, incarnation, now_us)
        return []

    # What the capacity store says.

    @event
    def lease_answered(self, ask: Ask, answer: Answer, now_us: int) -> list[Action]:
        """The store granted a part of a tenant's limit."""
        self._leases.answered(ask, answer, now_us)
        return [*self._attempts.leases_changed(now_us)]

    @event
    def leases_lost(self, now_us: int) -> list[Action]:
        """The store cannot be asked: on with what is held, and the declared share where nothing is."""
        self._leases.store_lost(now_us)
        return [*self._attempts.leases_changed(now_us)]

    @event
    def leases_returned(self, now_us: int) -> list[Action]:
        """The store answers again."""
        return [*self._leases.store_returned(now_us)]

    @event
    def routers_known(self, count: int, now_us: int) -> list[Action]:
        """How many routers share the tenants' limits."""
        self._leases.routers_known(count, now_us)
        return []

    @event
    def drain(self, now_us: int) -> list[Action]:
        """Nothing new is admitted; what waits may still be placed."""
        self._draining = True
        return []

    @event
    def tick(self, now_us: int) -> list[Action]:
        """Whatever has a deadline that has passed."""
        actions: list[Action] = [*self._attempts.overdue(now_us)]
        for gateway in self._attempts.gateways.expired(now_us):
            for key in self._attempts.gateways.attempts(gateway):
                actions += self._attempts.end(self._attempts.live[key], Outcome.CANCELLED, now_us)
            self._attempts.gateways.forget(gateway)
        actions += self._leases.tick(now_us)
        actions += self._permits.count_owed(now_us)
        gone = self._fleet.expire(now_us)
        self._forget(gone)
        if gone or (self._retry_us is not None and self._retry_us <= now_us):
            self._retry_us = None
            actions += self._attempts.dispatch_all(now_us)
        return actions

    @property
    def next_deadline_us(self) -> int | None:
        """When tick wants to be called; None where nothing waits for time."""
        times = (
            self._attempts.next_deadline_us,
            self._fleet.next_deadline_us,
            self._leases.next_deadline_us,
            self._retry_us,
        )
        return min((at for at in times if at is not None), default=None)

    # For people, and for the law.

    def snapshot(self, now_us: int) -> RouterSnapshot:
        """What is counted now."""
        tenants: dict[str, int] = {}
        for attempt in self._attempts.live.values():
            tenants[attempt.submission.tenant] = tenants.get(attempt.submission.tenant, 0) + 1
        placed = sum(backlog.running for backlog in self._attempts.backlogs.values())
        workers, stale = tuple(self._fleet.workers(now_us)), tuple(self._fleet.stale(now_us))
        return RouterSnapshot(placed, len(self._attempts.live) - placed, workers, tenants, stale)

    def reservations(self) -> list[Reservation]:
        """All that is reserved anywhere."""
        return self._fleet.reservations()

    def check(self) -> None:
        """Reservations = the sum over live attempts; every count is its own and none is negative."""
        self._fleet.check()
        self._prefixes.check()
        self._attempts.check()

    def _refuse(self, gateway: str, key: AttemptKey, end: End, now_us: int) -> Refuse:
        self._attempts.remember(key, end)
        # A permit kept from an earlier attempt would wait in vain.
        self._attempts.abandon(key.request, now_us)
        return Refuse(gateway, key, end)

    def _room(self, attempt: Attempt, now_us: int) -> list[Action]:
        backlog = self._attempts.backlogs[attempt.pool]
        backlog.blocked = False
        return [*self._attempts.dispatch(backlog, now_us)]

    def _announced(self, gateway: str, request: LiveRequest, now_us: int) -> list[Action]:
        known = self._attempts.live.get(request.submission.key)
        if not request.legs:
            return self.submit(gateway, request.submission, now_us)
        if known is None:
            self._attempts.restore(
                gateway, request.submission, request.legs, request.first_token_seen, now_us
            )
            return [*self._permits.adopt(request.submission, now_us)]
        if request.first_token_seen:
            return self.first_token(known.key, now_us)
        return []

    def _forget(self, instances: list[InstanceKey]) -> None:
        for instance in instances:
            self._services.forget(instance)
            self._resync_asked_us.pop(instance, None)
