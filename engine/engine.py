"""An engine's jobs from acceptance to last token."""

from collections import Counter

from core.cost_model import StepCost
from core.outcomes import Outcome
from core.request import AttemptKey
from engine.answers import Answers
from engine.assignment import Assignment
from engine.config import EngineConfig
from engine.engine_view import EngineView
from engine.intake import Intake
from engine.job import Bound, Computed, Failed, FirstToken, Job, Stage, StepOutcome, Token
from engine.millisecond_ledger import WallTime
from engine.plan import StepPlan, StepResult
from engine.prefix_cache import PrefixChanges
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.sequence_blocks import SequenceBlocks
from engine.step_times import StepTimes


class Engine(EngineView):
    """The jobs of one model's pool: what each may do next, what came of each step."""

    def __init__(self, config: EngineConfig, cost: StepCost) -> None:
        copy_back_us = 2 * config.swap_block_us
        has_tier = copy_back_us * 1000 < config.block_size * cost.token_ns
        blocks = SequenceBlocks(config, has_tier=has_tier)
        scheduler = Scheduler(config, cost, blocks)
        times = StepTimes(cost, scheduler.prediction, scheduler.speculation, config.swap_block_us)
        super().__init__(config, cost, blocks, scheduler, times)
        self._intake = Intake(config, cost)
        self._answers = Answers(self._intake, self._room, self._blocks, self._assignments, self._end)
        self._pinned: dict[AttemptKey, list[int]] = {}
        self._next_step = 0
        self._outstanding: StepPlan | None = None
        self._stepping: list[Sequence] = []
        """The sequence of each row of the outstanding plan."""
        self._leaving: list[Sequence] = []
        """Ended while a step runs: it may still write to their blocks."""

    # What a job goes through

    def add(self, job: Job, stage: Stage, now_us: int) -> Outcome | None:
        """Take a job on; a refusal leaves no trace.

        Refuses INVALID_ARGUMENT (see Job; a grammar where the backend follows none), DUPLICATE_REQUEST,
        PROMPT_TOO_LONG (prompt, output so far and one more token exceed the model's positions or the
        whole pool) and WORKER_FULL.
        """
        self._pass_time(now_us)
        if job.key in self._assignments:
            return Outcome.DUPLICATE_REQUEST
        if (refusal := self._intake.refusal(job, stage)) is not None:
            return refusal
        if len(self._assignments) >= self.config.max_jobs:
            return Outcome.WORKER_FULL
        sequence = self._intake.trunk(job, stage, now_us)
        self._assignments[job.key] = Assignment(job, stage, sequence)
        if stage is not Stage.DECODE:
            self._room.enqueue(sequence)
        return None

    def bind(self, key: AttemptKey, now_us: int) -> Bound | None:
        """DECODE: take all blocks the job's KV and its next token need. None: not yet, ask again.

        Asked again after success it answers the same. None too for a job that is not here (any more).
        """
        self._pass_time(now_us)
        sequence = self._decode_sequence(key)
        if sequence is None:
            return None
        if sequence.phase is Phase.UNBOUND:
            may_displace = self._outstanding is None
            if not self._scheduler.bind(sequence, may_displace=may_displace):
                return None
        return Bound(sequence.block_table, sequence.computed)

    def arrive(self, key: AttemptKey, first: tuple[FirstToken, ...], now_us: int) -> tuple[Token, ...]:
        """DECODE: every token's KV is in the bound blocks; decode from these first tokens, one per choice.

        Returns them as output tokens, with a finish reason where the first token was the last. Nothing
        for a job that is not here or has arrived before. ValueError if it is not bound, or `first` does
        not name each choice once, in the order of the job.
        """
        self._pass_time(now_us)
        sequence = self._decode_sequence(key)
        if sequence is None:
            return ()
        if sequence.phase is not Phase.BOUND:
            raise ValueError(f"arrive: {key} is not bound")
        if tuple(token.choice for token in first) != sequence.draws:
            raise ValueError(f"first: {key} needs one token for each choice of {sequence.draws}")
        self._room.start(sequence)
        sequence.computed = sequence.computed_most = len(sequence.tokens)
        self._blocks.register(sequence)
        return tuple(self._answers.draw(sequence, tuple(token.sampled for token in first)))

    def to_local(self, key: AttemptKey, now_us: int) -> None:
        """DECODE: its KV will not come; compute it here. Blocks a transfer still pins stay in flight.

        Nothing changes for a job that is not here or whose KV has arrived.
        """
        self._pass_time(now_us)
        sequence = self._decode_sequence(key)
        if sequence is None:
            return
        assignment = self._assignments[key]
        self._end(sequence)
        assignment.stage = Stage.FULL
        assignment.sequences = [self._intake.renewed(sequence)]
        self._room.enqueue(assignment.sequences[0])

    def cancel(self, key: AttemptKey, now_us: int) -> None:
        """End a job in any phase; idempotent.

        Blocks free at once, or when the step that runs ends, or when the transfer that pins them does.
        """
        self._pass_time(now_us)
        assignment = self._assignments.pop(key, None)
        if assignment is not None:
            for sequence in assignment.sequences:
                self._end(sequence)

    def release(self, key: AttemptKey, now_us: int) -> None:
        """PREFILL: the held blocks have served; idempotent, and in any other phase the same as cancel."""
        self.cancel(key, now_us)

    def pin(self, key: AttemptKey) -> None:
        """A transfer reads or writes this job's blocks from now on; idempotent. It must have some."""
        if key in self._pinned:
            return
        sequences = self._assignments[key].sequences
        blocks = list(dict.fromkeys(block for sequence in sequences for block in sequence.blocks))
        assert blocks, f"{key} has no blocks to transfer"
        self._blocks.manager.pin(blocks)
        self._pinned[key] = blocks
        for sequence in sequences:
            sequence.pinned = True

    def unpin(self, key: AttemptKey) -> None:
        """The transfer is terminal; idempotent, and may come after the job's end."""
        self._blocks.manager.unpin(self._pinned.pop(key, ()))
        if (assignment := self._assignments.get(key)) is not None:
            for sequence in assignment.sequences:
                sequence.pinned = False

    # Steps

    def plan(self, now_us: int) -> StepPlan | None:
        """The next step, or None if nothing can be computed now. At most one is outstanding."""
        assert self._outstanding is None, "plan: a step is outstanding"
        self._pass_time(now_us)
        rows = self._scheduler.plan()
        if not rows and not self._blocks.owes_swaps:
            self._check_progress()
            self._blocks.end_plan()
            return None
        work = self._blocks.take_step_work()
        self._next_step += 1
        self._stepping = [sequence for sequence, _ in rows]
        self._outstanding = StepPlan(
            self._next_step,
            work.zero,
            work.copies,
            tuple(sequence.row(count) for sequence, count in rows),
            work.swap_out,
            work.swap_in,
        )
        return self._outstanding

    def step_done(self, result: StepResult, now_us: int) -> StepOutcome:
        """Take in what the outstanding step drew; jobs that could not draw are over."""
        plan = self._outstanding
        assert plan is not None and result.step == plan.step, (
            f"step_done: step {result.step} is not outstanding"
        )
        assert len(result.sampled) == len(plan.rows)
        self._times.step(plan, self._stepping, result, now_us)
        self._outstanding = None
        self._blocks.end_step()
        tokens: list[Token] = []
        computed: list[Computed] = []
        failures = dict(result.failures)
        failed: dict[AttemptKey, str] = {}
        for number, (sequence, row) in enumerate(zip(self._stepping, plan.rows, strict=True)):
            drawn = result.sampled[number]
            sequence.in_step = False
            if sequence.phase is Phase.ENDED:
                continue
            if number in failures:
                failed[sequence.job.key] = failures[number]
                continue
            assert len(drawn) == len(row.samples) or row.drafts
            self._answers.advance(sequence, row, drawn, tokens, computed)
        self._stepping = []
        for key in failed:
            self.cancel(key, now_us)
        for sequence in self._leaving:
            self._blocks.free(sequence)
        self._leaving = []
        failures_of_jobs = tuple(Failed(key, reason) for key, reason in failed.items())
        return StepOutcome(tuple(tokens), tuple(computed), failures_of_jobs)

    # What others take

    def wall_time(self, now_us: int) -> WallTime:
        """Who owned the time since the first event; a step that runs is not in it yet."""
        self._pass_time(now_us)
        return self._times.ledger.wall_time()

    def take_prefix_changes(self) -> PrefixChanges:
        """What the prefix cache gained and lost since the last call."""
        cache = self._blocks.cache
        return cache.take_changes() if cache is not None else PrefixChanges((), ())

    def check(self) -> None:
        """L1, L2, L3 and L11 for this engine: every reference and pin has an owner that is listed here."""
        self._blocks.check()
        self._scheduler.check()
        self._times.check()
        sequences = [s for assignment in self._assignments.values() for s in assignment.sequences]
        references = Counter(block for sequence in [*sequences, *self._leaving] for block in sequence.blocks)
        references.update(self._blocks.step_references())
        pins = Counter(block for blocks in self._pinned.values() for block in blocks)
        self._blocks.manager.check_owners(references, pins)
        for sequence in sequences:
            assert len(sequence.tokens) <= self.config.positions_max
            assert sequence.phase is not Phase.BOUND or not sequence.in_step
            assert tuple(sequence.blocks) == sequence.block_table

    # Inside

    def _decode_sequence(self, key: AttemptKey) -> Sequence | None:
        """The sequence of a DECODE job whose KV has not arrived."""
        assignment = self._assignments.get(key)
        if assignment is None or assignment.stage is not Stage.DECODE:
            return None
        sequence = assignment.sequences[0]
        return sequence if sequence.phase in (Phase.UNBOUND, Phase.BOUND) else None

    def _end(self, sequence: Sequence) -> None:
        self._room.remove(sequence, Phase.ENDED)
        if self._outstanding is None:
            self._blocks.free(sequence)
        else:
            self._leaving.append(sequence)

    def _pass_time(self, now_us: int) -> None:
        """Before an event changes anything: the time until now belongs to what was so until now."""
        if self._outstanding is None:
            is_stalled = self._room.bound > 0 or len(self._scheduler.line) > 0
            self._times.ledger.wait(now_us, is_stalled=is_stalled)

    def _check_progress(self) -> None:
        """L7: with nothing to wait for, whoever waits is scheduled."""
        counts = self.counts()
        if counts.held == counts.in_flight == 0:
            assert not self._scheduler.line, "pending work and a free pool, and nothing scheduled"
