"""The life of every attempt at this router: opened, queued, placed, ended, and what is held meanwhile."""

from collections import OrderedDict

from capacity.leases import Held, Refused
from capacity.quantities import Ask
from core.deadlines import Deadlines
from core.ends import End
from core.ledger import Ledger
from core.outcomes import Outcome
from core.request import AttemptKey, InstanceKey, Leg, ModelIdentity
from router.actions import Place, Refuse
from router.admission import limited, no_worker
from router.attempt import Attempt, Phase
from router.backlog import COST_DEFAULT, Backlog, backlog_name, estimate
from router.expected_output import ExpectedOutput
from router.fair_queue import FairQueue
from router.fleet_view import FleetView
from router.gateways import Gateways
from router.legs import Legs
from router.messages import Submission
from router.permits import Permits
from router.placement import Blocked, Matches, Placement, place
from router.policy import RouterPolicy
from router.prefix_index import PrefixIndex
from router.tenant_queue import Waiting

Answer = Place | Refuse
Action = Answer | Ask

SKIPPED_MAX = 8
"""Heads that cannot be placed for reasons of their own are passed over, up to this many per try."""


class Attempts:
    """Every live attempt; whatever is reserved anywhere belongs to one of them."""

    def __init__(
        self,
        policy: RouterPolicy,
        fleet: FleetView,
        prefixes: PrefixIndex,
        permits: Permits,
        first_reservation: int,
    ) -> None:
        self._policy, self._fleet, self._prefixes, self._permits = policy, fleet, prefixes, permits
        self.expected = ExpectedOutput(
            policy.growth_tokens_default, policy.growth_tokens_max, policy.tenants_max
        )
        self.gateways = Gateways()
        self.backlogs: dict[str, Backlog] = {}
        self.ledger: Ledger[AttemptKey] = Ledger()
        self.live: dict[AttemptKey, Attempt] = {}
        self.answers: OrderedDict[AttemptKey, End] = OrderedDict()
        """What attempts that ended would be told if they were submitted again."""
        self._timers: Deadlines[AttemptKey] = Deadlines()
        self._parked: Deadlines[str] = Deadlines()
        """Requests whose permit is kept for a next attempt."""
        self._legs = Legs(policy, fleet, first_reservation)
        self._matched: tuple[AttemptKey, int, Matches] = (AttemptKey("", 0), 0, prefixes.match(b""))

    # Coming in.

    def ask_leases(self, gateway: str, submission: Submission, now_us: int) -> None:
        """Its tenant's limits are being asked for: waits for the answer, not for long."""
        attempt = self._open(gateway, submission, now_us)
        attempt.phase = Phase.LEASE
        wait_us = self._policy.lease_wait_us
        if submission.deadline_remaining_us:
            wait_us = min(wait_us, submission.deadline_remaining_us)
        self._timers.set(submission.key, now_us + wait_us)

    def leases_changed(self, now_us: int) -> list[Action]:
        """Whoever waits for its tenant's limits asks again, in order of arrival."""
        actions: list[Action] = [*self._permits.count_owed(now_us)]
        for attempt in [one for one in self.live.values() if one.phase is Phase.LEASE]:
            if attempt.key not in self.live:
                continue
            answer = self._permits.acquire(attempt.submission, now_us)
            if isinstance(answer, Held):
                actions += self._enqueue(attempt, now_us)
            elif isinstance(answer, Refused):
                actions.append(self._refuse(attempt, limited(attempt.submission, answer), now_us))
            else:
                actions += answer.asks
        return actions

    def enqueue(self, gateway: str, submission: Submission, now_us: int) -> list[Answer]:
        """Its permit is held: waits for its turn, which may be now."""
        return self._enqueue(self._open(gateway, submission, now_us), now_us)

    def _enqueue(self, attempt: Attempt, now_us: int) -> list[Answer]:
        submission, backlog = attempt.submission, self.backlogs[attempt.pool]
        attempt.phase = Phase.QUEUED
        waiting = Waiting(
            submission.key, submission.tenant, submission.tenant_class, submission.tenant_weight,
            attempt.cost_us, attempt.short, attempt.arrived_us,
        )  # fmt: skip
        self._timers.set(submission.key, self._latest_start_us(attempt))
        leaver = backlog.queue.push(waiting)
        answers: list[Answer] = []
        if leaver is not None:
            answers.append(self._crowded_out(self.live[leaver.key], attempt, now_us))
        if leaver is waiting or (backlog.blocked and backlog.queue.pick() is not waiting):
            return answers
        return answers + self.dispatch(backlog, now_us)

    def restore(
        self, gateway: str, submission: Submission, legs: tuple[Leg, ...], first_token_seen: bool, now_us: int
    ) -> None:
        """An attempt placed before this process, or its stream, began: the same reservations again."""
        self.answers.pop(submission.key, None)
        attempt = self._open(gateway, submission, now_us)
        attempt.phase, attempt.placed_us = Phase.PLACED, now_us
        attempt.legs, attempt.first_token_seen = legs, first_token_seen
        attempt.reason = "re-announced"
        backlog = self.backlogs[attempt.pool]
        backlog.running += 1
        backlog.queue.charge(submission.tenant, submission.tenant_weight, attempt.cost_us)
        self._set_placed_timer(attempt)
        self._legs.restore(attempt, self._expected_tokens(submission), now_us)

    def claim_for(self, instance: InstanceKey, now_us: int) -> None:
        """An instance is there: re-announced attempts that run on it are counted from now on."""
        for attempt in self._legs.waiting_for(instance, self.live):
            self._legs.restore(attempt, self._expected_tokens(attempt.submission), now_us)

    # Turns.

    def dispatch_all(self, now_us: int) -> list[Answer]:
        answers: list[Answer] = []
        for backlog in self.backlogs.values():
            answers += self.dispatch(backlog, now_us)
        return answers

    def dispatch(self, backlog: Backlog, now_us: int) -> list[Answer]:
        """Places whoever goes next, until the next one has to wait."""
        answers: list[Answer] = []
        longs = batch = True
        skip: tuple[AttemptKey, ...] = ()
        while len(skip) <= SKIPPED_MAX:
            head = backlog.queue.pick(longs, batch, skip)
            if head is None:
                break
            attempt = self.live[head.key]
            found = self._place(attempt, now_us)
            if isinstance(found, Placement):
                answers.append(self._placed(attempt, found, now_us))
            elif found is Blocked.NO_WORKER and not self._may_serve(attempt):
                answers.append(self._refuse(attempt, no_worker(attempt.submission, self._policy), now_us))
            elif not head.short and self._may_be_passed(found, attempt, now_us):
                longs = False
            elif found is Blocked.BATCH_HEADROOM:
                batch = False
            elif found in (Blocked.DECODE_FULL, Blocked.PREFILL_BUSY) and not self._is_picky(attempt):
                # It is this one's turn: others must not live on what it waits for.
                backlog.blocked = True
                break
            else:
                skip = (*skip, head.key)
        return answers

    def prefill_over(self, attempt: Attempt) -> None:
        attempt.first_token_seen = True
        self._legs.first_token(attempt)

    # Ends.

    def end(
        self,
        attempt: Attempt,
        outcome: Outcome,
        now_us: int,
        *,
        final: bool = True,
        used_tokens: int | None = None,
        remember: bool = True,
    ) -> list[Answer]:
        """Gives back all that is held for it, then uses the room. `used_tokens`: None where unknown."""
        key, submission = attempt.key, attempt.submission
        backlog = self.backlogs[attempt.pool]
        placed = attempt.phase is Phase.PLACED
        del self.live[key]
        self.ledger.end(key, outcome)
        self._timers.clear(key)
        self.gateways.disown(attempt.gateway, key)
        if remember:
            self.remember(key, End(Outcome.DUPLICATE_REQUEST, "this attempt has ended", "request"))
        if not placed:
            backlog.queue.remove(key)  # where it is in it: not while it waits for a lease
        else:
            self._legs.release(attempt)
            backlog.queue.settled(submission.tenant, attempt.cost_us)
            backlog.drain.ended(now_us - attempt.placed_us)
            backlog.running -= 1
            backlog.blocked = False
        if final:
            self._permits.leave(key, used_tokens if placed else 0, now_us)
        else:
            self._permits.pause(key)
            self._parked.set(key.request, now_us + self._policy.retry_window_us)
        return self.dispatch(backlog, now_us) if placed else []

    def overdue(self, now_us: int) -> list[Answer]:
        """Whoever waited too long, or outlived its deadline, is told so; parked permits go back."""
        for request in self._parked.due(now_us):
            self._permits.abandon(request, now_us)
        answers: list[Answer] = []
        for key in self._timers.due(now_us):
            attempt = self.live[key]
            if attempt.phase is Phase.PLACED:
                answers += self.end(attempt, Outcome.DEADLINE_EXCEEDED, now_us)
                continue
            answers.append(self._refuse(attempt, self._too_late(attempt, now_us), now_us))
        return answers

    def remember(self, key: AttemptKey, end: End) -> None:
        self.answers[key] = end
        if len(self.answers) > self._policy.answers_max:
            self.answers.popitem(last=False)

    def abandon(self, request: str, now_us: int) -> None:
        """No further attempt of it comes. Idempotent."""
        self._parked.clear(request)
        self._permits.abandon(request, now_us)

    def backlog_of(self, model: ModelIdentity) -> Backlog:
        return self._backlog(backlog_name(model))

    def placed_again(self, attempt: Attempt) -> Place:
        """The answer it had."""
        return Place(
            attempt.gateway,
            attempt.key,
            attempt.legs,
            self._policy.fallback,
            attempt.queued_us,
            attempt.reason,
        )

    @property
    def next_deadline_us(self) -> int | None:
        times = (self._timers.next_us, self._parked.next_us, self.gateways.next_deadline_us)
        return min((at for at in times if at is not None), default=None)

    def check(self) -> None:
        self.ledger.check()
        assert self.ledger.live == len(self.live)
        self._legs.check(self.live)
        queued = [attempt for attempt in self.live.values() if attempt.phase is Phase.QUEUED]
        for attempt in queued:
            assert attempt.key in self.backlogs[attempt.pool].queue and not attempt.legs
        assert len(queued) == sum(len(backlog.queue) for backlog in self.backlogs.values())
        placed = [attempt for attempt in self.live.values() if attempt.phase is Phase.PLACED]
        assert len(placed) == sum(one.running for one in self.backlogs.values())
        for backlog in self.backlogs.values():
            backlog.queue.check()
        self.gateways.check(self.live)
        self._permits.check(list(self.live))

    def _open(self, gateway: str, submission: Submission, now_us: int) -> Attempt:
        remaining_us = submission.deadline_remaining_us
        attempt = Attempt(submission, gateway, now_us, now_us + remaining_us if remaining_us else None)
        attempt.pool = backlog_name(submission.model)
        estimate(
            attempt,
            self._fleet.reference_cost(submission.model) or COST_DEFAULT,
            self._expected_tokens(submission),
            int(self._matches(submission, now_us).max(initial=0)),
            self._policy.short_prefill_us,
            self._policy.reference_batch,
        )
        self.live[submission.key] = attempt
        self.ledger.open(submission.key, now_us)
        self.gateways.own(gateway, submission.key)
        self._permits.join(submission)
        self._parked.clear(submission.key.request)
        self._backlog(attempt.pool)
        return attempt

    def _backlog(self, name: str) -> Backlog:
        return self.backlogs.setdefault(name, Backlog(FairQueue(self._policy)))

    def _placed(self, attempt: Attempt, placement: Placement, now_us: int) -> Place:
        backlog = self.backlogs[attempt.pool]
        backlog.queue.take(attempt.key)
        backlog.running += 1
        attempt.phase, attempt.placed_us = Phase.PLACED, now_us
        attempt.queued_us, attempt.reason = now_us - attempt.arrived_us, placement.reason
        backlog.drain.placed(attempt.queued_us > 0, now_us)
        self._legs.reserve(attempt, placement, now_us)
        self._set_placed_timer(attempt)
        return self.placed_again(attempt)

    def _place(self, attempt: Attempt, now_us: int) -> Placement | Blocked:
        submission = attempt.submission
        expected, matches = self._expected_tokens(submission), self._matches(submission, now_us)
        return place(submission, expected, matches, self._fleet, self._policy, now_us)

    def _matches(self, submission: Submission, now_us: int) -> Matches:
        """The last answer is kept: a submit that is placed at once asks twice in one event."""
        if self._matched[:2] != (submission.key, now_us):
            matches = self._prefixes.match(submission.prefix_hashes) * self._fleet.hash_unit
            self._matched = (submission.key, now_us, matches)
        return self._matched[2]

    def _expected_tokens(self, submission: Submission) -> int:
        remaining = submission.max_tokens - submission.output_tokens // submission.choices
        return self.expected.tokens(submission.tenant, submission.model, remaining)

    def _may_serve(self, attempt: Attempt) -> bool:
        return self._fleet.may_serve(attempt.submission.model, attempt.submission.dtype)

    def _may_be_passed(self, found: Blocked, attempt: Attempt, now_us: int) -> bool:
        """Whether short prompts go before a long one: they have room of their own where prompts are
        computed; where decoding is full they may take the long one's turn only for so long."""
        patient = now_us - attempt.arrived_us < self._policy.long_patience_us
        return found is Blocked.LONG_PREFILL_BUSY or (found is Blocked.DECODE_FULL and patient)

    def _is_picky(self, attempt: Attempt) -> bool:
        """Whether room may exist that this one cannot use and others of its queue can."""
        submission = attempt.submission
        if submission.avoid_workers:
            return True
        anyone = ModelIdentity(submission.model.name, adapter=submission.model.adapter)
        mine, all_ = (self._fleet.groups(submission.model, submission.dtype), self._fleet.groups(anyone, ""))
        return len(mine) < len(all_)

    def _latest_start_us(self, attempt: Attempt) -> int:
        """When it is given up in the queue: with a deadline, when what is left could not hold it."""
        patience_us = attempt.arrived_us + self._policy.queue_wait_max_us
        if attempt.deadline_us is None:
            return patience_us
        # A prediction may be wrong, so it takes no more than half of the client's patience.
        needed_us = min(attempt.predicted_us, (attempt.deadline_us - attempt.arrived_us) // 2)
        return min(patience_us, attempt.deadline_us - needed_us)

    def _set_placed_timer(self, attempt: Attempt) -> None:
        if attempt.deadline_us is None:
            self._timers.clear(attempt.key)
        else:
            self._timers.set(attempt.key, attempt.deadline_us + self._policy.deadline_grace_us)

    def _too_late(self, attempt: Attempt, now_us: int) -> End:
        if attempt.phase is Phase.LEASE:
            message = "its tenant's limits could not be asked in time"
            return End(Outcome.CONCURRENCY_LIMITED, message, retry_after_us=self._policy.no_worker_retry_us)
        if attempt.deadline_us is not None and attempt.deadline_us <= now_us:
            return End(Outcome.DEADLINE_EXCEEDED, "its deadline passed in the queue")
        reason = "waited too long" if attempt.deadline_us is None else "could not meet its deadline any more"
        retry_after_us = self.backlogs[attempt.pool].retry_after_us(now_us)
        return End(Outcome.SHED, f"given up in the queue: {reason}", retry_after_us=retry_after_us)

    def _crowded_out(self, leaver: Attempt, newcomer: Attempt, now_us: int) -> Refuse:
        retry_after_us = self.backlogs[leaver.pool].retry_after_us(now_us)
        if leaver is newcomer:
            return self._refuse(
                leaver, End(Outcome.QUEUE_FULL, "the queue is full", retry_after_us=retry_after_us), now_us
            )
        message = "given up in the queue for a more urgent class or a tenant that has less waiting"
        return self._refuse(leaver, End(Outcome.SHED, message, retry_after_us=retry_after_us), now_us)

    def _refuse(self, attempt: Attempt, end: End, now_us: int) -> Refuse:
        """Out of the queue with an answer."""
        self.end(attempt, end.outcome, now_us)
        self.remember(attempt.key, end)
        return Refuse(attempt.gateway, attempt.key, end)
