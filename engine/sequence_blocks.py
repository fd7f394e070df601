"""Which blocks a sequence takes, shares, copies, registers and gives back."""

from dataclasses import dataclass

from core.prefix_hashes import HASH_UNIT, extend_chain, namespace_at
from engine.block_manager import BlockManager, Spill
from engine.config import EngineConfig
from engine.host_swap import HostSwap
from engine.prefix_cache import CachedBlock, PrefixCache
from engine.prefix_tier import PrefixTier
from engine.sequence import Sequence

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the next step owes blocks, in the order of execution; as in StepPlan."""

    swap_out: Pairs
    swap_in: Pairs
    zero: tuple[int, ...]
    copies: Pairs


class SequenceBlocks:
    """The pool as sequences see it, and the zeroing and copying the next step owes them."""

    def __init__(self, config: EngineConfig, *, has_tier: bool = False) -> None:
        """`has_tier`: evicted prefix blocks move to the host pool, where it has room."""
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
        self._swap = HostSwap(config.swap_blocks)
        has_tier = has_tier and config.swap_blocks > 0 and self.cache is not None
        self._tier = PrefixTier(self.cache, self._swap) if has_tier and self.cache is not None else None
        self._spill = self._tier.spill if self._tier is not None else None
        self._restored: list[Sequence] = []
        self.copy_sources: dict[int, int] = {}
        """References the step itself keeps on what it copies from, so that nobody is given it meanwhile."""

    def admit(self, sequence: Sequence, keep: int) -> bool:
        """Take blocks for every known token, the cached ones first; False and nothing taken if they lack.

        What was saved on the host comes back whole. The last token is always left to compute: its
        logits are wanted.
        """
        if sequence.saved:
            return self._restore(sequence, keep)
        known = len(sequence.tokens)
        fresh = self._take(sequence, known, (known - 1) // self._block_size, keep, by_transfer=False)
        if fresh is None:
            return False
        self._zero.update(dict.fromkeys(fresh))
        return True

    def bind(self, sequence: Sequence, keep: int) -> bool:
        """Take blocks for every known token and one more, to be filled by a transfer, hence never zeroed."""
        known = len(sequence.tokens)
        cached_most = known // self._block_size
        return self._take(sequence, known + 1, cached_most, keep, by_transfer=True) is not None

    def grow(self, sequence: Sequence, stop: int) -> bool:
        """Give it blocks of its own for positions computed..stop; False and nothing taken if they lack."""
        blocks = sequence.blocks
        missing = -(-stop // self._block_size) - len(blocks)
        first = sequence.computed // self._block_size
        shared = first < len(blocks) and self._is_shared(blocks[first])
        if missing <= 0 and not shared:
            return True
        fresh = self.manager.acquire((), max(0, missing) + shared, 0, self._spill)
        if fresh is None:
            return False
        if shared:
            self._copy_on_write(blocks, first, fresh.pop(0))
        blocks.extend(fresh)
        self._zero.update(dict.fromkeys(fresh))
        sequence.block_table = tuple(blocks)
        return True

    def grow_for_trial(self, sequence: Sequence, count: int) -> int:
        """How many of `count` drafts after its known tokens have blocks, which it keeps.

        Beyond what it has it takes only blocks that are free and not those kept for the running.
        """
        known = len(sequence.tokens)
        missing = self._config.blocks_for(known + count) - len(sequence.blocks)
        spare = self.manager.available - self._config.watermark_blocks
        if missing <= 0 or (missing <= spare and self.grow(sequence, known + count)):
            return count
        return max(0, len(sequence.blocks) * self._block_size - known)

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

    @property
    def owes_swaps(self) -> bool:
        return self._swap.owes

    @property
    def held_for_swap(self) -> int:
        """Blocks that come free when the next step has copied them."""
        return len(self._swap.held)

    @property
    def host_slots_used(self) -> int:
        return self._swap.used

    def swap_out(self, sequence: Sequence, *, hold: bool) -> bool:
        """Keep its KV on the host and give its blocks back; False and nothing done if slots lack.

        `hold`: the blocks stay taken until the step that copies them is done, for they may next be
        given to a transfer, which writes when it likes.
        """
        saved = sequence.computed
        blocks = sequence.blocks[: self._config.blocks_for(saved)]
        if self._tier is not None:
            self.manager.orphaned(self._tier.make_room(len(blocks)))
        slots = self._swap.keep(blocks, hold=hold)
        if slots is None:
            return False
        if hold:
            self.manager.share(blocks)
        self.free(sequence)
        sequence.saved, sequence.host_slots = saved, slots
        return True

    def free(self, sequence: Sequence) -> None:
        """Give back everything; its tokens remain, to be computed again."""
        if sequence.host_slots:
            self.manager.release(self._swap.drop(sequence.host_slots))
            sequence.saved, sequence.host_slots = 0, []
        self.manager.release(sequence.blocks)
        for block in sequence.blocks:
            # The next step must not zero what a transfer may have been given by then.
            self._zero.pop(block, None)
        sequence.blocks, sequence.block_table = [], ()
        sequence.computed = sequence.registered = 0
        sequence.tail, sequence.chain_broken = None, False

    def take_step_work(self) -> StepWork:
        """What the next step does to blocks before it computes."""
        zero, copies = tuple(self._zero), tuple(self._copies)
        assert all(self.manager.references(block) for block in zero), (
            "a block that nobody holds would be zeroed"
        )
        self._zero, self._copies = {}, []
        swap_out, swap_in = self._swap.take()
        return StepWork(swap_out, swap_in, zero, copies)

    def end_step(self) -> None:
        """Copies and swaps are done; let go of their sources."""
        for source, count in self.copy_sources.items():
            for _ in range(count):
                self.manager.release((source,))
        self.copy_sources = {}
        self.manager.release(self._swap.end_step())
        self.end_plan()

    def end_plan(self) -> None:
        """Nothing is owed any more to who was admitted: they may give way again."""
        for sequence in self._restored:
            sequence.restoring = False
        self._restored = []

    def step_references(self) -> list[int]:
        """The blocks that steps, owed or running, keep a reference on, once for each."""
        copied = [block for block, count in self.copy_sources.items() for _ in range(count)]
        return [*copied, *self._swap.held]

    def check(self) -> None:
        self.manager.check()
        self._swap.check()

    def _restore(self, sequence: Sequence, keep: int) -> bool:
        """Take blocks for every known token; what the prefix cache still has need not be copied back."""
        hits = self._hits(sequence, sequence.saved // self._block_size, on_device=True)
        count = self._config.blocks_for(len(sequence.tokens))
        blocks = self.manager.acquire([hit.block for hit in hits], count - len(hits), keep, self._spill)
        if blocks is None:
            return False
        slots = sequence.host_slots
        self._swap.bring_back(blocks[len(hits) : len(slots)], slots[len(hits) :], slots[: len(hits)])
        self._zero.update(dict.fromkeys(blocks[len(slots) :]))
        self._hold(sequence, blocks, hits)
        sequence.computed = sequence.saved
        sequence.saved, sequence.host_slots = 0, []
        self._note_restored(sequence)
        return True

    def _note_restored(self, sequence: Sequence) -> None:
        sequence.restoring = True
        self._restored.append(sequence)

    def _take(
        self, sequence: Sequence, tokens: int, cached_most: int, keep: int, *, by_transfer: bool
    ) -> list[int] | None:
        """The fresh ones of the blocks taken, or None.

        `by_transfer`: they are written before the next step may be, so nothing is copied from or to them.
        """
        hits = self._hits(sequence, cached_most, on_device=by_transfer)
        blocks = self._acquire(
            hits, self._config.blocks_for(tokens), keep, None if by_transfer else self._spill
        )
        if blocks is None:
            return None
        if self._tier is not None and hits and not by_transfer:
            # What it found may be on its way from the host, for it or for another.
            self._note_restored(sequence)
        self._hold(sequence, blocks, hits)
        sequence.computed = len(hits) * self._block_size
        sequence.computed_most = max(sequence.computed_most, sequence.computed)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, len(sequence.job.prompt))
        return blocks[len(hits) :]

    def _acquire(
        self, hits: list[CachedBlock], count: int, keep: int, spill: Spill | None
    ) -> list[int] | None:
        """`count` blocks, the hits first; those on the host come back into fresh ones."""
        here = [hit.block for hit in hits if hit.slot is None]
        if self._tier is None or len(here) == len(hits):
            return self.manager.acquire(here, count - len(here), keep, spill)
        self._tier.protect(hits)
        taken = self.manager.acquire(here, count - len(here), keep, spill)
        if taken is None:
            self._tier.unprotect(hits)
            return None
        fresh = iter(taken[len(here) :])
        blocks = [hit.block if hit.slot is None else next(fresh) for hit in hits]
        self._tier.bring_back(hits, blocks)
        return [*blocks, *fresh]

    def _hits(self, sequence: Sequence, most: int, *, on_device: bool) -> list[CachedBlock]:
        if self.cache is None:
            return []
        self._extend_hashes(sequence)
        root = sequence.job.hash_root
        return self.cache.match(root, sequence.block_hashes, sequence.tokens, most, on_device=on_device)

    def _hold(self, sequence: Sequence, blocks: list[int], hits: list[CachedBlock]) -> None:
        sequence.blocks, sequence.block_table = blocks, tuple(blocks)
        sequence.registered, sequence.tail = len(hits), hits[-1] if hits else None

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
