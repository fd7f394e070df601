"""Which host slot keeps what, and which copies to and from the host the next step owes."""

from collections import OrderedDict, deque
from collections.abc import Sequence

Pairs = tuple[tuple[int, int], ...]
"""(device block, host slot)."""


class HostSwap:
    """Slots of one host pool, all sized at start.

    A slot is free, kept for a sequence, has a cached prefix block, or is read by a step.
    """

    def __init__(self, slots: int) -> None:
        self._count = slots
        self._free: deque[int] = deque(range(slots))
        self._kept: dict[int, None] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Oldest first."""
        self._protected: dict[int, None] = {}
        """Cached, and about to be brought back."""
        self._out: dict[int, tuple[int, bool]] = {}
        """Slot to (block, held): to be copied by the next step."""
        self._in: list[tuple[int, int]] = []
        self._read: list[int] = []
        """Slots that the next or the running step reads, or need not: free when it is done."""
        self._copying: list[int] = []
        """Held blocks that the running step copies."""

    @property
    def owes(self) -> bool:
        return bool(self._out or self._in)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def oldest_cached(self) -> int | None:
        return next(iter(self._cached), None)

    @property
    def used(self) -> int:
        """Slots that somebody needs: the cached could be dropped."""
        return self._count - len(self._free) - len(self._cached)

    @property
    def held(self) -> list[int]:
        """Blocks that must not be given to anybody before their copy is made."""
        return [*self._copying, *(block for block, is_held in self._out.values() if is_held)]

    def keep(self, blocks: Sequence[int], *, hold: bool) -> list[int] | None:
        """A slot for each block, all or none; copied by the next step, before anything else it does."""
        if len(self._free) < len(blocks):
            return None
        slots = [self._free.popleft() for _ in blocks]
        for block, slot in zip(blocks, slots, strict=True):
            self._kept[slot] = None
            self._out[slot] = (block, hold)
        return slots

    def cache(self, block: int) -> int | None:
        """A slot for an evicted prefix block, copied by the next step; None: there is none."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._cached[slot] = None
        self._out[slot] = (block, False)
        return slot

    def uncache(self, slot: int) -> None:
        del self._cached[slot]
        self._free.append(slot)
        self._out.pop(slot, None)

    def protect(self, slot: int) -> None:
        del self._cached[slot]
        self._protected[slot] = None

    def unprotect(self, slot: int) -> None:
        del self._protected[slot]
        self._cached[slot] = None

    def bring_back_cached(self, block: int, slot: int) -> None:
        """As bring_back, of a protected slot."""
        del self._protected[slot]
        self._in.append((block, slot))
        self._read.append(slot)

    def bring_back(self, blocks: Sequence[int], slots: Sequence[int], unneeded: Sequence[int]) -> None:
        """Copy slots into blocks with the next step; none of them is kept after it, nor are the unneeded."""
        self._in.extend(zip(blocks, slots, strict=True))
        for slot in [*slots, *unneeded]:
            del self._kept[slot]
            self._read.append(slot)

    def drop(self, slots: Sequence[int]) -> list[int]:
        """These slots are kept for nobody any more; returns the held blocks whose copy is no longer owed."""
        released = []
        for slot in slots:
            del self._kept[slot]
            self._free.append(slot)
            block, is_held = self._out.pop(slot, (0, False))
            if is_held:
                released.append(block)
        return released

    def take(self) -> tuple[Pairs, Pairs]:
        """(out, in) of the step that is planned now."""
        swap_out = tuple((block, slot) for slot, (block, _) in self._out.items())
        swap_in = tuple(self._in)
        self._copying = [block for block, is_held in self._out.values() if is_held]
        self._out, self._in = {}, []
        return swap_out, swap_in

    def end_step(self) -> list[int]:
        """The step is done; returns the held blocks it has copied."""
        self._free.extend(self._read)
        copied, self._copying, self._read = self._copying, [], []
        return copied

    def check(self) -> None:
        """Every slot is in exactly one place."""
        slots = sorted([*self._free, *self._kept, *self._cached, *self._read])
        assert slots == list(range(self._count)), "a host slot is lost or in two places"
        assert not self._protected, "protected between steps"
        assert not any(slot in self._free for slot in self._out)
