"""What n-gram lookup proposes, and how it learns when to be believed."""

from itertools import pairwise

import pytest

from engine.ngram_proposer import BUCKETS, CHANCES_AT_FIRST, INDEX_TOKENS_MAX, NgramProposer


def proposer(tokens: list[int]) -> NgramProposer:
    made = NgramProposer()
    made.follow(tokens)
    return made


@pytest.mark.parametrize(
    ("tokens", "proposed"),
    [
        pytest.param([], (), id="nothing known"),
        pytest.param([1], (), id="one token"),
        pytest.param([1, 2, 3, 4], (), id="nothing twice"),
        pytest.param([1, 2, 3, 2], (), id="one token is no match"),
        pytest.param([1, 2, 9, 8, 1, 2], (9, 8, 1), id="two tokens are"),
        pytest.param([1, 2, 7, 0, 1, 2, 9, 0, 1, 2], (9, 0, 1), id="the latest of equals"),
        pytest.param([5, 1, 2, 7, 0, 1, 2, 9, 5, 1, 2], (7, 0, 1), id="the longest before the latest"),
        pytest.param([4, 5, 4, 5], (4, 5, 4), id="round and round"),
        pytest.param([6, 6, 6], (6, 6, 6), id="one token over and over"),
    ],
)
def test_proposals(tokens: list[int], proposed: tuple[int, ...]) -> None:
    made = proposer(tokens)
    chances = made.chances(3)
    assert len(chances) == len(proposed)
    assert not proposed or made.propose(tokens, 3) == proposed


def test_a_longer_match_is_believed_more_and_depth_costs_belief() -> None:
    short, long = proposer([1, 2, 9, 8, 1, 2]), proposer([0, 1, 2, 3, 9, 0, 1, 2, 3])
    assert short.chances(1) == [CHANCES_AT_FIRST[0]]
    assert long.chances(1) == [CHANCES_AT_FIRST[2]]
    chances = short.chances(4)
    assert all(later < earlier for earlier, later in pairwise(chances))


def test_it_learns_from_what_comes_speculated_or_not() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8] * 2
    made = proposer(tokens)
    before = made.chances(1)[0]
    for token in tokens[:8]:
        tokens.append(token)
        made.follow(tokens)
    assert made.chances(1)[0] > before
    for _ in range(40):
        for token in (90 + len(tokens), 1, 2):
            tokens.append(token)
            made.follow(tokens)
    assert made.chances(1)[0] < 0.01, "what follows these two has never been the same"


def test_several_tokens_at_once_teach_what_they_would_one_by_one() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    at_once, one_by_one = proposer(list(tokens)), proposer(list(tokens))
    for token in (5, 6, 7):
        tokens.append(token)
        one_by_one.follow(tokens)
    at_once.follow(tokens)
    assert at_once.chances(4) == one_by_one.chances(4)


def test_a_long_prompt_is_indexed_by_and_by() -> None:
    tokens = [token % 30_000 for token in range(3 * INDEX_TOKENS_MAX)] + [0, 1]
    made = proposer(tokens)
    assert made.chances(1) == []
    for token in (2, 3, 4):
        tokens.append(token)
        made.follow(tokens)
    assert made.propose(tokens, 3) == (5, 6, 7)


def test_unlike_pairs_in_one_bucket_are_told_apart() -> None:
    """More pairs than buckets: some share one."""
    tokens = list(range(2 * BUCKETS))
    made = NgramProposer()
    for length in range(1, len(tokens) + 1, INDEX_TOKENS_MAX):
        made.follow(tokens[:length])
    made.follow(tokens)
    assert made.chances(1) == []
