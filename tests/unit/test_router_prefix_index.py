"""The index of cached prefixes: longest chain, gaps, bounds."""

from core.request import ModelIdentity
from router.messages import PrefixEvents
from router.prefix_index import PrefixIndex

MODEL = ModelIdentity("model")


def packed(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def events(first: int, stored: bytes = b"", removed: bytes = b"", snapshot: bool = False) -> PrefixEvents:
    return PrefixEvents(first, MODEL, snapshot, stored, removed)


def test_the_longest_chain_of_each_instance_is_found() -> None:
    index = PrefixIndex(100)
    for slot, length in ((0, 2), (1, 4), (3, 1)):
        assert index.apply(slot, events(0, packed(*range(length))))
    assert list(index.match(packed(0, 1, 2, 3, 9))) == [2, 4, 0, 1]
    assert not index.match(packed(9, 0)).any()
    assert not index.match(b"").any()
    index.check()


def test_40_without_its_first_block_nothing_matches() -> None:
    index = PrefixIndex(100)
    index.apply(0, events(0, packed(0, 1, 2)))
    index.apply(0, events(3, removed=packed(0)))
    assert list(index.match(packed(0, 1, 2))) == [0]
    index.apply(0, events(4, packed(0)))
    assert list(index.match(packed(0, 1, 2))) == [3]
    index.apply(0, events(5, removed=packed(1)))
    assert list(index.match(packed(0, 1, 2))) == [1]
    index.check()


def test_a_gap_waits_for_a_snapshot() -> None:
    index = PrefixIndex(100)
    assert index.apply(0, events(0, packed(0, 1)))
    assert not index.apply(0, events(3, packed(2)))
    assert not index.apply(0, events(4, packed(3))), "in sequence with what was never taken"
    assert index.apply(0, events(5, packed(0), snapshot=True))
    assert index.apply(0, events(6, packed(1)))
    assert list(index.match(packed(0, 1, 2))) == [2]
    assert not index.apply(1, events(7, packed(0))), "a process that started before we listened"
    index.check()


def test_memory_is_bounded_by_forgetting_the_least_recently_used() -> None:
    index = PrefixIndex(4)
    index.apply(0, events(0, packed(0, 1, 2, 3)))
    index.match(packed(0, 1))
    index.apply(1, events(0, packed(8, 9)))
    assert index.size == 4
    assert list(index.match(packed(0, 1, 2))) == [2, 0]
    index.check()


def test_a_gone_instance_leaves_nothing() -> None:
    index = PrefixIndex(100)
    index.apply(0, events(0, packed(0, 1)))
    index.apply(1, events(0, packed(0)))
    index.forget(0)
    index.forget(0)
    assert list(index.match(packed(0, 1))) == [0, 1]
    index.forget(1)
    assert index.size == 0
    index.check()
