"""When a request binds its blocks, decodes, falls back and ends: the home of a request's compute."""

from core.cost_model import StepCost
from core.deadlines import Deadlines
from core.ends import End
from core.events import event
from core.ledger import Ledger
from core.outcomes import Outcome
from core.request import AttemptKey, InstanceKey
from decode_worker.actions import (
    Action,
    RunStep,
    SendAbort,
    SendAttached,
)
from decode_worker.attempts import (
    Attempt,
    AttemptEnd,
    DrawnToken,
    GatewayKey,
    Phase,
    PrefillDrawn,
    StartRequest,
)
from decode_worker.config import DecodeConfig
from decode_worker.hand_offs import HandOffs
from decode_worker.mailboxes import Mailboxes, ResumePoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Stage, refused_because
from engine.plan import StepResult
from kv_transfer.incoming import Incoming, IncomingConfig
from kv_transfer.incoming_record import IncomingState
from kv_transfer.reasons import EndReason
from kv_transfer.types import Peer, TransferKey


class DecodeWorker(HandOffs):
    """One engine instance that is home to requests.

    Every event answers with what is to be done about it; the frames of one event come last but for the
    step that follows from it. At most one step is outstanding.
    """

    def __init__(
        self, config: DecodeConfig, instance: InstanceKey, engine: Engine, incoming: Incoming
    ) -> None:
        super().__init__(engine, incoming, config.lease_us)
        self._config = config
        self._instance = instance
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._mailboxes = Mailboxes(config.reattach_us)
        self._ledger: Ledger[AttemptKey] = Ledger()
        self._deadlines: Deadlines[AttemptKey] = Deadlines()
        self._forget: Deadlines[AttemptKey] = Deadlines()
        """Ended attempts, kept for gateways that reattach."""
        self._tombstones: Deadlines[AttemptKey] = Deadlines()
        """Cancels that overtook their Start."""
        self._buried: dict[AttemptKey, Outcome] = {}
        self._stepping = False
        self._drain_until_us: int | None = None
        self._placed: list[tuple[str, int]] = []
        self._ended_legs: list[tuple[str, int]] = []

    # ---- gateways ----

    @event
    def gateway_attached(
        self, gateway: GatewayKey, resume: tuple[ResumePoint, ...], now_us: int
    ) -> list[Action]:
        """A gateway's stream is up, the first time or again; what it no longer names is cancelled."""
        actions: list[Action] = []
        for earlier in self._mailboxes.others(gateway):
            actions += self._gateway_gone(earlier, now_us)
        unknown = self._mailboxes.attach(gateway, resume)
        actions.append(SendAttached(gateway, unknown))
        resumed = dict.fromkeys(point.key for point in resume)
        for key in unknown:
            resumed.pop(key, None)
        for attempt in self._mailboxes.attempts(gateway):
            if attempt.key not in resumed:
                actions += self._end(
                    attempt, End(Outcome.CANCELLED, "its gateway no longer knows it"), now_us
                )
        return self._answer(actions, now_us)

    @event
    def gateway_lost(self, gateway: GatewayKey, now_us: int) -> list[Action]:
        """Its stream broke; the same incarnation may come back within reattach_us."""
        self._mailboxes.silent(gateway, now_us)
        return self._answer([], now_us)

    @event
    def start(self, gateway: GatewayKey, request: StartRequest, now_us: int) -> list[Action]:
        """A placed attempt arrives. Doubled starts are ignored."""
        key = request.job.key
        if key in self._attempts:
            return self._answer([], now_us)
        attempt = Attempt.begin(gateway, request, now_us)
        self._attempts[key] = attempt
        self._mailboxes.open(attempt)
        self._ledger.open(key, now_us)
        self._deadlines.set(key, attempt.deadline_us)
        refusal = self._refusal(attempt)
        if refusal is not None:
            return self._answer(self._end(attempt, refusal, now_us), now_us)
        return self._answer(self._begin(attempt, now_us), now_us)

    @event
    def cancel(self, key: AttemptKey, outcome: Outcome, now_us: int) -> list[Action]:
        """Idempotent, in every phase; may overtake the start it cancels."""
        attempt = self._attempts.get(key)
        if attempt is None:
            self._buried[key] = outcome
            self._tombstones.set(key, now_us + self._config.tombstone_us)
            return self._answer([], now_us)
        return self._answer(self._end(attempt, End(outcome), now_us), now_us)

    # ---- prefill workers ----

    @event
    def prefill_lost(self, peer: Peer, end: End, now_us: int) -> list[Action]:
        """This start of a prefill worker is gone, cannot be reached, or refused the pair."""
        actions = self._transfer_actions(self._incoming.lost_peer(peer, now_us), now_us)
        left = [a for a in self._attempts.values() if a.prefill == peer and a.end is None]
        for attempt in left:
            actions += self._prefill_failed(attempt, end, now_us)
        return self._answer(actions, now_us)

    @event
    def prefill_heard(self, peer: Peer, now_us: int) -> list[Action]:
        """Any sign of life; a queue at the prefill worker is no reason to give up."""
        self._incoming.heard(peer, now_us)
        return self._answer([], now_us)

    @event
    def bind_asked(self, peer: Peer, transfer: TransferKey, now_us: int) -> list[Action]:
        """The prefill worker is about to compute. Bound at once, or as soon as blocks are free."""
        self._incoming.heard(peer, now_us)
        attempt = self._of(peer, transfer)
        if attempt is None:
            return self._answer([SendAbort(peer, transfer, EndReason.NOT_WANTED)], now_us)
        if self._incoming.state(transfer) is not IncomingState.RESERVED:  # bound before, or never wanted
            return self._answer([], now_us)
        self._wait_to_bind(attempt)
        return self._answer([], now_us)

    @event
    def first_tokens(
        self, peer: Peer, transfer: TransferKey, drawn: PrefillDrawn, now_us: int
    ) -> list[Action]:
        """The prompt is computed: its first tokens go to the client without waiting for the KV."""
        attempt = self._of(peer, transfer)
        if attempt is None or attempt.drawn:
            return self._answer([], now_us)
        if [first.choice for first in drawn.tokens] != [log.choice for log in attempt.logs]:
            wrong = End(Outcome.TRANSFER_FAILED, "first tokens do not match the choices")
            return self._answer(self._prefill_failed(attempt, wrong, now_us), now_us)
        attempt.drawn = True
        attempt.cached_tokens = drawn.cached_tokens
        for first in drawn.tokens:
            self._say(attempt, attempt.within_limits(first, self._engine.config.positions_max))
        if attempt.finished:
            return self._answer(self._end(attempt, End(Outcome.COMPLETED), now_us), now_us)
        actions = self._transfer_actions(self._incoming.total(peer, transfer, drawn.chunks, now_us), now_us)
        if attempt.transfer is not None:  # neither committed by the total nor failed by it
            actions += self._decode_if_ready(attempt, now_us)
        return self._answer(actions, now_us)

    @event
    def transfer_failed(self, peer: Peer, transfer: TransferKey, end: End, now_us: int) -> list[Action]:
        """The prefill worker gave this one up."""
        actions = self._transfer_actions(self._incoming.peer_failed(peer, transfer, now_us), now_us)
        attempt = self._of(peer, transfer)
        if attempt is not None:
            actions += self._prefill_failed(attempt, end, now_us)
        return self._answer(actions, now_us)

    # ---- compute and time ----

    @event
    def step_done(self, result: StepResult, now_us: int) -> list[Action]:
        assert self._stepping
        self._stepping = False
        actions: list[Action] = []
        outcome = self._engine.step_done(result, now_us)
        for token in outcome.tokens:
            attempt = self._attempts.get(token.key)
            if attempt is None or attempt.end is not None:
                continue
            if not attempt.drawn:
                attempt.drawn = True
                attempt.cached_tokens = token.cached_tokens
            self._say(attempt, DrawnToken(token.choice, token.sampled, token.finish))
            if attempt.finished:
                actions += self._end(attempt, End(Outcome.COMPLETED), now_us)
        for failed in outcome.failed:
            actions += self._end(self._attempts[failed.key], failed.end, now_us)
        return self._answer(actions, now_us)

    @event
    def tick(self, now_us: int) -> list[Action]:
        """Whatever waited for time to pass; needs no new work to run (L4)."""
        actions: list[Action] = []
        for key in self._deadlines.due(now_us):
            actions += self._end(self._attempts[key], End(Outcome.DEADLINE_EXCEEDED), now_us)
        for gateway in self._mailboxes.overdue(now_us):
            actions += self._gateway_gone(gateway, now_us)
        for key in self._tombstones.due(now_us):
            self._buried.pop(key, None)
        if self._drain_until_us is not None and now_us >= self._drain_until_us:
            for attempt in [a for a in self._attempts.values() if a.end is None]:
                actions += self._end(attempt, End(Outcome.MOVED, "this worker is draining"), now_us)
        actions += self._transfer_actions(self._incoming.tick(now_us), now_us)
        for key in self._forget.due(now_us):
            self._mailboxes.forget(self._attempts.pop(key))
        return self._answer(actions, now_us)

    @event
    def drain(self, grace_us: int, now_us: int) -> list[Action]:
        """No new work; what is here finishes within the grace or ends as MOVED."""
        self._drain_until_us = now_us + grace_us
        return self._answer([], now_us)

    @event
    def take_reservations(self, now_us: int) -> list[tuple[tuple[str, int], ...]]:
        """(router, number) of reservations seen, and of those that ended here, since the last report."""
        taken = [tuple(self._placed), tuple(self._ended_legs)]
        self._placed.clear()
        self._ended_legs.clear()
        return taken

    @property
    def next_deadline_us(self) -> int | None:
        times = (
            self._deadlines.next_us,
            self._forget.next_us,
            self._tombstones.next_us,
            self._mailboxes.next_deadline_us,
            self._incoming.next_deadline_us,
            self._drain_until_us if self._ledger.live else None,
        )
        return min((time for time in times if time is not None), default=None)

    @property
    def engine(self) -> Engine:
        """For those who count; its events are this object's alone."""
        return self._engine

    @property
    def live(self) -> int:
        return self._ledger.live

    @property
    def draining(self) -> bool:
        return self._drain_until_us is not None

    @property
    def waiting(self) -> int:
        """Requests at home that neither compute nor receive: asked, binding, or waiting for room."""
        unbound = sum(1 for attempt in self._transfers.values() if attempt.phase is not Phase.RECEIVING)
        return unbound + self._engine.waiting

    @property
    def transferring(self) -> int:
        return self._incoming.transferring

    def queued_prefill_us(self) -> int:
        """Predicted time of the prompts that this worker computes itself."""
        return self._engine.queued_prefill_us()

    # ---- one attempt ----

    def _refusal(self, attempt: Attempt) -> End | None:
        request = attempt.request
        if (outcome := self._buried.pop(attempt.key, None)) is not None:
            self._tombstones.clear(attempt.key)
            return End(outcome, "cancelled before it started")
        if self.draining:
            return End(Outcome.MOVED, "this worker is draining")
        if self._ledger.live > self._config.live_max:
            return End(
                Outcome.WORKER_FULL, f"this worker is home to {self._config.live_max} requests already"
            )
        leg = request.decode_leg
        if leg is None or leg.instance != self._instance:
            wanted = "none" if leg is None else f"{leg.instance.worker} {leg.instance.model}"
            message = f"decode leg {wanted}; this is {self._instance.worker} {self._instance.model}"
            return End(Outcome.INCOMPATIBLE, message, "legs")
        return None

    def _begin(self, attempt: Attempt, now_us: int) -> list[Action]:
        job = attempt.request.job
        leg = attempt.request.prefill_leg
        stage = Stage.FULL if leg is None else Stage.DECODE
        refused = self._engine.add(job, stage, now_us)
        if refused is not None:
            return self._end(attempt, End(refused, refused_because(job, refused)), now_us)
        if leg is None:
            attempt.phase = Phase.RUNNING
            self._count(attempt)
            return []
        return [self._ask(attempt, leg, now_us)]

    def _decode_if_ready(self, attempt: Attempt, now_us: int) -> list[Action]:
        """L3: decode starts from complete KV and the tokens drawn from it, never less."""
        if not (attempt.committed and attempt.drawn):
            return []
        assert attempt.phase is Phase.RECEIVING
        assert attempt.transfer is not None
        del self._transfers[attempt.transfer]
        attempt.transfer = None
        attempt.phase = Phase.RUNNING
        for token in self._engine.arrive(attempt.key, attempt.firsts, now_us):
            assert token.finish is attempt.log(token.choice).finish, (
                "the two ends differ in what ends a choice"
            )
        return []

    def _prefill_failed(self, attempt: Attempt, end: End, now_us: int) -> list[Action]:
        """The one fallback: the same attempt prefills here; the router hears that the leg is over."""
        leg = attempt.request.prefill_leg
        assert leg is not None
        if attempt.phase is Phase.RUNNING or attempt.end is not None:
            return []
        self._ended_legs.append((attempt.request.router, leg.reservation))
        if attempt.request.fallback != "prefer":
            return self._end(attempt, end, now_us)
        actions = self._drop_transfer(attempt, EndReason.CANCELLED, now_us)
        attempt.phase = Phase.RUNNING
        self._count(attempt)
        self._engine.cancel(attempt.key, now_us)
        refused = self._engine.add(attempt.remaining_job(), Stage.FULL, now_us)
        if refused is not None:
            return actions + self._end(attempt, end, now_us)
        return actions

    def _hand_off_failed(self, attempt: Attempt, reason: EndReason, now_us: int) -> list[Action]:
        if reason is EndReason.DEADLINE_EXCEEDED:
            return self._end(attempt, End(Outcome.DEADLINE_EXCEEDED), now_us)
        return self._prefill_failed(attempt, End(Outcome.TRANSFER_FAILED, f"KV transfer: {reason}"), now_us)

    def _count(self, attempt: Attempt) -> None:
        """From now on the load reports count its blocks, and the router's reservation need not."""
        leg = attempt.request.decode_leg
        if leg is not None:
            self._placed.append((attempt.request.router, leg.reservation))

    def _say(self, attempt: Attempt, token: DrawnToken) -> None:
        self._mailboxes.say(attempt.gateway, attempt.record(token.choice, token.sampled, token.finish))

    def _end(self, attempt: Attempt, end: End, now_us: int) -> list[Action]:
        """Exactly once per attempt (L5); compute stops by the next step, memory is freed at once."""
        if not self._ledger.end(attempt.key, end.outcome):
            return []
        attempt.end = end
        attempt.phase = Phase.ENDED
        self._deadlines.clear(attempt.key)
        self._forget.set(attempt.key, now_us + self._config.reattach_us)
        actions = self._drop_transfer(attempt, EndReason.CANCELLED, now_us)
        self._engine.cancel(attempt.key, now_us)
        self._mailboxes.say_end(attempt.gateway, AttemptEnd(attempt.key, end))
        return actions

    def _gateway_gone(self, gateway: GatewayKey, now_us: int) -> list[Action]:
        actions: list[Action] = []
        for attempt in self._mailboxes.close(gateway):
            if attempt.end is None:
                router, legs = attempt.request.router, attempt.request.legs
                self._ended_legs += [(router, leg.reservation) for leg in legs]
                actions += self._end(attempt, End(Outcome.CANCELLED, "its gateway is gone"), now_us)
        return actions

    def _answer(self, actions: list[Action], now_us: int) -> list[Action]:
        """What every event ends with: blocks for who waits, one frame per gateway, the next step."""
        actions += self._bind_waiting(now_us)
        actions += self._mailboxes.flush()
        if not self._stepping and (plan := self._engine.plan(now_us)) is not None:
            self._stepping = True
            actions.append(RunStep(plan))
        return actions

    def check(self) -> None:
        self._engine.check()
        self.check_hand_offs()
        self._ledger.check()
        self._mailboxes.check()
        alive = [attempt for attempt in self._attempts.values() if attempt.end is None]
        assert [attempt.key for attempt in alive] == [key for key in self._ledger]
        assert len(self._deadlines) == len(alive), "an attempt without a deadline"
        assert len(self._forget) == len(self._attempts) - len(alive), "an ended attempt never forgotten"
        assert len(self._buried) == len(self._tombstones), "a tombstone never forgotten"


def build(
    config: DecodeConfig, instance: InstanceKey, engine: EngineConfig, cost: StepCost, bytes_per_token: int
) -> DecodeWorker:
    """From plain values only, so that a recording can be replayed."""
    incoming = Incoming(IncomingConfig(bytes_per_token=bytes_per_token))
    return DecodeWorker(config, instance, Engine(engine, cost), incoming)
