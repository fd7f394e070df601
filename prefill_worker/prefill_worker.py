"""When a prompt is computed for its home, and how its KV leaves."""

from core.cost_model import StepCost
from core.deadlines import Deadlines
from core.ends import End
from core.events import event
from core.ledger import Ledger
from core.outcomes import FinishReason, Outcome
from core.request import AttemptKey
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Computed, Stage, StepOutcome, Token, refused_because
from engine.plan import StepResult
from engine.scheduler import place_us
from kv_transfer.actions import (
    Delivered,
    DropPacked,
    Failed,
    OutgoingAction,
    Pack,
    Planned,
    ReleaseBlocks,
    Send,
)
from kv_transfer.geometry import OutgoingConfig
from kv_transfer.outgoing import Outgoing
from kv_transfer.reasons import EndReason
from kv_transfer.types import ChunkHeader, Peer, TransferKey
from prefill_worker.actions import (
    Action,
    AskBind,
    Drawn,
    DropChunk,
    PackChunk,
    PrefillRequest,
    RunStep,
    SendChunk,
    SendFailed,
    SendFirst,
)
from prefill_worker.config import PrefillConfig
from prefill_worker.intake import Intake
from prefill_worker.prompts import Name, Phase, Prompt


class PrefillWorker:
    """One engine instance that computes prompts for homes elsewhere.

    Every event answers with what is to be done; the next step comes last. At most one is outstanding.
    """

    def __init__(self, config: PrefillConfig, engine: Engine, outgoing: Outgoing, cost: StepCost) -> None:
        self._config = config
        self._cost = cost
        self._engine = engine
        self._outgoing = outgoing
        self._intake = Intake(config.ahead_tokens)
        self._prompts: dict[Name, Prompt] = {}
        self._numbers: dict[int, Prompt] = {}
        self._by_key: dict[AttemptKey, Prompt] = {}
        self._ledger: Ledger[Name] = Ledger()
        self._deadlines: Deadlines[Name] = Deadlines()
        self._arrived = 0
        self._stepping = False
        self._drain_until_us: int | None = None
        self._placed: list[tuple[str, int]] = []

    # ---- homes ----

    @event
    def start(self, peer: Peer, request: PrefillRequest, now_us: int) -> list[Action]:
        """A home asks for a prompt. A doubled start is ignored."""
        name = (peer, request.transfer)
        if name in self._prompts:
            return self._answer([], now_us)
        self._placed.append((request.router, request.reservation))
        refusal = self._refusal(request)
        if refusal is not None:
            return self._answer([SendFailed(peer, request.transfer, refusal)], now_us)
        self._arrived += 1
        prompt = Prompt(self._arrived, peer, request, now_us)
        self._prompts[name] = prompt
        self._numbers[prompt.number] = prompt
        self._by_key[prompt.key] = prompt
        self._ledger.open(name, now_us)
        deadline_us = now_us + request.deadline_remaining_us
        self._deadlines.set(name, deadline_us)
        place = place_us(request.job, prompt.tokens, self._cost, now_us)
        self._intake.wait(prompt.number, peer, place, prompt.tokens)
        if not request.transfer_wanted:
            return self._answer([], now_us)
        prompt.owed_blocks = True
        lease_us = self._config.lease_us
        opened = self._outgoing.open(peer, request.transfer, prompt.tokens, lease_us, deadline_us, now_us)
        return self._answer(self._transfer_actions(opened, now_us), now_us)

    @event
    def bound(
        self, peer: Peer, transfer: TransferKey, first_token: int, lease_us: int, now_us: int
    ) -> list[Action]:
        """The home holds blocks: compute."""
        prompt = self._prompts.get((peer, transfer))
        actions: list[Action] = []
        if prompt is not None and prompt.phase is Phase.WAITING:
            actions += self._compute(prompt, now_us)
        answers = self._outgoing.bound(peer, transfer, first_token, lease_us, now_us)
        return self._answer(actions + self._transfer_actions(answers, now_us), now_us)

    @event
    def aborted(self, peer: Peer, transfer: TransferKey, now_us: int) -> list[Action]:
        """The home gave it up, in any phase; idempotent, and may overtake the start."""
        actions = self._transfer_actions(self._outgoing.peer_aborted(peer, transfer, now_us), now_us)
        prompt = self._prompts.get((peer, transfer))
        if prompt is not None:
            actions += self._end(prompt, End(Outcome.CANCELLED), now_us, tell=False)
        return self._answer(actions, now_us)

    @event
    def received(self, peer: Peer, transfer: TransferKey, chunk: int, now_us: int) -> list[Action]:
        answers = self._outgoing.acknowledged(peer, transfer, chunk, now_us)
        return self._answer(self._transfer_actions(answers, now_us), now_us)

    @event
    def home_heard(self, peer: Peer, now_us: int) -> list[Action]:
        """Any sign of life: a queue at the home is no reason to give up."""
        self._outgoing.heard(peer, now_us)
        return self._answer([], now_us)

    @event
    def home_lost(self, peer: Peer, now_us: int) -> list[Action]:
        """This start of a home is gone; nobody waits for its prompts."""
        actions = self._transfer_actions(self._outgoing.lost_peer(peer, now_us), now_us)
        for prompt in [p for p in self._prompts.values() if p.peer == peer]:
            actions += self._end(prompt, End(Outcome.WORKER_LOST), now_us, tell=False)
        return self._answer(actions, now_us)

    # ---- chunks ----

    @event
    def packed(self, peer: Peer, header: ChunkHeader, now_us: int) -> list[Action]:
        return self._answer(
            self._transfer_actions(self._outgoing.packed(peer, header, now_us), now_us), now_us
        )

    @event
    def sent(self, peer: Peer, header: ChunkHeader, delivered: bool, now_us: int) -> list[Action]:
        """The lane took the payload, or could not."""
        over = self._outgoing.sent if delivered else self._outgoing.send_failed
        return self._answer(
            self._transfer_actions(over(peer, header.key, header.chunk, now_us), now_us), now_us
        )

    @event
    def lane_failed(self, peer: Peer, now_us: int) -> list[Action]:
        return self._answer(self._transfer_actions(self._outgoing.lane_failed(peer, now_us), now_us), now_us)

    # ---- compute and time ----

    @event
    def step_done(self, result: StepResult, now_us: int) -> list[Action]:
        assert self._stepping
        self._stepping = False
        outcome = self._engine.step_done(result, now_us)
        actions: list[Action] = []
        for computed in outcome.computed:
            prompt = self._by_key.get(computed.key)
            if prompt is not None and prompt.phase is Phase.COMPUTING:
                actions += self._progressed(prompt, computed, outcome, now_us)
        for failed in outcome.failed:
            actions += self._end(self._by_key[failed.key], failed.end, now_us, tell=True)
        return self._answer(actions, now_us)

    @event
    def tick(self, now_us: int) -> list[Action]:
        """Whatever waited for time to pass; needs no new work to run (L4)."""
        actions = self._transfer_actions(self._outgoing.tick(now_us), now_us)
        for name in self._deadlines.due(now_us):
            actions += self._end(self._prompts[name], End(Outcome.DEADLINE_EXCEEDED), now_us, tell=True)
        if self._drain_until_us is not None and now_us >= self._drain_until_us:
            for prompt in list(self._prompts.values()):
                actions += self._end(prompt, End(Outcome.MOVED, "this worker is draining"), now_us, tell=True)
        return self._answer(actions, now_us)

    @event
    def drain(self, grace_us: int, now_us: int) -> list[Action]:
        """No new prompts; transfers finish within the grace."""
        self._drain_until_us = now_us + grace_us
        return self._answer([], now_us)

    @event
    def take_reservations(self, now_us: int) -> list[tuple[tuple[str, int], ...]]:
        """(router, number) of reservations seen, and of those that ended here, since the last report."""
        taken = tuple(self._placed)
        self._placed.clear()
        return [taken, ()]

    @property
    def next_deadline_us(self) -> int | None:
        times = (
            self._deadlines.next_us,
            self._outgoing.next_deadline_us,
            self._drain_until_us if self._prompts else None,
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
        """Prompts that are not being computed yet."""
        return self._intake.waiting + self._engine.waiting

    def queued_prefill_us(self) -> int:
        """Predicted time of all prompts here that are not computed yet; 0 where there are none."""
        tokens = self._intake.waiting_tokens
        return self._engine.queued_prefill_us() + (self._cost.prefill_us(tokens, 0) if tokens else 0)

    @property
    def transferring(self) -> int:
        return self._outgoing.transferring

    # ---- one prompt ----

    def _refusal(self, request: PrefillRequest) -> End | None:
        if self.draining:
            return End(Outcome.MOVED, "this worker is draining")
        if self._ledger.live >= self._config.live_max:
            return End(Outcome.WORKER_FULL, f"this worker has {self._config.live_max} prompts already")
        if request.job.key in self._by_key:
            return End(Outcome.DUPLICATE_REQUEST, f"attempt {request.job.key} is here already")
        return None

    def _compute(self, prompt: Prompt, now_us: int) -> list[Action]:
        # At the place it has had since it arrived: whom it waited behind does not overtake it again.
        refused = self._engine.add(prompt.request.job, Stage.PREFILL, prompt.arrived_us)
        if refused is not None:
            end = End(refused, refused_because(prompt.request.job, refused))
            return self._end(prompt, end, now_us, tell=True)
        prompt.phase = Phase.COMPUTING
        prompt.started_us = now_us
        self._intake.compute(prompt.number)
        return []

    def _progressed(
        self, prompt: Prompt, computed: Computed, outcome: StepOutcome, now_us: int
    ) -> list[Action]:
        """Chunks leave while later ones compute; the first tokens leave before the last chunk does."""
        actions: list[Action] = []
        transfer = prompt.request.transfer
        self._intake.computed(prompt.number, prompt.tokens - computed.tokens)
        if computed.final:
            tokens = [token for token in outcome.tokens if token.key == prompt.key]
            actions.append(self._first(prompt, tokens, now_us))
            self._intake.done(prompt.number)
            limit = prompt.request.job.params.max_tokens
            if not prompt.request.transfer_wanted or all(_finish(token, limit) for token in tokens):
                return actions + self._end(prompt, End(Outcome.COMPLETED), now_us, tell=False)
            prompt.phase = Phase.SHIPPING
        answers = self._outgoing.computed(prompt.peer, transfer, computed.tokens, now_us)
        return actions + self._transfer_actions(answers, now_us)

    def _first(self, prompt: Prompt, tokens: list[Token], now_us: int) -> SendFirst:
        limit = prompt.request.job.params.max_tokens
        drawn = tuple(Drawn(token.choice, token.sampled, _finish(token, limit)) for token in tokens)
        chunks = self._outgoing.chunks(prompt.peer, prompt.request.transfer) or 0
        cached, compute_us = tokens[0].cached_tokens, now_us - prompt.started_us
        return SendFirst(prompt.peer, prompt.request.transfer, drawn, cached, chunks, compute_us)

    def _end(self, prompt: Prompt, end: End, now_us: int, *, tell: bool) -> list[Action]:
        """Exactly once per prompt (L5). Blocks that are being packed stay until they are not."""
        name = (prompt.peer, prompt.request.transfer)
        if not self._ledger.end(name, end.outcome):
            return []
        prompt.phase = Phase.ENDED
        self._deadlines.clear(name)
        self._intake.done(prompt.number)
        self._engine.cancel(prompt.key, now_us)
        aborted = self._outgoing.abort(prompt.peer, prompt.request.transfer, EndReason.CANCELLED, now_us)
        actions: list[Action] = [SendFailed(prompt.peer, prompt.request.transfer, end)] if tell else []
        actions += self._transfer_actions(aborted, now_us)
        self._forget_if_over(prompt)
        return actions

    def _forget_if_over(self, prompt: Prompt) -> None:
        """Idempotent: the last block and the end may come in either order, or in one event."""
        if prompt.phase is not Phase.ENDED or prompt.owed_blocks or prompt.number not in self._numbers:
            return
        del self._prompts[(prompt.peer, prompt.request.transfer)]
        del self._numbers[prompt.number]
        del self._by_key[prompt.key]

    def _transfer_actions(self, answers: list[OutgoingAction], now_us: int) -> list[Action]:
        """What the transfer table decided, in this worker's terms."""
        actions: list[Action] = []
        for answer in answers:
            match answer:
                case Pack(peer, key, chunk, start, stop, _):
                    owner = self._prompts[(peer, key)].key
                    # All blocks of a prompt are taken when its compute begins, and are held by now.
                    self._engine.pin(owner)
                    table = self._engine.block_table(owner)
                    actions.append(PackChunk(peer, key, chunk, start, stop, table))
                case Send(peer, header):
                    actions.append(SendChunk(peer, header))
                case DropPacked(peer, header):
                    actions.append(DropChunk(peer, header))
                case ReleaseBlocks(peer, key):
                    self._release(peer, key, now_us)
                case Delivered(peer, key):
                    actions += self._over(peer, key, End(Outcome.COMPLETED), now_us, tell=False)
                case Failed(peer, key, reason, tell_peer):
                    late = reason is EndReason.DEADLINE_EXCEEDED
                    outcome = Outcome.DEADLINE_EXCEEDED if late else Outcome.TRANSFER_FAILED
                    end = End(outcome, f"KV transfer: {reason}")
                    actions += self._over(peer, key, end, now_us, tell=tell_peer)
                case Planned():
                    pass  # the number of chunks travels with the first tokens
        return actions

    def _over(self, peer: Peer, key: TransferKey, end: End, now_us: int, *, tell: bool) -> list[Action]:
        prompt = self._prompts.get((peer, key))
        return [] if prompt is None else self._end(prompt, end, now_us, tell=tell)

    def _release(self, peer: Peer, key: TransferKey, now_us: int) -> None:
        """Nothing reads the blocks any more; they may serve the prefix cache or somebody else."""
        prompt = self._prompts.get((peer, key))
        if prompt is None or not prompt.owed_blocks:
            return
        prompt.owed_blocks = False
        self._engine.unpin(prompt.key)
        self._engine.release(prompt.key, now_us)
        self._forget_if_over(prompt)

    def _answer(self, actions: list[Action], now_us: int) -> list[Action]:
        """What every event ends with: blocks are asked for what is near, then the next step."""
        for number in self._intake.next_to_ask():
            prompt = self._numbers[number]
            if prompt.request.transfer_wanted:
                actions.append(AskBind(prompt.peer, prompt.request.transfer))
            else:
                actions += self._compute(prompt, now_us)
        if not self._stepping and (plan := self._engine.plan(now_us)) is not None:
            self._stepping = True
            actions.append(RunStep(plan))
        return actions

    def check(self) -> None:
        self._engine.check()
        self._intake.check()
        self._outgoing.check()
        self._ledger.check()
        alive = [name for name, prompt in self._prompts.items() if prompt.phase is not Phase.ENDED]
        assert sorted(alive) == sorted(self._ledger), "a prompt without an end"
        assert len(self._deadlines) == len(alive), "a prompt without a deadline"
        assert len(self._prompts) == len(self._numbers) == len(self._by_key)
        ended = [prompt for prompt in self._prompts.values() if prompt.phase is Phase.ENDED]
        assert all(prompt.owed_blocks for prompt in ended), "an ended prompt that nothing holds"
        assert self.waiting or self._engine.running or not self.queued_prefill_us(), "work of no prompt"


def _finish(token: Token, max_tokens: int) -> FinishReason | None:
    """How the choice ended with its first token; that this pool is full does not end it, its home decodes."""
    if token.finish is FinishReason.LENGTH and token.index + 1 < max_tokens:
        return None
    return token.finish


def build(
    config: PrefillConfig,
    engine: EngineConfig,
    cost: StepCost,
    bytes_per_token: int,
    chunk_tokens: int = 256,
    whole_prompt_tokens: int = 512,
) -> PrefillWorker:
    """From plain values only, so that a recording can be replayed."""
    outgoing = Outgoing(
        OutgoingConfig(
            bytes_per_token=bytes_per_token,
            chunk_tokens=chunk_tokens,
            whole_prompt_tokens=whole_prompt_tokens,
        )
    )
    return PrefillWorker(config, Engine(engine, cost), outgoing, cost)
