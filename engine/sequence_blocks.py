"""Which blocks a sequence takes, shares, copies, registers and gives back."""

from core.prefix_hashes import HASH_UNIT, extend_chain, namespace_at
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.prefix_cache import PrefixCache
from engine.sequence import Sequence


class SequenceBlocks:
    """The pool as sequences see it, and the zeroing and copying the next step owes them."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._block_size = config.block_size
        self.cache = (
            PrefixCache(config.block_size, config.blocks, config.prefix_hash_bits)
            if config.prefix_cache
            else None
        )
        self.manager = BlockManager(config.blocks, self.cache)
        self._zero: dict[int, None] = {}
        self._copies: list[tuple[int, int]] = []
        self.copy_sources: dict[int, int] = {}
        """References the step itself keeps on what it copies from, so that nobody is given it meanwhile."""

    def admit(self, sequence: Sequence, keep: int) -> bool:
        """Take blocks for every known token, the cached ones first; False and nothing taken if they lack.

        The last token is always left to compute: its logits are wanted.
        """
        known = len(sequence.tokens)
        fresh = self._take(sequence, known, (known - 1) // self._block_size, keep)
        if fresh is None:
            return False
        self._zero.update(dict.fromkeys(fresh))
        return True

    def bind(self, sequence: Sequence, keep: int) -> bool:
        """Take blocks for every known token and one more, to be filled by a transfer, hence never zeroed."""
        known = len(sequence.tokens)
        return self._take(sequence, known + 1, known // self._block_size, keep) is not None

    def grow(self, sequence: Sequence, stop: int) -> bool:
        """Give it blocks of its own for positions computed..stop; False and nothing taken if they lack."""
        blocks = sequence.blocks
        missing = -(-stop // self._block_size) - len(blocks)
        first = sequence.computed // self._block_size
        shared = first < len(blocks) and self._is_shared(blocks[first])
        if missing <= 0 and not shared:
            return True
        fresh = self.manager.acquire((), max(0, missing) + shared)
        if fresh is None:
            return False
        if shared:
            self._copy_on_write(blocks, first, fresh.pop(0))
        blocks.extend(fresh)
        self._zero.update(dict.fromkeys(fresh))
        sequence.block_table = tuple(blocks)
        return True

    def fork(self, trunk: Sequence, child: Sequence) -> None:
        """The child starts from the trunk's KV, sharing its blocks."""
        child.blocks = trunk.blocks[: self._config.blocks_for(trunk.computed)]
        child.block_table = tuple(child.blocks)
        self.manager.share(child.blocks)
        child.computed = trunk.computed
        child.registered, child.tail, child.chain_broken = trunk.registered, trunk.tail, trunk.chain_broken

    def register(self, sequence: Sequence) -> None:
        """Tell the prefix cache of blocks that have become full and computed."""
        if self.cache is None or sequence.chain_broken:
            return
        full = sequence.computed // self._block_size
        if sequence.registered < full:
            self._extend_hashes(sequence)
        while sequence.registered < full and not sequence.chain_broken:
            self._register_next(self.cache, sequence)

    def free(self, sequence: Sequence) -> None:
        """Give back everything; its tokens remain, to be computed again."""
        self.manager.release(sequence.blocks)
        for block in sequence.blocks:
            # The next step must not zero what a transfer may have been given by then.
            self._zero.pop(block, None)
        sequence.blocks, sequence.block_table = [], ()
        sequence.computed = sequence.registered = 0
        sequence.tail, sequence.chain_broken = None, False

    def take_step_work(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """(blocks to zero, copies as (source, destination)) that the next step owes."""
        zero, copies = tuple(self._zero), tuple(self._copies)
        assert all(self.manager.references(block) for block in zero), (
            "a block that nobody holds would be zeroed"
        )
        self._zero, self._copies = {}, []
        return zero, copies

    def end_step(self) -> None:
        """The copies are done; let go of their sources."""
        for source, count in self.copy_sources.items():
            for _ in range(count):
                self.manager.release((source,))
        self.copy_sources = {}

    def _take(self, sequence: Sequence, tokens: int, cached_most: int, keep: int) -> list[int] | None:
        """The fresh ones of the blocks taken, or None."""
        hits = []
        if self.cache is not None:
            self._extend_hashes(sequence)
            hits = self.cache.match(
                sequence.job.hash_root, sequence.block_hashes, sequence.tokens, cached_most
            )
        count = self._config.blocks_for(tokens)
        blocks = self.manager.acquire([hit.block for hit in hits], count - len(hits), keep)
        if blocks is None:
            return None
        sequence.blocks, sequence.block_table = blocks, tuple(blocks)
        sequence.registered, sequence.tail = len(hits), hits[-1] if hits else None
        sequence.computed = len(hits) * self._block_size
        sequence.computed_most = max(sequence.computed_most, sequence.computed)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, len(sequence.job.prompt))
        return blocks[len(hits) :]

    def _is_shared(self, block: int) -> bool:
        return self.manager.references(block) - self.copy_sources.get(block, 0) > 1

    def _copy_on_write(self, blocks: list[int], index: int, destination: int) -> None:
        source = blocks[index]
        blocks[index] = destination
        self._copies.append((source, destination))
        self.copy_sources[source] = self.copy_sources.get(source, 0) + 1

    def _extend_hashes(self, sequence: Sequence) -> None:
        root = sequence.job.hash_root
        extend_chain(root, sequence.block_hashes, sequence.tokens, self._block_size)
        if self._block_size == HASH_UNIT:
            sequence.unit_hashes = sequence.block_hashes
        else:
            extend_chain(root, sequence.unit_hashes, sequence.tokens, HASH_UNIT)

    def _register_next(self, cache: PrefixCache, sequence: Sequence) -> None:
        index, size = sequence.registered, self._block_size
        start, stop = index * size, (index + 1) * size
        entry = cache.store(
            sequence.blocks[index],
            namespace_at(sequence.job.hash_root, stop),
            sequence.tail,
            sequence.block_hashes[index],
            tuple(sequence.tokens[start:stop]),
            tuple(sequence.unit_hashes[start // HASH_UNIT : stop // HASH_UNIT]),
        )
        if entry is None:
            sequence.chain_broken = True
        else:
            sequence.tail = entry
            sequence.registered += 1
