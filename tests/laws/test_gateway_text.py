"""However a choice's tokens are cut into runs, its text is the same, whole, and ends where it should."""

import functools
import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from core.outcomes import FinishReason
from services.gateway.choice_text import ChoiceText, Piece
from tests.live.gateway_fleet import model_folder
from text.tokenizer import Tokenizer

TEXTS = st.text(alphabet="ab🦊狐é", max_size=12)


@functools.cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.open(model_folder(Path(folder)))


def pieces_of(tokens: list[int], cuts: list[int], stops: list[str], finish: FinishReason) -> list[Piece]:
    """One choice fed in runs that end at the cuts."""
    eos = tokenizer().eos_token_ids
    text = ChoiceText(tokenizer(), 0, stops, eos, continues=False)
    borders = sorted({0, *(cut % (len(tokens) + 1) for cut in cuts)} | {len(tokens)})
    made = []
    for start, stop in itertools.pairwise(borders):
        last = stop == len(tokens)
        made.append(text.push(start, tuple(tokens[start:stop]), (), finish if last else None))
    return [piece for piece in made if piece is not None]


@settings(max_examples=150, deadline=None)
@given(
    TEXTS, st.lists(st.integers(0, 60), max_size=8), st.lists(TEXTS.filter(bool), max_size=3), st.booleans()
)
def test_text_does_not_depend_on_runs(said: str, cuts: list[int], stops: list[str], ends: bool) -> None:
    tokens = tokenizer().encode_literal(said)
    finish = FinishReason.STOP if ends or not tokens else FinishReason.LENGTH
    if finish is FinishReason.STOP:
        tokens = [*tokens, *tokenizer().eos_token_ids]
    pieces = pieces_of(tokens, cuts, stops, finish)
    shown = "".join(piece.text for piece in pieces)
    found = [said.find(stop) + len(stop) for stop in stops if stop in said]
    if not found:
        assert shown == said and pieces[-1].finish is finish
        assert sum(len(piece.tokens) for piece in pieces) == len(tokens)
    else:
        kept = said[: min(found)]
        longest = max((stop for stop in stops if kept.endswith(stop)), key=len)
        assert shown == kept[: len(kept) - len(longest)]
        assert pieces[-1].finish is FinishReason.STOP and not pieces[-1].stop_token
        # Counted through the token that completed the stop string.
        assert sum(len(piece.tokens) for piece in pieces) == len(kept.encode())
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert "\ufffd" not in shown
