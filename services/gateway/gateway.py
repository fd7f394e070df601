"""What a client sees of its request: which attempts are made for it, which tokens it gets, how it ends."""

from collections import Counter

from core.deadlines import Deadlines
from core.ends import End
from core.events import event
from core.ledger import Ledger
from core.outcomes import RETRYABLE, FinishReason, Outcome
from core.request import AttemptKey
from services.gateway.actions import (
    Action,
    Connect,
    Deliver,
    Disconnect,
    Ended,
    LiveAttempt,
    Resume,
    Withdraw,
)
from services.gateway.closing import close_attempt, give_back, leave_router, settle_finally
from services.gateway.live_laws import check_live
from services.gateway.live_request import LiveChoice, LiveRequest, Phase, decode_leg
from services.gateway.policy import GatewayPolicy as GatewayPolicy
from services.gateway.requests import AttemptEnd, NewRequest, Placement, Run
from services.gateway.retry_budget import RetryBudget
from services.gateway.routers import Routers
from services.gateway.token_runs import Gap, news_of
from services.gateway.worker_links import WorkerLink, WorkerLinks

_DEADLINE, _RETRY, _LINK = "deadline", "retry", "link"
_TEMPORARY = (Outcome.NO_WORKER, Outcome.DRAINING, *RETRYABLE)
"""Refusals that a short wait may mend."""
_HOMELESS = End(Outcome.INTERNAL, "placed without a decode worker")


