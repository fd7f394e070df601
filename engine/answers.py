"""What a drawn token does to the sequence it was drawn for: it grows, forks, is held, or ends."""

from collections.abc import Callable

from core.request import AttemptKey
from engine.assignment import Assignment
from engine.intake import Intake
from engine.job import Computed, Stage, Token
from engine.plan import Row, Sampled
from engine.room import Room
from engine.sequence import Phase, Sequence
from engine.sequence_blocks import SequenceBlocks
from engine.speculation import accepted


class Answers:
    """Turns draws into tokens; `end` takes a finished sequence out of the engine."""

    def __init__(
        self,
        intake: Intake,
        room: Room,
        blocks: SequenceBlocks,
        assignments: dict[AttemptKey, Assignment],
        end: Callable[[Sequence], None],
    ) -> None:
        self._intake = intake
        self._room = room
        self._blocks = blocks
        self._assignments = assignments
        self._end = end

    def advance(
        self,
        sequence: Sequence,
        row: Row,
        drawn: tuple[Sampled, ...],
        tokens: list[Token],
        computed: list[Computed],
    ) -> None:
        """Its row is computed; appends what there is to tell.

        The KV of drafts that were not drawn stays beyond `computed`, for the next step to overwrite.
        """
        kept = accepted(row, drawn)
        for sampled in drawn[:kept]:
            token = self._token(sequence, sampled)
            assert token.finish is None, "a draft where the choice must end"
            tokens.append(token)
            sequence.tokens.append(sampled.token)
        computed_to = row.start + len(row.tokens) - row.drafts + kept
        sequence.computed = computed_to
        sequence.computed_most = max(sequence.computed_most, computed_to)
        self._blocks.register(sequence)
        is_final = sequence.pending == 0
        if sequence.stage is Stage.PREFILL:
            computed.append(Computed(sequence.job.key, computed_to, is_final))
        if is_final:
            tokens.extend(self.draw(sequence, drawn[kept : kept + 1] if row.drafts else drawn))

    def draw(self, sequence: Sequence, drawn: tuple[Sampled, ...]) -> list[Token]:
        """Take in the tokens drawn after a sequence's last known one."""
        tokens = [self._token(sequence, sampled) for sampled in drawn]
        if sequence.stage is Stage.PREFILL:
            self._room.remove(sequence, Phase.HELD)
        elif sequence.trunk:
            self._fork(sequence, {token.choice: token for token in tokens})
        elif tokens[0].finish is None:
            sequence.tokens.append(tokens[0].sampled.token)
        else:
            self._finish(sequence)
        return tokens

    def _token(self, sequence: Sequence, sampled: Sampled) -> Token:
        finish = self._intake.finish_reason(sequence, sampled.token)
        cached_tokens = sequence.cached_tokens or 0
        return Token(sequence.job.key, sampled.choice, sequence.output_count, sampled, finish, cached_tokens)

    def _finish(self, sequence: Sequence) -> None:
        assignment = self._assignments[sequence.job.key]
        assignment.sequences.remove(sequence)
        self._end(sequence)
        if not assignment.sequences:
            del self._assignments[sequence.job.key]

    def _fork(self, trunk: Sequence, first: dict[int, Token]) -> None:
        """One sequence per choice that goes on; those beyond the trunk's slots wait, without blocks."""
        assignment = self._assignments[trunk.job.key]
        # In no queue while its children take over its slots; _finish gives its blocks back.
        self._room.remove(trunk, Phase.HELD)
        for choice in trunk.job.choices:
            token = first.get(choice.index)
            if token is None or token.finish is None:
                output = choice.output if token is None else (token.sampled.token,)
                assignment.sequences.append(self._intake.child(trunk, choice.index, output))
        for child in assignment.sequences[1 : 1 + trunk.slots]:
            self._blocks.fork(trunk, child)
            self._room.start(child)
        for child in assignment.sequences[1 + trunk.slots :]:
            self._room.enqueue(child)
        self._finish(trunk)
