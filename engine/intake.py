"""Which jobs an engine takes on, and as which sequences they start."""

from core.cost_model import StepCost
from core.outcomes import FinishReason, Outcome
from engine.config import EngineConfig
from engine.job import Job, Stage
from engine.scheduler import place_us
from engine.sequence import Phase, Sequence


class Intake:
    """Gives out sequence numbers; otherwise only what follows from job and config."""

    def __init__(self, config: EngineConfig, cost: StepCost) -> None:
        self._config = config
        self._cost = cost
        self._last_number = 0

    def refusal(self, job: Job, stage: Stage) -> Outcome | None:
        """INVALID_ARGUMENT or PROMPT_TOO_LONG, if the job could never run; see Engine.add."""
        if not _is_valid(job, stage) or (job.grammar and not self._config.grammars):
            return Outcome.INVALID_ARGUMENT
        longest = len(job.prompt) + max(len(choice.output) for choice in job.choices)
        return Outcome.PROMPT_TOO_LONG if longest + 1 > self._config.positions_max else None

    def trunk(self, job: Job, stage: Stage, now_us: int) -> Sequence:
        """The sequence a job starts as: its one choice, or the prompt that its choices share."""
        tokens, draws = list(job.prompt), tuple(choice.index for choice in job.choices if not choice.output)
        if len(job.choices) == 1:
            tokens += job.choices[0].output
            draws = (job.choices[0].index,)
        place = place_us(job, len(tokens), self._cost, now_us)
        sequence = Sequence(self._number(), job, stage, tokens, draws, place)
        sequence.trunk = len(job.choices) > 1
        if stage is not Stage.PREFILL:
            sequence.slots = min(len(job.choices), self._config.max_running)
        return sequence

    def renewed(self, sequence: Sequence) -> Sequence:
        """A sequence to be computed here, at the place of one whose KV did not come."""
        renewed = Sequence(
            self._number(), sequence.job, Stage.FULL, sequence.tokens, sequence.draws, sequence.order[0]
        )
        renewed.trunk, renewed.slots = sequence.trunk, sequence.slots
        return renewed

    def child(self, trunk: Sequence, choice: int, output: tuple[int, ...]) -> Sequence:
        """One choice of a trunk that is computed; without blocks yet."""
        tokens = [*trunk.job.prompt, *output]
        child = Sequence(self._number(), trunk.job, trunk.stage, tokens, (choice,), trunk.order[0])
        child.phase = Phase.WAITING
        child.computed_most, child.cached_tokens = trunk.computed_most, trunk.cached_tokens
        child.pinned = trunk.pinned
        child.block_hashes, child.unit_hashes = list(trunk.block_hashes), list(trunk.unit_hashes)
        return child

    def finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Whether this token, drawn after the sequence's last, ends its choice."""
        params = sequence.job.params
        if token in params.stop_token_ids:
            return FinishReason.STOP
        is_last_index = sequence.output_count + 1 >= params.max_tokens
        is_last_position = len(sequence.tokens) + 1 >= self._config.positions_max
        return FinishReason.LENGTH if is_last_index or is_last_position else None

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number


def _is_valid(job: Job, stage: Stage) -> bool:
    indices = [choice.index for choice in job.choices]
    if not job.prompt or not indices or len(dict.fromkeys(indices)) != len(indices):
        return False
    if any(len(choice.output) >= job.params.max_tokens for choice in job.choices):
        return False
    return stage is Stage.FULL or len(indices) == 1 or not any(choice.output for choice in job.choices)
