"""What the next step computes."""

from collections import Counter, deque

from core.cost_model import StepCost
from core.request import TenantClass
from engine.charges import Charges, Rows
from engine.class_shares import ClassShares
from engine.config import EngineConfig
from engine.job import Job, Stage
from engine.prefill_burst import PrefillBurst
from engine.room import Room
from engine.sequence import Phase, Sequence
from engine.sequence_blocks import SequenceBlocks
from engine.speculation import Speculation
from engine.step_budget import StepBudget
from engine.step_prediction import StepPrediction
from engine.tenant_turns import TenantTurns
from engine.waiting_line import WaitingLine

CLASS_DELAY_US = {
    TenantClass.INTERACTIVE: 0,
    TenantClass.STANDARD: 2_000_000,
    TenantClass.BATCH: 60_000_000,
}
"""How much later than it did a job counts as having arrived, where places of several classes are compared."""
SHORT_FIRST_WEIGHT = 4
"""A job counts as having arrived this many of its own prefill times later: short ones overtake, boundedly."""
LONG_PARTS = 4
"""Beside short prompts, the long ones of a class get one part in so many of a step's chunks."""


def place_us(job: Job, known_tokens: int, cost: StepCost, now_us: int) -> int:
    """A job's place, fixed on arrival: later arrivals end up behind it, so nobody starves."""
    prefill_us = cost.prefill_us(known_tokens, 0)
    return now_us + CLASS_DELAY_US[job.tenant_class] + SHORT_FIRST_WEIGHT * prefill_us


