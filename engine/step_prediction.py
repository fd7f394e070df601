"""How long a step will take here: the declared cost, corrected by every step measured.

The reference cost says a step is base + tokens + attended pairs. Each part has a factor, 1 at first,
that every measured step moves by a normalised least mean squares update (Widrow and Hoff 1960;
Nagumo and Noda 1967): the error is shared out by how much each part contributed, so that a part
which no step exercised stays where it was. Nothing but StepResult.elapsed_us goes in, so a recording
replays to the same factors. Charges never use this: they keep the reference cost.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from core.cost_model import StepCost, attended

LEARNING_RATE = 0.25
"""Of a step's error; one step in four forgets the last."""
SURPRISE_MAX = 1.0
"""A measurement counts as at most so many predictions away: a stall teaches little."""
FACTOR_MIN, FACTOR_MAX = 1 / 64, 64.0


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes, as far as its time depends on it."""

    decodes: int = 0
    """Rows of one token."""
    decode_context: int = 0
    """(token, earlier-or-own position) pairs of those."""
    chunk_tokens: int = 0
    """Tokens of longer rows."""
    chunk_context: int = 0

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> "StepLoad":
        """The load of rows that feed positions start..stop."""
        decodes = decode_context = chunk_tokens = chunk_context = 0
        for start, stop in spans:
            if stop - start == 1:
                decodes += 1
                decode_context += stop
            else:
                chunk_tokens += stop - start
                chunk_context += attended(start, stop)
        return cls(decodes, decode_context, chunk_tokens, chunk_context)


class StepPrediction:
    """One factor for each of: base, a decode row, a chunk's token, a pair of either."""

    __slots__ = ("_reference", "factors")

    def __init__(self, reference: StepCost) -> None:
        self._reference = reference
        self.factors = [1.0] * 5
        """Base, decode rows, decode pairs, chunk tokens, chunk pairs."""

    def step_ns(self, load: StepLoad) -> int:
        """Predicted nanoseconds of a step."""
        parts = zip(self.factors, self._parts(load), strict=True)
        return int(sum(factor * part for factor, part in parts))

    def chunk_token_ns(self) -> float:
        """Of one more token in a chunk, its attention left out."""
        return self.factors[3] * self._reference.token_ns

    def chunk_pair_ns(self) -> float:
        return self.factors[4] * self._reference.context_ns

    def prefill_us(self, known: int, computed: int) -> int:
        """Predicted microseconds to compute tokens computed..known in chunks, the base left out."""
        tokens, pairs = known - computed, attended(computed, known)
        return int(tokens * self.chunk_token_ns() + pairs * self.chunk_pair_ns()) // 1000

    def measured(self, load: StepLoad, elapsed_us: int) -> None:
        """Learn from one step."""
        parts = self._parts(load)
        predicted = sum(factor * part for factor, part in zip(self.factors, parts, strict=True))
        power = sum(part * part for part in parts)
        if not power:
            return
        limit = SURPRISE_MAX * predicted
        error = min(limit, max(-limit, elapsed_us * 1000.0 - predicted))
        for index, part in enumerate(parts):
            moved = self.factors[index] + LEARNING_RATE * error * part / power
            self.factors[index] = min(FACTOR_MAX, max(FACTOR_MIN, moved))

    def _parts(self, load: StepLoad) -> tuple[float, float, float, float, float]:
        """What the reference says of each part, in nanoseconds."""
        reference = self._reference
        return (
            float(reference.base_ns),
            float(load.decodes * reference.token_ns),
            float(load.decode_context * reference.context_ns),
            float(load.chunk_tokens * reference.token_ns),
            float(load.chunk_context * reference.context_ns),
        )
