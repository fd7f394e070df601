"""The stop matcher's laws, against an oracle that sees the whole text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from text.stop_matcher import StopMatcher

TEXTS = st.text("abc", max_size=40)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 40), max_size=10)


def pieces(text: str, cuts: list[int]) -> list[str]:
    borders = sorted([0, len(text), *(min(cut, len(text)) for cut in cuts)])
    return [text[start:end] for start, end in pairwise(borders)]


def first_stop(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """(end, start, stop) of the stop that ends first, the longest of several."""
    found = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    return min(found, default=None)


@given(TEXTS, STOPS, CUTS)
def test_shown_is_the_text_up_to_the_first_stop_however_it_is_split(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece)[0] for piece in pieces(text, cuts)) + matcher.flush()
    expected = first_stop(text, stops)
    assert matcher.stopped == (expected[2] if expected else None)
    assert shown == (text[: expected[1]] if expected else text)


@given(TEXTS, STOPS, CUTS)
def test_withheld_is_exactly_what_may_become_a_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    seen = shown = ""
    for piece in pieces(text, cuts):
        emitted, stop = matcher.push(piece)
        if stop is not None:
            return
        seen, shown = seen + piece, shown + emitted
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
        in_doubt = max((len(part) for part in beginnings if seen.endswith(part)), default=0)
        assert shown == seen[: len(seen) - in_doubt]


@given(TEXTS, STOPS, CUTS)
def test_an_included_stop_is_the_end_of_what_is_shown(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops, include_stop=True)
    shown = "".join(matcher.push(piece)[0] for piece in pieces(text, cuts)) + matcher.flush()
    expected = first_stop(text, stops)
    assert shown == (text[: expected[0]] if expected else text)