class Gateway:
    """All live requests of one gateway process."""

    def __init__(self, policy: GatewayPolicy) -> None:
        self._policy = policy
        self._ledger: Ledger[str] = Ledger()
        self._live: dict[str, LiveRequest] = {}
        self._routers = Routers(policy.splits)
        self._links = WorkerLinks()
        self._timers: Deadlines[tuple[str, str]] = Deadlines()
        self._budget = RetryBudget(policy.retry_budget)

    # What clients do.

    @event
    def open(self, request: NewRequest, now_us: int) -> list[Action]:
        """Takes a request that is checked and whose id is not live."""
        self._ledger.open(request.request, now_us)
        live = LiveRequest(request, [LiveChoice(index) for index in range(request.choices)])
        self._live[request.request] = live
        self._timers.set((_DEADLINE, request.request), request.deadline_us)
        self._budget.earn(now_us)
        return self._submit(live, now_us)

    @event
    def cancel(self, request: str, outcome: Outcome, message: str, now_us: int) -> list[Action]:
        """The client asked (CANCELLED), is gone (CANCELLED) or does not read (SLOW_CLIENT). Idempotent."""
        live = self._live.get(request)
        return [] if live is None else self._finish(live, End(outcome, message), now_us)

    @event
    def choice_ended(
        self, request: str, choice: int, output_tokens: int, reason: FinishReason, now_us: int
    ) -> list[Action]:
        """The text side's word on a request with stop strings: the choice ends after so many output tokens.

        Told when a stop string is complete, and to confirm an end that a Deliver announced.
        """
        live = self._live.get(request)
        if live is None or live.choices[choice].finish is not None:
            return []
        return self._end_choice(live, live.choices[choice], output_tokens, reason, now_us)

    # What routers do.

    @event
    def router_up(self, router: str, now_us: int) -> list[Action]:
        """Its stream is open and it was told `live_attempts`; what it had not answered is asked again."""
        self._routers.add(router)
        actions: list[Action] = []
        for live in list(self._live.values()):
            if live.phase is Phase.SUBMITTED and live.router == router:
                actions.append(live.submit())
            elif live.phase is Phase.WAITING:
                actions += self._submit(live, now_us)
        return actions

    @event
    def router_down(self, router: str, now_us: int) -> list[Action]:
        """Its stream broke: what it had not placed goes to another router; what runs is not touched."""
        self._routers.remove(router)
        actions: list[Action] = []
        for live in list(self._live.values()):
            if live.phase is Phase.SUBMITTED and live.router == router:
                actions += self._submit(live, now_us)
        return actions

    @event
    def placed(self, router: str, key: AttemptKey, placement: Placement, now_us: int) -> list[Action]:
        """The router reserved these legs for the attempt."""
        live = self._submitted(router, key)
        if live is None:
            return give_back(self._live.get(key.request), router, key)
        leg = decode_leg(placement.legs)
        if leg is None:
            return give_back(None, router, key) + self._finish(live, _HOMELESS, now_us)
        leaving = leave_router(live, router)
        live.place(placement, leg)
        return leaving + self._use_link(live, leg.address, now_us)

    @event
    def refused(self, router: str, key: AttemptKey, end: End, now_us: int) -> list[Action]:
        """The router gave the attempt no place."""
        live = self._submitted(router, key)
        if live is None:
            return []
        live.phase = Phase.WAITING
        if end.outcome is Outcome.MODEL_NOT_FOUND:
            # The gateway serves this model: a router that does not know it has just not met its workers.
            end = End(Outcome.NO_WORKER, end.message, "", end.retry_after_us)
        if end.outcome is Outcome.DRAINING:
            live.avoid_routers = list(dict.fromkeys([*live.avoid_routers, router]))
            live.router = ""
        contended = live.retries > 0 and end.outcome in (Outcome.QUEUE_FULL, Outcome.SHED)
        if end.outcome in _TEMPORARY or contended:
            return self._wait(live, end, now_us)
        return self._finish(live, end, now_us)

    # What decode workers do.

    @event
    def decode_up(
        self, worker: str, incarnation: str, unknown: tuple[AttemptKey, ...], now_us: int
    ) -> list[Action]:
        """The worker answered the attach of its stream; it does not have the attempts in `unknown`."""
        link = self._links.get(worker)
        if link is None:
            return [Disconnect(worker)]
        same = link.incarnation in ("", incarnation)
        link.up, link.incarnation = True, incarnation
        self._timers.clear((_LINK, worker))
        actions: list[Action] = list(link.owed_cancels) if same else []
        link.owed_cancels.clear()
        for request in list(link.requests):
            actions += self._reattach(self._live[request], link, same, unknown, now_us)
        return actions

    @event
    def decode_down(self, worker: str, now_us: int) -> list[Action]:
        """The stream broke; the shell is reopening it."""
        link = self._links.get(worker)
        if link is not None and link.up:
            link.up = False
            self._timers.set((_LINK, worker), now_us + self._policy.reattach_window_us)
        return []

    @event
    def decode_gone(self, worker: str, now_us: int) -> list[Action]:
        """The worker's process is known to be gone: nothing to wait for."""
        return self._drop_link(worker, now_us)

    @event
    def frame(
        self, worker: str, runs: tuple[Run, ...], ends: tuple[AttemptEnd, ...], now_us: int
    ) -> list[Action]:
        """What one engine step gave to this gateway's requests."""
        actions: list[Action] = []
        for run in runs:
            live = self._running(worker, run.request, run.attempt)
            if live is not None:
                actions += self._take_run(live, run, now_us)
        for ended in ends:
            live = self._running(worker, ended.request, ended.attempt)
            if live is not None:
                actions += self._take_end(live, ended.end, now_us)
        return actions

    # Time.

    @event
    def tick(self, now_us: int) -> list[Action]:
        actions: list[Action] = []
        for kind, name in self._timers.due(now_us):
            if kind == _LINK:
                actions += self._drop_link(name, now_us)
            elif (live := self._live.get(name)) is None:
                continue
            elif kind == _DEADLINE:
                end = End(Outcome.DEADLINE_EXCEEDED, "the deadline passed")
                actions += self._finish(live, end, now_us)
            elif live.phase is Phase.WAITING:
                actions += self._submit(live, now_us)
        return actions

    @property
    def next_deadline_us(self) -> int | None:
        return self._timers.next_us

    # What others may know.

    @property
    def in_flight(self) -> int:
        return len(self._live)

    @property
    def routers(self) -> tuple[str, ...]:
        return self._routers.names

    def in_flight_by_tenant(self) -> dict[str, int]:
        return dict(Counter(live.spec.tenant.name for live in self._live.values()))

    def outcomes(self) -> dict[Outcome, int]:
        return self._ledger.counts()

    def live_attempts(self, router: str) -> list[LiveAttempt]:
        """What a router is told first on a new stream: the attempts it placed that still run."""
        return [live.announced() for live in self._live.values() if live.router == router and live.placement]

    def resume_list(self, worker: str) -> list[Resume]:
        """What a decode worker is told first on a new stream: where each running attempt goes on."""
        link = self._links.get(worker)
        running = [] if link is None else [self._live[request] for request in link.requests]
        return [live.resume() for live in running if live.phase is Phase.STARTED]

    def check(self) -> None:
        """Asserts the laws of live_laws.py, and the ledger's own."""
        self._ledger.check()
        assert list(self._ledger) == list(self._live), "the ledger and the live requests differ"
        check_live(self._live, self._links, len(self._timers))

    # Placing.

    def _submit(self, live: LiveRequest, now_us: int) -> list[Action]:
        self._timers.clear((_RETRY, live.spec.request))
        router = live.router if live.router in self._routers else self._routers.home(live)
        if router is None:
            return self._wait(live, End(Outcome.NO_WORKER, "no router is reachable"), now_us)
        live.attempt += 1
        live.router, live.phase = router, Phase.SUBMITTED
        return [live.submit()]

    def _wait(self, live: LiveRequest, end: End, now_us: int) -> list[Action]:
        """Nothing can serve it now: tries again with growing pauses, for a bounded time."""
        policy = self._policy
        live.phase = Phase.WAITING
        if live.stranded_since_us is None:
            live.stranded_since_us, live.backoffs = now_us, 0
        given_up_us = live.stranded_since_us + policy.no_worker_wait_us
        if now_us >= given_up_us:
            retry_after_us = end.retry_after_us or policy.no_worker_wait_us
            return self._finish(live, End(end.outcome, end.message, end.field, retry_after_us), now_us)
        pause_us = policy.pause_us(live.backoffs)
        live.backoffs += 1
        self._timers.set((_RETRY, live.spec.request), min(now_us + pause_us, given_up_us))
        return []

    def _submitted(self, router: str, key: AttemptKey) -> LiveRequest | None:
        live = self._live.get(key.request)
        return live if live is not None and live.awaits(router, key) else None

    # Streams to decode workers.

    def _use_link(self, live: LiveRequest, address: str, now_us: int) -> list[Action]:
        actions: list[Action] = []
        link = self._links.get(live.worker)
        if link is None or link.address != address:
            actions += self._open_link(live.worker, address, now_us)
            link = self._links.get(live.worker)
        assert link is not None
        link.requests[live.spec.request] = None
        return actions + self._start_if_up(live, link, now_us)

    def _open_link(self, worker: str, address: str, now_us: int) -> list[Action]:
        """The worker is new, or came back elsewhere."""
        actions = self._drop_link(worker, now_us) if self._links.get(worker) else []
        if self._links.get(worker) is None:
            self._links.add(worker, address)
            self._timers.set((_LINK, worker), now_us + self._policy.reattach_window_us)
            actions.append(Connect(worker, address))
        return actions

    def _start_if_up(self, live: LiveRequest, link: WorkerLink, now_us: int) -> list[Action]:
        if not link.up:
            return []
        if live.decode_leg.instance.incarnation != link.incarnation:
            return self._lose(live, End(Outcome.WORKER_LOST, f"{link.worker} has restarted"), now_us)
        start = live.start()
        live.phase = Phase.STARTED
        return [start]

    def _reattach(
        self, live: LiveRequest, link: WorkerLink, same: bool, unknown: tuple[AttemptKey, ...], now_us: int
    ) -> list[Action]:
        if live.phase is Phase.PLACED:
            return self._start_if_up(live, link, now_us)
        if same and live.key not in unknown:
            return []
        return self._lose(live, End(Outcome.WORKER_LOST, f"{link.worker} no longer has it"), now_us)

    def _drop_link(self, worker: str, now_us: int) -> list[Action]:
        link = self._links.get(worker)
        if link is None:
            return []
        lost = [self._live[request] for request in link.requests]
        link.requests.clear()
        self._links.remove(worker)
        self._timers.clear((_LINK, worker))
        actions: list[Action] = [Disconnect(worker)]
        for live in lost:
            actions += self._lose(live, End(Outcome.WORKER_LOST, f"{worker} is lost"), now_us)
        return actions

    # Tokens.

    def _running(self, worker: str, request: str, attempt: int) -> LiveRequest | None:
        """The request, if this is its running attempt; whatever else still comes is stale."""
        live = self._live.get(request)
        return live if live is not None and live.runs_as(worker, attempt) else None

    def _take_run(self, live: LiveRequest, run: Run, now_us: int) -> list[Action]:
        if run.choice not in live.started:
            return self._lose(live, End(Outcome.WORKER_LOST, f"a run of choice {run.choice}"), now_us)
        choice = live.choices[run.choice]
        if not choice.goes_on:
            return []
        news = news_of(choice, run, live.spec.params.max_tokens)
        if isinstance(news, Gap):
            return self._lose(live, End(Outcome.WORKER_LOST, str(news)), now_us)
        if news is None:
            return []
        actions: list[Action] = [*live.note_tokens(run)] if news.tokens else []
        choice.output.extend(news.tokens)
        choice.worker_done = news.finish is not None
        actions.append(
            Deliver(live.spec.request, choice.index, news.first, news.tokens, news.logprobs, news.finish)
        )
        if news.finish is not None and not live.spec.stop_strings:
            actions += self._end_choice(live, choice, len(choice.output), news.finish, now_us)
        return actions

    def _end_choice(
        self, live: LiveRequest, choice: LiveChoice, output_tokens: int, reason: FinishReason, now_us: int
    ) -> list[Action]:
        assert 0 <= output_tokens <= len(choice.output)
        del choice.output[output_tokens:]
        choice.finish = reason
        if any(other.finish is None for other in live.choices):
            return []
        return self._finish(live, End(Outcome.COMPLETED), now_us)

    def _take_end(self, live: LiveRequest, end: End, now_us: int) -> list[Action]:
        if not live.remaining:
            return []  # the text side is about to confirm the last choice
        if end.outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
            # Nobody here asked for it, and tokens are missing.
            end = End(Outcome.WORKER_LOST, f"{live.worker} ended it as {end.outcome}")
        if end.outcome in RETRYABLE:
            return self._lose(live, end, now_us, running=False)
        return self._finish(live, end, now_us, running=False)

    # Ends.

    def _lose(self, live: LiveRequest, end: End, now_us: int, running: bool = True) -> list[Action]:
        """The attempt is over before its time: another one, if the budget has it."""
        if not live.remaining:
            return []
        again = end.outcome is Outcome.MOVED or (
            live.retries < self._policy.retries_max and self._budget.take(now_us)
        )
        if not again:
            return self._finish(live, end, now_us, running=running)
        live.retries += 1
        live.avoid_legs()
        return close_attempt(live, self._links, end.outcome, final=False, running=running) + self._submit(
            live, now_us
        )

    def _finish(self, live: LiveRequest, end: End, now_us: int, running: bool = True) -> list[Action]:
        """The one end of a request, from any phase."""
        request = live.spec.request
        first_end = self._ledger.end(request, end.outcome)
        assert first_end, f"{request} ends twice"
        actions: list[Action] = []
        if live.phase is Phase.SUBMITTED:
            actions.append(Withdraw(live.router, live.key))
        computes = running and any(not choice.worker_done for choice in live.choices)
        actions += close_attempt(live, self._links, end.outcome, final=True, running=computes)
        actions += settle_finally(live, end.outcome)
        for kind in (_DEADLINE, _RETRY):
            self._timers.clear((kind, request))
        del self._live[request]
        cached = live.cached_tokens or 0
        actions.append(Ended(request, end, len(live.spec.prompt), live.output_tokens, cached))
        return actions
