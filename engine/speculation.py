"""How many tokens a step computes on trial: those whose expected yield pays for their time.

Drafts are looked up in the sequence's own tokens (engine/ngram_proposer.py) and verified as a chunk:
the target draws at every position with that position's own random number, and a draft is kept while
it equals the draw. So the tokens are the same with speculation and without, greedy or not; nothing is
sampled twice and no distribution is corrected (unlike Leviathan et al., arXiv:2211.17192).

A step of n sequences that takes T gives n / T tokens per second. Drafts that come true with chances
p1, p2 .. and add a time C make it (n + p1 + p2 ..) / (T + C); as many are verified as make that greatest,
the likeliest first, and none where it gains too little. As n grows, the step's fixed time is shared by
more tokens, and ever fewer drafts are worth theirs.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items

from core.cost_model import StepCost
from engine.config import EngineConfig
from engine.draft_cost import DraftCost
from engine.ngram_proposer import NgramProposer
from engine.plan import Row, Sampled
from engine.sequence import Sequence

GAIN_MIN = 1.05
"""Of the tokens per second, or nothing is drafted: predictions err."""
TRIALS_MAX = 64
"""Draws of one step, beyond which nothing is drafted: backends compute so many in one pass."""


def accepted(row: Row, drawn: Items[Sampled]) -> int:
    """How many of a row's drafts are the tokens the model drew, before any that ends the choice.

    `drawn` may be cut off behind the first draw that is not its draft.
    """
    for count, draft in enumerate(row.draft_tokens):
        token = drawn[count].token
        if token != draft or token in row.samples[count].params.stop_token_ids:
            return count
    return row.drafts


class Speculation:
    """Decides the drafts of each step."""

    def __init__(self, config: EngineConfig, cost: StepCost) -> None:
        self._most = config.speculation
        self._positions_max = config.positions_max
        self._cost = DraftCost(cost)
        self.drafted = 0
        self.accepted = 0

    def drafts(
        self, decoding: Items[Sequence], step_ns: int, room: int
    ) -> list[tuple[Sequence, tuple[int, ...]]]:
        """What to verify besides the last tokens of `decoding`, whose step is predicted to take step_ns.

        At most `room` tokens in all.
        """
        if not self._most:
            return []
        room = min(room, TRIALS_MAX - len(decoding))
        if room <= 0 or not self._could_pay(decoding, step_ns, room):
            return []
        counts = self._counts(decoding, step_ns, room)
        if not counts:
            self._cost.forgo(len(decoding))
        return [
            (decoding[index], _proposer(decoding[index]).propose(decoding[index].tokens, count))
            for index, count in counts.items()
        ]

    def predicted_ns(self, rows: Items[Row]) -> int:
        """What the drafts in these rows add to their step."""
        return int(self._cost.added_ns(len(rows), _stops(rows)))

    def verified(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def measured(self, rows: Items[Row], elapsed_ns: int, step_ns: int) -> None:
        """A step of decode rows took elapsed_ns; without its drafts step_ns was expected."""
        if stops := _stops(rows):
            self._cost.measured(len(rows), stops, elapsed_ns - step_ns, step_ns)

    def _could_pay(self, decoding: Items[Sequence], step_ns: int, room: int) -> bool:
        """Whether drafts would, if all came true: else nobody looks for any."""
        shortest = min((len(sequence.tokens) for sequence in decoding), default=0)
        count = min(room, self._most * len(decoding))
        added_ns = self._cost.added_ns(len(decoding), [shortest] * count)
        is_worth_it = _gain(len(decoding), step_ns, count, added_ns) >= GAIN_MIN
        if not is_worth_it:
            self._cost.forgo(len(decoding))
        return is_worth_it

    def _counts(self, decoding: Items[Sequence], step_ns: int, room: int) -> dict[int, int]:
        """Drafts by index into `decoding`."""
        added_ns, yielded = self._cost.entry_ns(len(decoding)), 0.0
        best, best_gain = 0, GAIN_MIN
        # A draft less likely than this takes more time than its tokens would otherwise.
        least = self._cost.draft_ns(0) * len(decoding) / step_ns
        trials = sorted(self._trials(decoding, least))[:room]
        for number, (negative_chance, depth, index) in enumerate(trials, start=1):
            added_ns += self._cost.draft_ns(len(decoding[index].tokens) + depth)
            yielded -= negative_chance
            if (gain := _gain(len(decoding), step_ns, yielded, added_ns)) > best_gain:
                best, best_gain = number, gain
        # A deeper draft of a sequence is never likelier than one before it, and so comes after it.
        return {index: depth for _, depth, index in trials[:best]}

    def _trials(self, decoding: Items[Sequence], least: float) -> Iterator[tuple[float, int, int]]:
        """(chance, negative; depth; index into decoding) of every draft likelier than `least`."""
        for index, sequence in enumerate(decoding):
            if sequence.may_speculate:
                proposer = _proposer(sequence)
                proposer.follow(sequence.tokens)
                chances = proposer.chances(self._limit(sequence), least)
                for depth, chance in enumerate(chances, start=1):
                    yield -chance, depth, index

    def _limit(self, sequence: Sequence) -> int:
        """The last token of an answer is drawn after a real one, never after a draft that would be."""
        output_left = sequence.job.params.max_tokens - sequence.output_count
        return min(self._most, output_left - 1, self._positions_max - len(sequence.tokens) - 1)


def _gain(tokens: int, step_ns: int, yielded: float, added_ns: float) -> float:
    """By how much drafts multiply the tokens per second."""
    return (tokens + yielded) / tokens * step_ns / (step_ns + added_ns) if tokens and step_ns else 0.0


def _stops(rows: Items[Row]) -> list[int]:
    """How many positions each draft attends to."""
    ends = [(row.start + len(row.tokens), row.drafts) for row in rows if row.drafts]
    return [stop for end, drafts in ends for stop in range(end - drafts + 1, end + 1)]


def _proposer(sequence: Sequence) -> NgramProposer:
    if sequence.proposer is None:
        sequence.proposer = NgramProposer()
    return sequence.proposer
