"""Which prefix blocks live on in the host pool when the device has no room for them."""

from collections.abc import Sequence

from engine.host_swap import HostSwap
from engine.prefix_cache import CachedBlock, PrefixCache


class PrefixTier:
    """Below the prefix cache: what is evicted there moves to a host slot, oldest out first.

    The preempted come before it: they take its slots where there are no others.
    """

    def __init__(self, cache: PrefixCache, swap: HostSwap) -> None:
        self._cache = cache
        self._swap = swap
        cache.slot_freed = swap.uncache

    def spill(self, block: int) -> list[int]:
        """Move an unreferenced block to the host with the next step.

        Returns the device blocks that nothing can find any more, for what fell out at the bottom.
        """
        orphans = self.make_room(1)
        if block not in self._cache:
            # It followed one that fell out.
            return orphans
        slot = self._swap.cache(block)
        if slot is None:
            return [*orphans, *self._cache.forget(block)]
        self._cache.spill(block, slot)
        return [*orphans, block]

    def make_room(self, slots: int) -> list[int]:
        """Drop the oldest until so many slots are free, or none is left to drop; returns as spill does."""
        orphans: list[int] = []
        while self._swap.free < slots and (oldest := self._swap.oldest_cached) is not None:
            orphans += self._cache.forget_slot(oldest)
        return orphans

    def protect(self, hits: Sequence[CachedBlock]) -> None:
        """These are about to be brought back: they may not fall out meanwhile."""
        for hit in hits:
            if hit.slot is not None:
                self._swap.protect(hit.slot)

    def unprotect(self, hits: Sequence[CachedBlock]) -> None:
        for hit in hits:
            if hit.slot is not None:
                self._swap.unprotect(hit.slot)

    def bring_back(self, hits: Sequence[CachedBlock], blocks: Sequence[int]) -> None:
        """Each hit that is on the host is copied to its block in `blocks` by the next step."""
        for hit, block in zip(hits, blocks, strict=True):
            if hit.slot is not None:
                self._swap.bring_back_cached(block, hit.slot)
                self._cache.revive(hit, block)
