"""What the next step computes, and who gives way when memory or slots are short."""

from bisect import bisect_left, insort
from collections import deque

from core.cost_model import StepCost
from core.request import TenantClass
from engine.config import EngineConfig
from engine.job import Job
from engine.sequence import Phase, Sequence
from engine.sequence_blocks import SequenceBlocks
from engine.step_budget import StepBudget

CLASS_DELAY_US = {
    TenantClass.INTERACTIVE: 0,
    TenantClass.STANDARD: 2_000_000,
    TenantClass.BATCH: 60_000_000,
}
"""How much later than it did a job counts as having arrived; also the longest a class is passed over."""
SHORT_FIRST_WEIGHT = 4
"""A job counts as having arrived this many of its own prefill times later: short ones overtake, boundedly."""


def place_us(job: Job, known_tokens: int, cost: StepCost, now_us: int) -> int:
    """A job's place in the queue, fixed on arrival: later arrivals end up behind it, so nobody starves."""
    prefill_us = cost.prefill_us(known_tokens, 0)
    return now_us + CLASS_DELAY_US[job.tenant_class] + SHORT_FIRST_WEIGHT * prefill_us


class Scheduler:
    """Iteration-level: every step first the decode rows, then prefill chunks and admissions by place."""

    def __init__(self, config: EngineConfig, blocks: SequenceBlocks) -> None:
        self._config = config
        self._blocks = blocks
        self.waiting: list[Sequence] = []
        """By order; no blocks."""
        self.running: list[Sequence] = []
        """By order."""
        self._slots_used = 0
        self._blocked: Sequence | None = None
        """The head of the queue that the last plan had no room for."""
        self._claim: Sequence | None = None
        """The first in order of those that asked to bind since the last plan and found no room."""
        self.preemptions = 0

    def enqueue(self, sequence: Sequence) -> None:
        sequence.phase = Phase.WAITING
        insort(self.waiting, sequence, key=_order)

    def bind(self, sequence: Sequence, *, may_displace: bool) -> bool:
        """Give an UNBOUND sequence its blocks and slots, unless an earlier one already waits for room.

        Lower classes give way, but not while a step runs: it still writes to their blocks.
        """
        assert sequence.phase is Phase.UNBOUND
        if self._earlier_is_blocked(sequence):
            return False
        if may_displace:
            self._displace_for(sequence)
        if not self._slots_fit(sequence) or not self._blocks.bind(sequence, self._keep()):
            if self._claim is None or sequence.order < self._claim.order:
                self._claim = sequence
            return False
        sequence.phase = Phase.BOUND
        self._slots_used += sequence.slots
        return True

    def start(self, sequence: Sequence) -> None:
        """A BOUND sequence's KV has arrived, or a fork got its blocks and a slot: it runs."""
        if sequence.phase is not Phase.BOUND:
            self._slots_used += sequence.slots
        sequence.phase = Phase.RUNNING
        insort(self.running, sequence, key=_order)

    def remove(self, sequence: Sequence, phase: Phase) -> None:
        """Out of every queue, its slots free; its blocks are the caller's to free."""
        if sequence.phase is Phase.WAITING:
            _remove(self.waiting, sequence)
        elif sequence.phase is Phase.RUNNING:
            _remove(self.running, sequence)
        if sequence.phase in (Phase.RUNNING, Phase.BOUND):
            self._slots_used -= sequence.slots
        sequence.phase = phase

    def plan(self) -> list[tuple[Sequence, int]]:
        """The rows of the next step, as (sequence, tokens to feed)."""
        budget = StepBudget(self._config.max_step_tokens)
        rows: list[tuple[Sequence, int]] = []
        claim = self._take_claim()
        while self.waiting and not _is_behind(self.waiting[0], claim):
            if not self._displace_for(self.waiting[0]) or not self._admit(self.waiting[0]):
                break
        self._decode_rows(budget, rows)
        self._prefill_rows(budget, rows, claim)
        return rows

    def check(self) -> None:
        for queue, phase in ((self.waiting, Phase.WAITING), (self.running, Phase.RUNNING)):
            assert all(sequence.phase is phase for sequence in queue)
            assert [sequence.order for sequence in queue] == sorted(sequence.order for sequence in queue)
        assert all(not sequence.blocks and not sequence.computed for sequence in self.waiting)
        assert (
            0
            <= sum(sequence.slots for sequence in self.running)
            <= self._slots_used
            <= self._config.max_running
        )

    def _decode_rows(self, budget: StepBudget, rows: list[tuple[Sequence, int]]) -> None:
        for sequence in [sequence for sequence in self.running if sequence.pending == 1]:
            if budget.spent:
                return
            # An earlier row may have preempted it.
            if sequence.phase is Phase.RUNNING and self._grow(sequence, len(sequence.tokens)):
                _schedule(sequence, budget.take(1), rows)

    def _prefill_rows(
        self, budget: StepBudget, rows: list[tuple[Sequence, int]], claim: Sequence | None
    ) -> None:
        """Started prompts and waiting ones, merged by place; the first that finds no room closes the door.

        So does a claim to those behind it, unless the step would then be empty.
        """
        started = deque(sequence for sequence in self.running if sequence.pending > 1)
        self._blocked = None
        while not budget.spent:
            head = self.waiting[0] if self.waiting and self._blocked is None else None
            if head is not None and (not started or head.order < started[0].order):
                is_claimed = _is_behind(head, claim) and bool(rows or started)
                if not is_claimed and self._admit(head):
                    _schedule(head, budget.take(head.pending), rows)
                else:
                    self._blocked = head
            elif started:
                self._chunk(started.popleft(), budget, rows)
            else:
                return

    def _chunk(self, sequence: Sequence, budget: StepBudget, rows: list[tuple[Sequence, int]]) -> None:
        if sequence.phase is not Phase.RUNNING or sequence.in_step:
            return
        count = budget.take(sequence.pending)
        if self._grow(sequence, sequence.computed + count):
            _schedule(sequence, count, rows)

    def _admit(self, sequence: Sequence) -> bool:
        if not self._slots_fit(sequence) or not self._blocks.admit(sequence, self._keep()):
            return False
        _remove(self.waiting, sequence)
        self.start(sequence)
        return True

    def _take_claim(self) -> Sequence | None:
        """A claim holds for one plan: whoever still wants to bind asks again."""
        claim, self._claim = self._claim, None
        return claim if claim is not None and claim.phase is Phase.UNBOUND else None

    def _displace_for(self, sequence: Sequence) -> bool:
        """Preempt, as far as needed, lower classes whose place is behind; False if that is not to be had."""
        victims = [
            other
            for other in self.running
            if other.preemptible
            and other.job.tenant_class > sequence.job.tenant_class
            and other.order > sequence.order
        ]
        slots = self._config.max_running - self._slots_used + sum(victim.slots for victim in victims)
        if not victims or slots < sequence.slots or not self._would_free_enough(victims, sequence):
            return False
        victims.sort(key=_sacrifice)
        while victims and not self._has_room(sequence):
            self._preempt(victims.pop())
        return True

    def _would_free_enough(self, victims: list[Sequence], sequence: Sequence) -> bool:
        """What victims share with others, none of them frees; what they share among themselves, once."""
        manager, wanted = self._blocks.manager, self._blocks_wanted(sequence)
        most = manager.available + sum(len(victim.blocks) for victim in victims)
        if most < wanted:
            return False
        freed = manager.freed_by(block for victim in victims for block in victim.blocks)
        return manager.available + freed >= wanted

    def _has_room(self, sequence: Sequence) -> bool:
        return self._slots_fit(sequence) and self._blocks.manager.available >= self._blocks_wanted(sequence)

    def _blocks_wanted(self, sequence: Sequence) -> int:
        """For all it knows and one token more, besides what is to stay free; cached ones not counted off."""
        return self._config.blocks_for(len(sequence.tokens) + 1) + self._config.watermark_blocks

    def _grow(self, sequence: Sequence, stop: int) -> bool:
        """Whether the sequence has its blocks up to stop; others, or it itself, may be preempted for that."""
        while not self._blocks.grow(sequence, stop):
            candidates = [other for other in self.running if other.preemptible]
            if not candidates:
                return False
            victim = max(candidates, key=_sacrifice)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.remove(sequence, Phase.WAITING)
        self._blocks.free(sequence)
        self.enqueue(sequence)

    def _keep(self) -> int:
        """Blocks to leave for those who run; a sequence alone may have all."""
        return self._config.watermark_blocks if self.running else 0

    def _slots_fit(self, sequence: Sequence) -> bool:
        return self._slots_used + sequence.slots <= self._config.max_running

    def _earlier_is_blocked(self, sequence: Sequence) -> bool:
        blocked = self._blocked
        return blocked is not None and blocked.phase is Phase.WAITING and blocked.order < sequence.order


def _is_behind(sequence: Sequence, claim: Sequence | None) -> bool:
    return claim is not None and sequence.order > claim.order


def _schedule(sequence: Sequence, count: int, rows: list[tuple[Sequence, int]]) -> None:
    sequence.in_step = True
    rows.append((sequence, count))


def _sacrifice(sequence: Sequence) -> tuple[int, int, tuple[int, int]]:
    """Greatest goes first: the lowest class, then who loses least, then who came last."""
    return (sequence.job.tenant_class, -sequence.computed, sequence.order)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _remove(queue: list[Sequence], sequence: Sequence) -> None:
    index = bisect_left(queue, sequence.order, key=_order)
    assert queue[index] is sequence
    del queue[index]
