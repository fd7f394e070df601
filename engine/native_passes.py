"""How a step's rows become passes over the weights, and where in them tokens are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.plan import Row, Sampled, SampleSpec

TOKENS_MAX = 512
SAMPLES_MAX = 64
"""Of one pass over the weights: a larger step is computed in several, with the same result."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one token of a pass is followed by."""

    index: int
    row: Row
    point: int
    """The token's number in the row."""

    @property
    def samples(self) -> tuple[SampleSpec, ...]:
        return self.row.samples_at(self.point)

    def comes_after(self, drawn: Sequence[Sampled]) -> bool:
        """Whether the row's draws so far are its drafts before this point: else it follows what never was."""
        count = self.point - self.row.draw_points.start
        drafts = self.row.draft_tokens
        return len(drawn) == count and all(drawn[place].token == drafts[place] for place in range(count))


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens first .. last of a row of the plan."""

    index: int
    row: Row
    first: int
    last: int

    @property
    def draws(self) -> list[Draw]:
        points = self.row.draw_points
        first, last = max(self.first, points.start), min(self.last, points.stop)
        return [Draw(self.index, self.row, point) for point in range(first, last)]


def passes_of(rows: Sequence[Row]) -> list[list[Piece]]:
    """Rows cut into passes of at most TOKENS_MAX tokens, SAMPLES_MAX of them drawing, in order."""
    done: list[list[Piece]] = []
    pieces: list[Piece] = []
    tokens = samples = 0
    for index, row in enumerate(rows):
        first = 0
        while first < len(row.tokens):
            if tokens == TOKENS_MAX or samples == SAMPLES_MAX:
                done.append(pieces)
                pieces, tokens, samples = [], 0, 0
            last = min(len(row.tokens), first + TOKENS_MAX - tokens)
            if row.samples:
                last = min(last, max(first, row.draw_points.start) + SAMPLES_MAX - samples)
            pieces.append(Piece(index, row, first, last))
            tokens += last - first
            samples += len(pieces[-1].draws)
            first = last
    return [*done, pieces] if pieces else done
