"""The pool: all or nothing, four states, eviction that keeps prefixes findable, collisions refused."""

import pytest

from core.prefix_hashes import chain
from engine.block_manager import BlockManager
from engine.job import BlockCounts
from engine.prefix_cache import CachedBlock, PrefixCache, PrefixChanges

ROOT = b"rootroot"
SIZE = 16


def pool(blocks: int, hash_bits: int = 64) -> tuple[BlockManager, PrefixCache]:
    cache = PrefixCache(SIZE, blocks, hash_bits)
    return BlockManager(blocks, cache), cache


def register(cache: PrefixCache, blocks: list[int], tokens: list[int]) -> list[CachedBlock]:
    entries: list[CachedBlock] = []
    for index, unit_hash in enumerate(chain(ROOT, tokens, SIZE)):
        part = tuple(tokens[index * SIZE : (index + 1) * SIZE])
        parent = entries[-1] if entries else None
        entry = cache.store(blocks[index], ROOT, parent, unit_hash, part, (unit_hash,))
        assert entry is not None
        entries.append(entry)
    return entries


def matched(cache: PrefixCache, tokens: list[int], root: bytes = ROOT) -> list[int]:
    return [hit.block for hit in cache.match(root, chain(root, tokens, SIZE), tokens, 99)]


def test_acquire_is_all_or_nothing_and_in_order() -> None:
    manager, _ = pool(4)
    assert manager.acquire((), 3) == [0, 1, 2]
    assert manager.acquire((), 2) is None
    assert manager.counts() == BlockCounts(total=4, free=1, cached=0, held=3, in_flight=0)
    assert manager.acquire((), 1, keep=1) is None
    assert manager.acquire((), 1) == [3]
    manager.check()


def test_a_pinned_block_is_in_flight_until_unpinned_even_when_nobody_holds_it() -> None:
    manager, _ = pool(2)
    blocks = manager.acquire((), 2)
    assert blocks is not None
    manager.pin(blocks)
    manager.release(blocks)
    assert manager.counts() == BlockCounts(total=2, free=0, cached=0, held=0, in_flight=2)
    assert manager.acquire((), 1) is None
    manager.unpin(blocks)
    assert manager.counts().free == 2
    manager.check()


def test_released_blocks_stay_cached_only_if_registered() -> None:
    manager, cache = pool(4)
    blocks = manager.acquire((), 3)
    assert blocks is not None
    register(cache, blocks, list(range(40)))
    manager.release(blocks)
    assert manager.counts() == BlockCounts(total=4, free=2, cached=2, held=0, in_flight=0)
    assert matched(cache, list(range(40))) == blocks[:2]
    manager.check()


def test_eviction_takes_the_end_of_the_prefix_that_was_used_longest_ago() -> None:
    manager, cache = pool(4)
    old, new = list(range(32)), list(range(100, 132))
    for tokens in (old, new):
        blocks = manager.acquire((), 2)
        assert blocks is not None
        register(cache, blocks, tokens)
        manager.release(blocks)
    assert manager.acquire((), 1) == [1]
    assert matched(cache, old) == [0]
    assert matched(cache, new) == [2, 3]
    manager.check()


def test_a_hit_is_not_evicted_for_the_rest_of_its_own_acquire() -> None:
    manager, cache = pool(3)
    blocks = manager.acquire((), 2)
    assert blocks is not None
    register(cache, blocks, list(range(32)))
    manager.release(blocks)
    assert manager.acquire([0, 1], 2) is None
    assert manager.acquire([0, 1], 1) == [0, 1, 2]
    manager.check()


def test_forgetting_the_first_block_of_a_prompt_forgets_the_prompt() -> None:
    manager, cache = pool(4)
    blocks = manager.acquire((), 3)
    assert blocks is not None
    register(cache, blocks, list(range(48)))
    assert cache.forget(0) == [0, 1, 2]
    assert matched(cache, list(range(48))) == []
    manager.release(blocks)
    assert manager.counts().free == 4
    manager.check()


def test_a_child_of_an_evicted_block_is_not_registered() -> None:
    _, cache = pool(4)
    (parent,) = register(cache, [0], list(range(16)))
    cache.forget(0)
    assert cache.store(1, ROOT, parent, b"hashhash", tuple(range(16)), ()) is None


def test_equal_tokens_in_a_second_block_leave_the_first_registered() -> None:
    _, cache = pool(4)
    (first,) = register(cache, [0], list(range(16)))
    (second,) = register(cache, [1], list(range(16)))
    assert second is first and 1 not in cache


def test_namespaces_do_not_share_even_under_equal_hashes() -> None:
    _, cache = pool(4)
    tokens = list(range(16))
    register(cache, [0], tokens)
    hashes = chain(ROOT, tokens, SIZE)
    assert cache.match(b"tenant-b", hashes, tokens, 1) == []
    assert cache.collisions == 1


def test_with_hashes_of_8_bits_a_collision_is_detected_and_never_reused() -> None:
    manager, cache = pool(1024, hash_bits=8)
    prompts = [[number] * 32 for number in range(400)]
    for tokens in prompts:
        blocks = manager.acquire((), 2)
        assert blocks is not None
        parent: CachedBlock | None = None
        for index, unit_hash in enumerate(chain(ROOT, tokens, SIZE)):
            parent = cache.store(blocks[index], ROOT, parent, unit_hash, tuple(tokens[:16]), (unit_hash,))
            if parent is None:
                break
            assert parent.block == blocks[index]
        hits = cache.match(ROOT, chain(ROOT, tokens, SIZE), tokens, 2)
        assert [hit.block for hit in hits] == blocks[: len(hits)]
    assert cache.collisions > 100
    manager.check()


def test_changes_are_told_once_and_in_their_last_state() -> None:
    _, cache = pool(4)
    first, second = chain(ROOT, list(range(32)), SIZE)
    register(cache, [0, 1], list(range(32)))
    assert cache.take_changes() == PrefixChanges((first, second), ())
    cache.forget(1)
    assert cache.take_changes() == PrefixChanges((), (second,))
    cache.forget(0)
    register(cache, [2], list(range(16)))
    assert cache.take_changes() == PrefixChanges((first,), ())
    assert cache.hashes() == (first,)


def test_changes_that_nobody_takes_end_as_a_resync() -> None:
    _, cache = pool(1)
    for number in range(50):
        register(cache, [0], [number] * 16)
        if number < 49:
            cache.forget(0)
    assert cache.take_changes() == PrefixChanges(tuple(chain(ROOT, [49] * 16)), (), resync=True)
    assert cache.take_changes() == PrefixChanges((), ())


@pytest.mark.parametrize("act", ["release", "unpin", "share", "pin"])
def test_what_nobody_has_cannot_be_given_back_or_shared(act: str) -> None:
    manager, _ = pool(2)
    with pytest.raises(AssertionError):
        getattr(manager, act)([0])
