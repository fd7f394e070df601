"""Which tokens are likely to follow, because they followed the same ones before (prompt lookup).

The prompt-lookup idea is Saxena's (2023, "Prompt Lookup Decoding"); the index is the hash chain of
LZ77 coders (RFC 1951, section 4), one link per token, so that a token is indexed in constant time.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

MATCH_MIN, MATCH_MAX = 2, 4
"""Tokens that must have occurred before; a longer match than the most counts as the most."""
BUCKETS = 4096
CANDIDATES_MAX = 8
"""Earlier occurrences looked at, latest first."""
INDEX_TOKENS_MAX = 512
"""Tokens indexed at once, so that a long prompt never holds up a step."""
CHANCES_AT_FIRST = (0.2, 0.3, 0.5)
LEARNING_RATE = 0.125


@dataclass(frozen=True, slots=True)
class Match:
    """The longest of the looked-at occurrences of what a sequence ends with."""

    source: int
    """Position of the token that followed it."""
    length: int
    """MATCH_MIN..MATCH_MAX."""


class NgramProposer:
    """One sequence's index and how often it was right: 16 KiB and 4 bytes per token.

    Its chances are known without spending anything: every match says which token would come next,
    and the token that does come says whether that was so, speculated or not.
    """

    __slots__ = ("_chances", "_indexed", "_known", "_match", "_newest", "_older")

    def __init__(self) -> None:
        self._newest = array("i", [-1]) * BUCKETS
        """By pair of tokens, hashed: the position of the second of the latest such pair."""
        self._older = array("i", [-1])
        """By position: that of the pair before in the same bucket."""
        self._indexed = 1
        """Pairs whose second token is before this are in the index."""
        self._known = 0
        """Tokens when `_match` was found."""
        self._match: Match | None = None
        self._chances = list(CHANCES_AT_FIRST)
        """By length of the match: how often the token after it came again."""

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that are new since the last call; earlier ones never change."""
        if len(tokens) == self._known:
            return
        self._learn(tokens)
        self._index(tokens)
        self._known = len(tokens)
        self._match = self._find(tokens) if self._indexed == len(tokens) - 1 else None

    def chances(self, most: int, least: float = 0.0) -> list[float]:
        """How likely the first, the first two .. the first `most` proposals are all right.

        Only as far as that is likelier than `least`; empty: nothing to propose.
        """
        if self._match is None:
            return []
        chances, chance = [], 1.0
        for length in range(self._match.length, self._match.length + most):
            chance *= self._chances[min(length, MATCH_MAX) - MATCH_MIN]
            if chance <= least:
                break
            chances.append(chance)
        return chances

    def propose(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """The `count` tokens after the match; where it reaches the end of `tokens` it goes round."""
        assert self._match is not None and len(tokens) == self._known
        period = len(tokens) - self._match.source
        return tuple(tokens[self._match.source + index % period] for index in range(count))

    def _learn(self, tokens: Sequence[int]) -> None:
        if self._match is None:
            return
        for index in range(len(tokens) - self._known):
            hit = tokens[self._match.source + index] == tokens[self._known + index]
            rank = _rank(self._match.length + index)
            self._chances[rank] += LEARNING_RATE * (hit - self._chances[rank])
            if not hit:
                return

    def _index(self, tokens: Sequence[int]) -> None:
        """All pairs but the last, which is what is looked for."""
        stop = min(len(tokens) - 1, self._indexed + INDEX_TOKENS_MAX)
        for position in range(self._indexed, stop):
            bucket = _bucket(tokens[position - 1], tokens[position])
            self._older.append(self._newest[bucket])
            self._newest[bucket] = position
        self._indexed = max(self._indexed, stop)

    def _find(self, tokens: Sequence[int]) -> Match | None:
        last = len(tokens) - 1
        candidate = self._newest[_bucket(tokens[last - 1], tokens[last])]
        if candidate < 0:
            return None
        best, best_length = -1, MATCH_MIN - 1
        for _ in range(CANDIDATES_MAX):
            if candidate < 0 or best_length == MATCH_MAX:
                break
            length = _agreement(tokens, candidate, last)
            if length > best_length:
                best, best_length = candidate, length
            candidate = self._older[candidate]
        return Match(best + 1, best_length) if best >= 0 else None


def _rank(length: int) -> int:
    return min(length, MATCH_MAX) - MATCH_MIN


def _bucket(first: int, second: int) -> int:
    """Multiplicative hashing (Knuth 1998, section 6.4)."""
    return ((first * 0x9E3779B1 + second * 0x85EBCA6B) >> 12) % BUCKETS


def _agreement(tokens: Sequence[int], one: int, other: int) -> int:
    """How many tokens up to and including these positions are the same, MATCH_MAX at most."""
    length = 0
    while length < MATCH_MAX and one >= length and tokens[one - length] == tokens[other - length]:
        length += 1
    return length
