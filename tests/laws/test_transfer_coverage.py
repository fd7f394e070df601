"""Nothing but an exact, checked and written cover commits, whatever a sender claims."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kv_transfer.actions import Committed, Receive, Scatter
from kv_transfer.incoming import Incoming, IncomingConfig
from kv_transfer.types import ChunkHeader, Peer, TransferKey

PEER = Peer("prefill", "1")
KEY = TransferKey(1, 1)


@st.composite
def claims(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]], int]:
    """(tokens, first_token, chunk ranges, total): honest, but for what hypothesis bends."""
    tokens = draw(st.integers(1, 7))
    first = draw(st.integers(0, tokens))
    cuts = sorted(draw(st.lists(st.integers(first, tokens), max_size=4, unique=True)))
    edges = sorted({first, *cuts, tokens})
    ranges = list(pairwise(edges))
    for at, by in draw(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2)), max_size=2)):
        if ranges:
            start, stop = ranges[at % len(ranges)]
            ranges[at % len(ranges)] = (max(0, start + by), stop + by * draw(st.integers(0, 1)))
    ranges = draw(st.permutations(ranges))
    if ranges and draw(st.integers(0, 3)) == 0:
        ranges.pop()
    return tokens, first, ranges, draw(st.sampled_from([len(ranges)] * 3 + [len(ranges) + 1, 0]))


@example((2, 0, [(0, 2), (0, 1)], 2), 0, 2, False)
@given(claims(), st.integers(0, 5), st.integers(0, 30), st.booleans())
@settings(max_examples=400, deadline=None)
def test_commits_exactly_when_covered(
    claim: tuple[int, int, list[tuple[int, int]], int], total_at: int, missing_at: int, bad: bool
) -> None:
    tokens, first, ranges, total = claim
    incoming = Incoming(IncomingConfig(bytes_per_token=2))
    incoming.reserve(KEY, PEER, tokens, 1_000, 9_000, 0)
    actions = incoming.bind(KEY, first, 0)
    written: list[int] = []
    for chunk, (start, stop) in enumerate(ranges):
        if chunk == total_at:
            actions += incoming.total(PEER, KEY, total, 1)
        header = ChunkHeader(1, 1, chunk, start, stop, (stop - start) * 2, 0)
        for receive in incoming.chunk_sent(PEER, header, 1):
            if isinstance(receive, Receive):
                good = not (bad and chunk == missing_at)
                for scatter in incoming.chunk_arrived(PEER, header, good, 2):
                    if isinstance(scatter, Scatter) and chunk != missing_at:
                        written += range(start, stop)
                        actions += incoming.scattered(KEY, chunk, 3)
        incoming.check()
    total_known = total_at < len(ranges)
    if not total_known:
        assert ranges == [] or Committed(PEER, KEY) not in actions, "committed without a total"
        actions += incoming.total(PEER, KEY, total, 4)
    claimed = [token for start, stop in ranges for token in range(start, stop)]
    # What was claimed counts, not only what was written: an overlapping chunk is refused, and that ends it.
    exact = sorted(written) == sorted(claimed) == list(range(first, tokens))
    honest = (
        exact
        and missing_at >= len(ranges)
        and total == len(ranges)
        and all(start < stop for start, stop in ranges)
    )
    nothing_missing = first == tokens
    assert (Committed(PEER, KEY) in actions) == (honest or nothing_missing)
    assert actions.count(Committed(PEER, KEY)) <= 1
