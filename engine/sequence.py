"""Where one line of tokens stands: what it knows, what is computed, which blocks hold it."""

from enum import StrEnum

from engine.job import Job, Stage
from engine.ngram_proposer import NgramProposer
from engine.plan import Row, SampleSpec
from engine.prefix_cache import CachedBlock


class Phase(StrEnum):
    """A sequence is in exactly one; blocks are held in BOUND, RUNNING and HELD only."""

    UNBOUND = "unbound"
    """DECODE: has no blocks yet and may not be computed here."""
    BOUND = "bound"
    """DECODE: has its blocks, its KV has not arrived; nothing of it is ever scheduled."""
    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    """PREFILL: computed, its blocks wait for release()."""
    ENDED = "ended"


class Sequence:
    """Catches up to the end of its known tokens, then draws and so grows by one per step.

    A request of one choice is one sequence. With more choices a trunk computes the prompt, draws
    the first token of every choice that has none, and is replaced by one sequence per choice.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "blocks",
        "cached_tokens",
        "chain_broken",
        "computed",
        "computed_most",
        "cost_us",
        "drafts",
        "draws",
        "host_slots",
        "in_step",
        "job",
        "number",
        "order",
        "phase",
        "pinned",
        "proposer",
        "registered",
        "restoring",
        "saved",
        "slots",
        "stage",
        "tail",
        "tokens",
        "trunk",
        "undisturbed_until",
        "unit_hashes",
        "was_preempted",
    )

    def __init__(
        self, number: int, job: Job, stage: Stage, tokens: list[int], draws: tuple[int, ...], place_us: int
    ) -> None:
        self.number = number
        self.job = job
        self.stage = stage
        self.tokens = tokens
        """Prompt, then output."""
        self.draws = draws
        """The choices whose next token follows the last known one."""
        self.order = (place_us, number)
        """Its place in every queue; kept through preemption."""
        self.trunk = False
        self.slots = 1
        """Of max_running; a trunk holds its children's."""
        self.phase = Phase.UNBOUND if stage is Stage.DECODE else Phase.WAITING
        self.in_step = False
        """A row of it is in the step being planned or run."""
        self.drafts: tuple[int, ...] = ()
        """Guesses of what follows, for the step being planned."""
        self.proposer: NgramProposer | None = None
        """Where guesses come from; made when first asked for."""
        self.pinned = False
        self.computed = 0
        """Tokens whose KV is complete in `blocks`."""
        self.computed_most = 0
        """Most ever computed; anything below it that is computed again is recompute."""
        self.was_preempted = False
        self.undisturbed_until = 0
        """Tokens to be computed, after what it had was lost, before it gives way to a more urgent class."""
        self.cost_us = 0
        """Predicted prefill time when it last joined a queue."""
        self.saved = 0
        """Tokens whose KV waits in `host_slots`, whole blocks and a part of the last."""
        self.host_slots: list[int] = []
        self.restoring = False
        """Its KV is copied back by the step being planned or run."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache when blocks were first taken."""
        self.blocks: list[int] = []
        self.block_table: tuple[int, ...] = ()
        """`blocks` as it goes into rows; rebuilt only when they change."""
        self.block_hashes: list[bytes] = []
        self.unit_hashes: list[bytes] = []
        self.registered = 0
        """Leading blocks that the prefix cache knows, by these or by equal blocks."""
        self.tail: CachedBlock | None = None
        self.chain_broken = False
        """The cache could not take a block, so it can take none after it."""

    @property
    def pending(self) -> int:
        """Known tokens not yet computed; 1 is a decode row."""
        return len(self.tokens) - self.computed

    @property
    def output_count(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def preemptible(self) -> bool:
        """No where a transfer uses its blocks, nor in PREFILL, whose reported progress may not shrink."""
        is_in_use = self.pinned or self.in_step or self.restoring
        return not is_in_use and self.stage is not Stage.PREFILL

    @property
    def is_undisturbed(self) -> bool:
        """Whether it lost what was computed and has not got beyond that: else it could be lost for ever."""
        return self.undisturbed_until > 0 and (self.pending > 1 or self.computed < self.undisturbed_until)

    @property
    def may_speculate(self) -> bool:
        """Where one token is drawn from one known context: no fork, and no grammar, whose mask would
        have to be worked out for every guess."""
        is_decode = self.pending == 1 and not self.trunk and self.stage is not Stage.PREFILL
        return is_decode and not self.job.grammar

    @property
    def uncomputed(self) -> int:
        """Known tokens neither computed nor saved on the host."""
        return len(self.tokens) - max(self.computed, self.saved)

    def row(self, count: int) -> Row:
        """The next `count` tokens as a row; it draws if they reach the last known token."""
        if self.drafts:
            return self._verify_row()
        start = self.computed
        stop = start + count
        reaches_end = stop == len(self.tokens)
        return Row(
            self.number,
            tuple(self.tokens[start:stop]),
            start,
            self.block_table,
            tuple(self._sample(choice) for choice in self.draws) if reaches_end else (),
        )

    def _verify_row(self) -> Row:
        """The last known token and the drafts after it, which are used up."""
        drafts, self.drafts = self.drafts, ()
        samples = tuple(self._sample(self.draws[0], drafts[:count]) for count in range(len(drafts) + 1))
        tokens = (self.tokens[-1], *drafts)
        return Row(self.number, tokens, self.computed, self.block_table, samples, len(drafts))

    def _sample(self, choice: int, drafts: tuple[int, ...] = ()) -> SampleSpec:
        """What follows the known tokens and these drafts."""
        job, position = self.job, len(self.tokens) + len(drafts)
        output_count = position - len(job.prompt)
        if not job.params.needs_history and not job.grammar:
            return SampleSpec(choice, job.params, job.seed, position, output_count)
        prompt = job.prompt if job.params.needs_history else ()
        output = (*self.tokens[len(job.prompt) :], *drafts)
        return SampleSpec(choice, job.params, job.seed, position, output_count, prompt, output, job.grammar)