class Scheduler:
    """Iteration-level: every step first the decode rows, then chunks and admissions.

    Chunks go by class, within a class to short prompts before long ones, of which each class has a
    few under way at a time, that always get a part of the step. A long one enters among the short ones
    when it is owed that (WaitingLine), so nobody starves where slots are short.
    """

    def __init__(self, config: EngineConfig, cost: StepCost, blocks: SequenceBlocks) -> None:
        self._config = config
        self._blocks = blocks
        self.prediction = StepPrediction(cost)
        self.speculation = Speculation(config, cost)
        self._burst = PrefillBurst(config.prefill_burst_us, config.itl_target_us)
        self._shares = ClassShares()
        self._turns = {tenant_class: TenantTurns() for tenant_class in TenantClass}
        self.line = WaitingLine(self._shares, self._turns)
        self._charges = Charges(cost, self._shares, self._turns, self.line)
        self.room = Room(config, blocks, self.line, self._shares, self.prediction)
        self._blocked: Sequence | None = None
        """The first in line that the last plan had no room for."""
        self._partials: Counter[TenantClass] = Counter()
        """By class, long prompts computed in part, as of the plan being made."""
        self._claim: Sequence | None = None
        """The first of those that asked to bind since the last plan and found no room."""

    def bind(self, sequence: Sequence, *, may_displace: bool) -> bool:
        """Give an UNBOUND sequence its blocks and slots, unless an earlier one already waits for room.

        Lower classes give way, but not while a step runs: it still writes to their blocks.
        """
        assert sequence.phase is Phase.UNBOUND
        sequence.cost_us = self.prediction.prefill_us(len(sequence.tokens), 0)
        blocked = self._blocked
        if blocked is not None and blocked.phase is Phase.WAITING and self._is_behind(sequence, blocked):
            return False
        if may_displace:
            self.room.displace_for(sequence, hold=True)
        if self.room.bind(sequence):
            self.line.bound(sequence)
            return True
        if self._claim is None or self._is_behind(self._claim, sequence):
            self._claim = sequence
        return False

    def plan(self) -> Rows:
        """The rows of the next step."""
        config = self._config
        budget = StepBudget(config.max_step_tokens, config.itl_target_us, self.prediction, self._burst)
        rows: Rows = []
        begun = [sequence for sequence in self.room.running if sequence.pending > 1]
        self._partials = Counter(sequence.job.tenant_class for sequence in begun if self._is_long(sequence))
        self._shares.begin_step(self.line.oldest_us(begun))
        first = self._first_for_room()
        self._blocked = None
        self._make_room(first)
        self._decode_rows(budget, rows)
        begun = [sequence for sequence in self.room.running if sequence.pending > 1]
        # Where prompts wait for compute, a draft takes as much of theirs as the row that it saves would.
        if not begun and (first is not None or not self.line):
            self._draft(budget, rows)
        budget.begin_prefill()
        for rank in TenantClass:
            if begun or self.line:
                self._class_rows(rank, begun, budget, rows, first)
        budget.settle()
        self._charges.settle(rows, self.room.running)
        return rows

    def check(self) -> None:
        self.room.check()

    # Rows

    def _decode_rows(self, budget: StepBudget, rows: Rows) -> None:
        decoding = [sequence for sequence in self.room.running if sequence.pending == 1]
        # Only where not everybody can have a row or a block does it matter who asks first.
        if len(decoding) > min(self._config.max_step_tokens, self._blocks.manager.available):
            decoding.sort(key=self.line.rank)
        for sequence in decoding:
            if budget.full:
                return
            # An earlier row may have preempted it.
            if sequence.phase is Phase.RUNNING and self.room.grow(sequence, len(sequence.tokens)):
                # The last token of a prompt that is handed over is no decode.
                is_awaited = sequence.stage is not Stage.PREFILL
                budget.decode(len(sequence.tokens), is_awaited=is_awaited)
                self._schedule(sequence, 1, rows)

    def _draft(self, budget: StepBudget, rows: Rows) -> None:
        """Make verify rows of decode rows, once all have theirs; nobody gives way for a draft."""
        decoding = [sequence for sequence, _ in rows]
        drafted = self.speculation.drafts(decoding, budget.decode_ns, budget.part_tokens(2))
        if not drafted:
            return
        places = {sequence.number: place for place, sequence in enumerate(decoding)}
        for sequence, drafts in drafted:
            drafts = drafts[: self._blocks.grow_for_trial(sequence, len(drafts))]
            if drafts:
                sequence.drafts = drafts
                budget.trial(len(sequence.tokens), len(drafts))
                rows[places[sequence.number]] = (sequence, 1 + len(drafts))
                self._charges.row(sequence, sequence.computed + 1, len(drafts))

    def _class_rows(
        self,
        rank: TenantClass,
        begun: list[Sequence],
        budget: StepBudget,
        rows: Rows,
        first: Sequence | None,
    ) -> None:
        """Chunks of one class: the short prompts leave a part to the long ones, if there are any.

        Also of what they take of savings, or they alone would get all that their class does.
        """
        started = [
            sequence for sequence in begun if not sequence.in_step and self.line.rank(sequence)[0] == rank
        ]
        shorts = deque(sequence for sequence in started if not self._is_long(sequence))
        longs = deque(sequence for sequence in started if self._is_long(sequence))
        has_long = bool(longs) or self._head(rank, is_long=True) is not None
        saved_ns = budget.saved_ns
        self._lane_rows(rank, False, shorts, budget, rows, first, LONG_PARTS if has_long else 0)
        if has_long:
            budget.open_up((saved_ns - budget.saved_ns) / LONG_PARTS)
        self._lane_rows(rank, True, longs, budget, rows, first, 0)

    def _lane_rows(
        self,
        rank: TenantClass,
        is_long: bool,
        started: deque[Sequence],
        budget: StepBudget,
        rows: Rows,
        first: Sequence | None,
        keep_parts: int,
    ) -> None:
        """Started prompts and waiting ones, merged by place; who finds no room closes the door behind."""
        keep_ns = budget.part_ns(keep_parts) if keep_parts else 0.0
        keep_tokens = budget.part_tokens(keep_parts) if keep_parts else 0
        while not budget.spent:
            head = self._head(rank, is_long=is_long)
            if head is not None and (not started or self.line.rank(head) < self.line.rank(started[0])):
                if not self._may_enter(head, first, rows) or not self._admit(head):
                    self._blocked = head
                    continue
                sequence = head
            elif started:
                sequence = started.popleft()
                if sequence.phase is not Phase.RUNNING:
                    continue
            else:
                return
            start = sequence.computed
            may_burst = not is_long and self._may_burst(sequence)
            count = budget.chunk(
                start,
                sequence.pending,
                keep_ns=keep_ns,
                keep_tokens=keep_tokens,
                may_burst=may_burst,
                at_once=may_burst and start <= (sequence.cached_tokens or 0),
            )
            if not count:
                return
            if self.room.grow(sequence, start + count):
                self._schedule(sequence, count, rows)

    def _schedule(self, sequence: Sequence, count: int, rows: Rows) -> None:
        sequence.in_step = True
        rows.append((sequence, count))
        self._charges.row(sequence, sequence.computed, count)

    def _turns_of(self, sequence: Sequence) -> TenantTurns:
        return self._turns[sequence.job.tenant_class]

    # Room

    def _make_room(self, first: Sequence | None) -> None:
        """Admit who lower classes must give way for, no more of them than a step or so can start."""
        begun_us = 0
        while self._config.itl_target_us == 0 or begun_us <= self._config.itl_target_us:
            head = self._best_head()
            if head is None or self._is_behind(head, first):
                return
            if not self.room.displace_for(head, hold=False) or not self._admit(head):
                return
            begun_us += head.cost_us

    def _best_head(self) -> Sequence | None:
        heads = map(self._best_of_class, TenantClass)
        return next((head for head in heads if head is not None), None)

    def _best_of_class(self, rank: TenantClass) -> Sequence | None:
        """A long one waits until it is owed the room, and stands among the short ones; or it gave way."""
        short, long = self._head(rank, is_long=False), self._head(rank, is_long=True)
        if short is None or long is None or not long.was_preempted:
            return short or long
        return min(short, long, key=self.line.rank)

    def _admit(self, head: Sequence) -> bool:
        if not self.room.admit(head):
            return False
        self._turns_of(head).chosen(head.job.tenant)
        self._partials[head.job.tenant_class] += head.pending > 1 and self._is_long(head)
        return True

    def _head(self, rank: TenantClass, *, is_long: bool) -> Sequence | None:
        if self._blocked is not None:
            return None
        head = self.line.head(is_long=is_long, rank=rank, may_begin_long=self._may_begin_long)
        return None if is_long and head is not None and self._is_anothers_room(head, rank) else head

    def _is_anothers_room(self, long: Sequence, rank: TenantClass) -> bool:
        """Whether it would take the last from a short one whose tenant has had less; a preempted one may."""
        short = None if long.was_preempted else self.line.head(is_long=False, rank=rank, may_begin_long=())
        if short is None or short.job.tenant_class is not long.job.tenant_class:
            return False
        turns = self._turns_of(long)
        return turns[short.job.tenant] < turns[long.job.tenant] and not self.room.fit_both(long, short)

    def _may_enter(self, head: Sequence, first: Sequence | None, rows: Rows) -> bool:
        """Not past one who waits for room, unless nothing would be done otherwise."""
        is_idle = not rows and not self._blocks.owes_swaps and not self.room.running
        return is_idle or not self._is_behind(head, first)

    def _first_for_room(self) -> Sequence | None:
        """Who comes first of those that lacked room: last plan's head, or one that asked to bind since.

        Both hold for one plan: who still wants to bind asks again.
        """
        claim, self._claim = self._claim, None
        wanting = []
        if claim is not None and claim.phase is Phase.UNBOUND:
            wanting.append(claim)
        blocked = self._blocked
        if blocked is not None and blocked.phase is Phase.WAITING and self._may_start(blocked):
            wanting.append(blocked)
        return min(wanting, key=self.line.rank, default=None)

    def _is_behind(self, sequence: Sequence, first: Sequence | None) -> bool:
        return first is not None and self.line.rank(sequence) > self.line.rank(first)

    def _is_long(self, sequence: Sequence) -> bool:
        """By what is left of it, so that a long prompt ends as a short one."""
        known = len(sequence.tokens)
        left_us = self.prediction.prefill_us(known, known - sequence.uncomputed)
        return left_us > self._config.long_prefill_us

    def _may_burst(self, sequence: Sequence) -> bool:
        """Unless it was long when nothing was computed but what the cache had; batch work has the time."""
        whole_us = self.prediction.prefill_us(len(sequence.tokens), sequence.cached_tokens or 0)
        return whole_us <= self._config.long_prefill_us and sequence.job.tenant_class < TenantClass.BATCH

    def _may_start(self, sequence: Sequence) -> bool:
        return sequence.job.tenant_class in self._may_begin_long or not self._is_long(sequence)

    @property
    def _may_begin_long(self) -> list[TenantClass]:
        return [own for own in TenantClass if self._partials[own] < self._config.long_partials_max]
