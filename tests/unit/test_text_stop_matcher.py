"""Examples of where a choice stops and what is withheld."""

import pytest

from text.stop_matcher import StopMatcher


@pytest.mark.parametrize(
    ("stops", "pushes", "shown", "stop"),
    [
        (["END"], ["a E", "N", "D b"], ["a ", "", ""], "END"),
        (["END"], ["a E", "N", "x"], ["a ", "", "ENx"], None),
        (["END"], ["END"], [""], "END"),
        (["aab"], ["aa", "a", "ab"], ["", "a", "a"], "aab"),
        (["abcd", "bc"], ["abcd"], ["a"], "bc"),
        (["abc", "bc", "c"], ["xabc"], ["x"], "abc"),
        (["abc", "ab"], ["a", "b", "c"], ["", "", ""], "ab"),
        (["abcx", "c"], ["abc"], ["ab"], "c"),
        (["abcde", "bcd!"], ["abcd", "!"], ["", "a"], "bcd!"),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], "\n\n"),
        (["😀!"], ["a😀", "!"], ["a", ""], "😀!"),
        (["x", "x"], ["ax"], ["a"], "x"),
        ([], ["anything"], ["anything"], None),
    ],
)
def test_pushes(stops: list[str], pushes: list[str], shown: list[str], stop: str | None) -> None:
    matcher = StopMatcher(stops)
    answers = [matcher.push(text) for text in pushes]
    assert [text for text, _ in answers] == shown
    assert answers[-1][1] == matcher.stopped == stop


def test_flush_gives_back_what_was_withheld() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("do not sto") == ("do not ", None)
    assert (matcher.flush(), matcher.flush()) == ("sto", "")


def test_after_a_stop_nothing_comes() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == ("a", ".")
    assert (matcher.push("c"), matcher.flush()) == (("", "."), "")


def test_an_included_stop_is_shown_and_nothing_waits_for_it() -> None:
    matcher = StopMatcher(["END"], include_stop=True)
    assert [matcher.push(text) for text in ("a E", "N", "D b")] == [("a E", None), ("N", None), ("D", "END")]


def test_an_empty_stop_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"stop\[1\]"):
        StopMatcher(["a", ""])
