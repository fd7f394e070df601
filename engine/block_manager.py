"""Who owns which KV block."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from engine.job import BlockCounts
from engine.prefix_cache import PrefixCache


class BlockState(Enum):
    """A block is in exactly one."""

    FREE = "free"
    CACHED = "cached"
    HELD = "held"
    IN_FLIGHT = "in_flight"


Spill = Callable[[int], list[int]]


class BlockManager:
    """References, pins and the free list of one pool.

    A block with pins is under a transfer: in flight, whoever else refers to it. An unpinned block
    with references is held. Without either it is cached if registered, else free.
    """

    def __init__(self, blocks: int, cache: PrefixCache | None) -> None:
        self._references = [0] * blocks
        self._pins = [0] * blocks
        self._cache = cache
        self._free: deque[int] = deque(range(blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""
        self._held = 0
        self._in_flight = 0

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or cached and evictable."""
        return len(self._free) + len(self._cached)

    def counts(self) -> BlockCounts:
        return BlockCounts(
            len(self._references), len(self._free), len(self._cached), self._held, self._in_flight
        )

    def references(self, block: int) -> int:
        return self._references[block]

    def freed_by(self, blocks: Iterable[int]) -> int:
        """How many become available if one reference is released for each time a block is named."""
        named = Counter(blocks)
        return sum(
            1 for block, count in named.items() if self._references[block] == count and not self._pins[block]
        )

    def acquire(
        self, hits: Sequence[int], fresh: int, keep: int = 0, spill: Spill | None = None
    ) -> list[int] | None:
        """One reference each on the registered blocks `hits` and on `fresh` more, in this order.

        None, with nothing taken, if fewer than `keep` blocks would remain available. `spill` is told
        which cached block is evicted, and says which blocks nothing can find any more, it among them.
        """
        revived = sum(1 for block in hits if block in self._cached)
        if self.available - revived - fresh < keep:
            return None
        self.share(hits)
        return [*hits, *(self._take(spill) for _ in range(fresh))]

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference on each."""
        for block in blocks:
            before = self._state(block)
            assert before is not BlockState.FREE, f"block {block} is free and cannot be shared"
            self._references[block] += 1
            self._settle(block, before)

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each; a prompt's last block becomes evictable before its first."""
        for block in reversed(blocks):
            before = self._state(block)
            assert self._references[block] > 0, f"block {block} has no reference to release"
            self._references[block] -= 1
            self._settle(block, before)

    def pin(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            before = self._state(block)
            assert before in (BlockState.HELD, BlockState.IN_FLIGHT), f"block {block} is nobody's to transfer"
            self._pins[block] += 1
            self._settle(block, before)

    def unpin(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            before = self._state(block)
            assert self._pins[block] > 0, f"block {block} has no pin"
            self._pins[block] -= 1
            self._settle(block, before)

    def check(self) -> None:
        """L1: the four states, each counted on its own, make up the pool."""
        states = [self._state(block) for block in range(len(self._references))]
        counts = self.counts()
        assert counts.free + counts.cached + counts.held + counts.in_flight == counts.total, counts
        assert counts.held == states.count(BlockState.HELD), counts
        assert counts.in_flight == states.count(BlockState.IN_FLIGHT), counts
        for block in self._free:
            assert states[block] is BlockState.FREE, f"block {block} is on the free list and {states[block]}"
        for block in self._cached:
            assert states[block] is BlockState.CACHED, f"block {block} is evictable and {states[block]}"
        assert counts.free == states.count(BlockState.FREE), counts
        assert counts.cached == states.count(BlockState.CACHED), counts
        assert min(self._references) >= 0 and min(self._pins) >= 0
        if self._cache is not None:
            self._cache.check()

    def check_owners(self, references: Mapping[int, int], pins: Mapping[int, int]) -> None:
        """Nothing leaks: every reference and every pin is one that its owner still knows of."""
        for block in range(len(self._references)):
            assert self._references[block] == references.get(block, 0), (
                f"block {block}: a reference without owner"
            )
            assert self._pins[block] == pins.get(block, 0), f"block {block}: a pin without owner"

    def _state(self, block: int) -> BlockState:
        if self._pins[block]:
            return BlockState.IN_FLIGHT
        if self._references[block]:
            return BlockState.HELD
        if self._cache is not None and block in self._cache:
            return BlockState.CACHED
        return BlockState.FREE

    def _settle(self, block: int, before: BlockState) -> None:
        """Move a block whose references or pins changed to where its state now belongs."""
        after = self._state(block)
        if after is not before:
            self._leave(block, before)
            self._enter(block, after)

    def _leave(self, block: int, state: BlockState) -> None:
        if state is BlockState.CACHED:
            del self._cached[block]
        elif state is BlockState.HELD:
            self._held -= 1
        elif state is BlockState.IN_FLIGHT:
            self._in_flight -= 1

    def _enter(self, block: int, state: BlockState) -> None:
        if state is BlockState.FREE:
            self._free.append(block)
        elif state is BlockState.CACHED:
            self._cached[block] = None
        elif state is BlockState.HELD:
            self._held += 1
        else:
            self._in_flight += 1

    def orphaned(self, blocks: Iterable[int]) -> None:
        """These are registered no longer; those that nobody refers to are free."""
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def _take(self, spill: Spill | None) -> int:
        if not self._free:
            assert self._cache is not None
            oldest = next(iter(self._cached))
            # Those after a forgotten block become free with it.
            self.orphaned((spill or self._cache.forget)(oldest))
        block = self._free.popleft()
        self._references[block] = 1
        self._held += 1
        return block
