"""The pool under any order of events: conservation, owners, and no block twice."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.prefix_hashes import chain
from engine.block_manager import BlockManager
from engine.prefix_cache import CachedBlock, PrefixCache

ROOT = b"rootroot"
SIZE = 16


class Pool(RuleBasedStateMachine):
    """Holders of prompts that come, register, pin and go."""

    @initialize(blocks=st.integers(1, 12), hash_bits=st.sampled_from([1, 2, 64]))
    def start(self, blocks: int, hash_bits: int) -> None:
        self.cache = PrefixCache(SIZE, blocks, hash_bits)
        self.manager = BlockManager(blocks, self.cache)
        self.held: list[list[int]] = []
        self.pinned: list[list[int]] = []
        self.contents: dict[int, tuple[int, ...]] = {}
        """All tokens up to the end of each block, as its holder wrote them."""

    @rule(pattern=st.lists(st.integers(0, 1), min_size=1, max_size=4), keep=st.integers(0, 2))
    def come(self, pattern: list[int], keep: int) -> None:
        tokens = [bit for bit in pattern for _ in range(SIZE)]
        hashes = chain(ROOT, tokens, SIZE)
        hits = self.cache.match(ROOT, hashes, tokens, len(pattern))
        for index, hit in enumerate(hits):
            assert self.contents[hit.block] == tuple(tokens[: (index + 1) * SIZE])
        before = self.manager.counts()
        blocks = self.manager.acquire([hit.block for hit in hits], len(pattern) - len(hits), keep)
        if blocks is None:
            assert self.manager.counts() == before
            return
        assert self.manager.available >= keep
        others = [block for holder in [*self.held, *self.pinned] for block in holder]
        assert not any(block in others for block in blocks[len(hits) :])
        self.held.append(blocks)
        self._compute(blocks, tokens, hashes, hits)

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        if index < len(self.held):
            self.manager.release(self.held.pop(index))

    @rule(index=st.integers(0, 9))
    def pin(self, index: int) -> None:
        if index < len(self.held):
            self.manager.pin(self.held[index])
            self.pinned.append(list(self.held[index]))

    @rule(index=st.integers(0, 9))
    def unpin(self, index: int) -> None:
        if index < len(self.pinned):
            self.manager.unpin(self.pinned.pop(index))

    @invariant()
    def laws_hold(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        self.manager.check_owners(
            Counter(block for blocks in self.held for block in blocks),
            Counter(block for blocks in self.pinned for block in blocks),
        )

    def _compute(
        self, blocks: list[int], tokens: list[int], hashes: list[bytes], hits: list[CachedBlock]
    ) -> None:
        parent = hits[-1] if hits else None
        for index in range(len(hits), len(blocks)):
            self.contents[blocks[index]] = tuple(tokens[: (index + 1) * SIZE])
        for index in range(len(hits), len(blocks)):
            part = tuple(tokens[index * SIZE : (index + 1) * SIZE])
            parent = self.cache.store(blocks[index], ROOT, parent, hashes[index], part, (hashes[index],))
            if parent is None:
                return


Pool.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestPool = Pool.TestCase
