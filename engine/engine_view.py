"""What may be asked of an engine; nothing here changes it."""

from core.cost_model import StepCost
from core.request import AttemptKey
from engine.accounts import Accounts
from engine.assignment import Assignment
from engine.config import EngineConfig
from engine.job import BlockCounts
from engine.scheduler import Scheduler
from engine.sequence_blocks import SequenceBlocks
from engine.step_times import ComputedSoFar, StepTimes


class EngineView:
    """Counts and sums of an engine, each taken from the part that keeps it."""

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        blocks: SequenceBlocks,
        scheduler: Scheduler,
        times: StepTimes,
    ) -> None:
        self.config = config
        self._cost = cost
        self._blocks = blocks
        self._scheduler = scheduler
        self._room = scheduler.room
        self._times = times
        self._assignments: dict[AttemptKey, Assignment] = {}

    # Jobs

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._assignments

    def place(self, key: AttemptKey) -> tuple[int, int]:
        """Where a job that is here stands in every queue of this engine; smaller goes first."""
        return self._assignments[key].sequences[0].order

    def block_table(self, key: AttemptKey) -> tuple[int, ...]:
        """The blocks of a job that is one sequence; empty if it has none or is not here."""
        assignment = self._assignments.get(key)
        return assignment.sequences[0].block_table if assignment and assignment.sequences else ()

    @property
    def running(self) -> int:
        """Sequences with compute in progress."""
        return len(self._room.running)

    @property
    def waiting(self) -> int:
        """Sequences that could be computed here and have no room yet."""
        return len(self._scheduler.line)

    def queued_prefill_us(self) -> int:
        """Predicted time of all prefill that waits or has begun."""
        queued = [*self._scheduler.line, *(s for s in self._room.running if s.pending > 1)]
        return sum(self._cost.prefill_us(len(s.tokens), len(s.tokens) - s.uncomputed) for s in queued)

    # Memory

    def counts(self) -> BlockCounts:
        return self._blocks.manager.counts()

    @property
    def host_slots_used(self) -> int:
        return self._blocks.host_slots_used

    @property
    def unused_slots(self) -> int:
        """Fragmentation: token slots in blocks that sequences hold and have not computed."""
        return sum(
            len(sequence.blocks) * self.config.block_size - sequence.computed
            for assignment in self._assignments.values()
            for sequence in assignment.sequences
        )

    def prefix_hashes(self) -> tuple[bytes, ...]:
        """Every HASH_UNIT hash the prefix cache can serve now; for a resync."""
        return self._blocks.cache.hashes() if self._blocks.cache is not None else ()

    @property
    def prefix_collisions(self) -> int:
        return self._blocks.cache.collisions if self._blocks.cache is not None else 0

    # Since the start

    @property
    def preemptions(self) -> int:
        return self._room.preemptions

    @property
    def swaps(self) -> int:
        """Preemptions that kept their KV on the host."""
        return self._room.swaps

    @property
    def drafted(self) -> int:
        """Tokens computed on trial."""
        return self._scheduler.speculation.drafted

    @property
    def accepted(self) -> int:
        """Of those, the ones that came true."""
        return self._scheduler.speculation.accepted

    @property
    def computed(self) -> ComputedSoFar:
        return self._times.computed

    @property
    def accounts(self) -> Accounts:
        return self._times.accounts

    @property
    def service_us(self) -> dict[str, int]:
        """Per tenant, monotonic."""
        return dict(self.accounts.service_us)
