"""Who gets slots and blocks, and who gives way for them."""

from bisect import insort

from engine.class_shares import ClassShares
from engine.config import EngineConfig
from engine.sequence import Phase, Sequence
from engine.sequence_blocks import SequenceBlocks
from engine.step_prediction import StepLoad, StepPrediction
from engine.waiting_line import WaitingLine, by_order, remove_by_order


class Room:
    """The running, and the slots and blocks they hold; everybody else is in line or not computed here."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: SequenceBlocks,
        line: WaitingLine,
        shares: ClassShares,
        prediction: StepPrediction,
    ) -> None:
        self._config = config
        self._blocks = blocks
        self._line = line
        self._shares = shares
        self._prediction = prediction
        self.running: list[Sequence] = []
        """By order."""
        self.slots_used = 0
        self.bound = 0
        """Sequences with blocks whose KV is on its way."""
        self.preemptions = 0
        self.swaps = 0
        """Preemptions whose KV was kept on the host."""

    def enqueue(self, sequence: Sequence) -> None:
        sequence.phase = Phase.WAITING
        known = len(sequence.tokens)
        cost_us = self._prediction.prefill_us(known, known - sequence.uncomputed)
        self._line.add(sequence, cost_us, is_long=cost_us > self._config.long_prefill_us)

    def start(self, sequence: Sequence) -> None:
        """A BOUND sequence's KV has arrived, or a fork got its blocks and a slot: it runs."""
        if sequence.phase is Phase.BOUND:
            self.bound -= 1
        else:
            self.slots_used += sequence.slots
        sequence.phase = Phase.RUNNING
        insort(self.running, sequence, key=by_order)

    def remove(self, sequence: Sequence, phase: Phase) -> None:
        """Out of every queue, its slots free; its blocks are the caller's to free."""
        if sequence.phase is Phase.WAITING:
            self._line.remove(sequence)
        elif sequence.phase is Phase.RUNNING:
            remove_by_order(self.running, sequence)
        if sequence.phase in (Phase.RUNNING, Phase.BOUND):
            self.slots_used -= sequence.slots
            self.bound -= sequence.phase is Phase.BOUND
        sequence.phase = phase

    def admit(self, sequence: Sequence) -> bool:
        """From the line to the running, with blocks for all it knows; False and nothing taken if not."""
        if not self.slots_fit(sequence) or not self._blocks.admit(sequence, self._keep()):
            return False
        self._line.remove(sequence)
        self.start(sequence)
        return True

    def bind(self, sequence: Sequence) -> bool:
        if not self.slots_fit(sequence) or not self._blocks.bind(sequence, self._keep()):
            return False
        sequence.phase = Phase.BOUND
        self.slots_used += sequence.slots
        self.bound += 1
        return True

    def grow(self, sequence: Sequence, stop: int) -> bool:
        """Whether the sequence has its blocks up to stop; others, or it itself, may be preempted for that."""
        while not self._blocks.grow(sequence, stop):
            candidates = [other for other in self.running if other.preemptible]
            if not candidates:
                return False
            victim = max(candidates, key=self._sacrifice)
            self._preempt(victim, hold=False)
            if victim is sequence:
                return False
        return True

    def displace_for(self, sequence: Sequence, *, hold: bool) -> bool:
        """Preempt, as far as needed, lower classes beyond their share; False if that is not to be had.

        `hold`: what is saved of them stays in place until the next step has copied it, so the room
        is there only after that step.
        """
        victims = [other for other in self.running if self._may_displace(other, sequence)]
        slots = self._config.max_running - self.slots_used + sum(victim.slots for victim in victims)
        if not victims or slots < sequence.slots or not self._would_free_enough(victims, sequence):
            return False
        victims.sort(key=self._sacrifice)
        held = self._blocks.held_for_swap if hold else 0
        while victims and not self._has_room(sequence, held):
            victim = victims.pop()
            before = self._blocks.held_for_swap
            self._preempt(victim, hold=hold)
            held += self._blocks.held_for_swap - before
        return True

    def slots_fit(self, sequence: Sequence) -> bool:
        return self.slots_used + sequence.slots <= self._config.max_running

    def fit_both(self, sequence: Sequence, other: Sequence) -> bool:
        """Without anybody giving way."""
        slots = self.slots_used + sequence.slots + other.slots
        wanted = self._blocks_wanted(sequence) + self._blocks_wanted(other)
        return slots <= self._config.max_running and wanted <= self._blocks.manager.available

    def check(self) -> None:
        self._line.check()
        assert all(sequence.phase is Phase.RUNNING for sequence in self.running)
        assert [sequence.order for sequence in self.running] == sorted(map(by_order, self.running))
        used = sum(sequence.slots for sequence in self.running)
        assert 0 <= used <= self.slots_used <= self._config.max_running
        assert self.bound >= 0

    def _may_displace(self, other: Sequence, sequence: Sequence) -> bool:
        is_below = self._shares.rank_of_running(other.job.tenant_class) > sequence.job.tenant_class
        return is_below and other.preemptible and not other.is_undisturbed

    def _would_free_enough(self, victims: list[Sequence], sequence: Sequence) -> bool:
        """What victims share with others, none of them frees; what they share among themselves, once."""
        manager, wanted = self._blocks.manager, self._blocks_wanted(sequence)
        most = manager.available + sum(len(victim.blocks) for victim in victims)
        if most < wanted:
            return False
        freed = manager.freed_by(block for victim in victims for block in victim.blocks)
        return manager.available + freed >= wanted

    def _has_room(self, sequence: Sequence, held: int) -> bool:
        available = self._blocks.manager.available + held
        return self.slots_fit(sequence) and available >= self._blocks_wanted(sequence)

    def _blocks_wanted(self, sequence: Sequence) -> int:
        """For all it knows and one token more, besides what is to stay free; cached ones not counted off."""
        return self._config.blocks_for(len(sequence.tokens) + 1) + self._config.watermark_blocks

    def _keep(self) -> int:
        """Blocks to leave for those who run; a sequence alone may have all."""
        return self._config.watermark_blocks if self.running else 0

    def _preempt(self, sequence: Sequence, *, hold: bool) -> None:
        self.preemptions += 1
        self.remove(sequence, Phase.WAITING)
        if self._swap_pays(sequence) and self._blocks.swap_out(sequence, hold=hold):
            self.swaps += 1
        else:
            sequence.undisturbed_until = sequence.computed + self._tokens_in_time_of(sequence.computed)
            self._blocks.free(sequence)
        sequence.was_preempted = True
        self.enqueue(sequence)

    def _tokens_in_time_of(self, computed: int) -> int:
        """How many it could decode, alone, while this many are computed again."""
        step_ns = self._prediction.step_ns(StepLoad(decodes=1, decode_context=computed + 1))
        return self._prediction.prefill_us(computed, 0) * 1000 // max(1, step_ns)

    def _swap_pays(self, sequence: Sequence) -> bool:
        """Whether copying its KV to the host and back takes less time than computing it again."""
        swap_us = 2 * self._config.blocks_for(sequence.computed) * self._config.swap_block_us
        return sequence.computed > 0 and swap_us < self._prediction.prefill_us(sequence.computed, 0)

    def _sacrifice(self, sequence: Sequence) -> tuple[int, int, tuple[int, int]]:
        """Greatest goes first: the lowest class, then who loses least, then who came last."""
        return (self._shares.rank_of_running(sequence.job.tenant_class), -sequence.computed, sequence.order)
