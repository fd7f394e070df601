"""Which instances have which prefix cached."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from router.messages import HASH_BYTES, PrefixEvents

Units = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Holder:
    next_sequence: int | None = None
    """None: a snapshot is awaited."""
    hashes: dict[bytes, None] = field(default_factory=dict)


class PrefixIndex:
    """Chained hash to the instances that hold it, as a bit mask per hash; an instance is its slot, a
    small number that is its own while it lives.

    Hints only: a worker compares the tokens themselves. Beyond `hashes_max` distinct hashes the least
    recently used one is forgotten; a hash forgotten or evicted in mid-chain ends the match there.
    """

    def __init__(self, hashes_max: int) -> None:
        self._hashes_max = hashes_max
        self._masks: OrderedDict[bytes, int] = OrderedDict()
        self._holders: dict[int, _Holder] = {}
        self._slots = 0

    def apply(self, slot: int, events: PrefixEvents) -> bool:
        """Takes the events over; False on a gap: nothing is taken until a snapshot comes."""
        # A process that has just started counts from 0; from any other point a snapshot is needed.
        holder = self._holders.setdefault(slot, _Holder(0))
        self._slots = max(self._slots, slot + 1)
        stored, removed = split(events.stored), split(events.removed)
        if events.snapshot:
            self._clear(slot, holder)
        elif holder.next_sequence is None or events.first_sequence != holder.next_sequence:
            holder.next_sequence = None
            return False
        for hash_ in stored:
            self._store(slot, holder, hash_)
        for hash_ in removed:
            self._remove(slot, holder, hash_)
        holder.next_sequence = events.first_sequence + len(stored) + len(removed)
        return True

    def forget(self, slot: int) -> None:
        """The instance is gone; the slot may be another's."""
        holder = self._holders.pop(slot, None)
        if holder is not None:
            self._clear(slot, holder)

    def match(self, packed: bytes) -> Units:
        """[slots]: units of the longest cached chain from the start; 0 where even the first is missing."""
        found = np.zeros(self._slots, np.int64)
        alive, units = -1, 0
        for hash_ in split(packed):
            mask = self._masks.get(hash_, 0)
            if mask:
                self._masks.move_to_end(hash_)
            if units and (left := alive & ~mask):
                found += self._spread(left) * units
            alive &= mask
            if not alive:
                return found
            units += 1
        if units:
            found += self._spread(alive) * units
        return found

    @property
    def size(self) -> int:
        """Distinct hashes indexed."""
        return len(self._masks)

    def check(self) -> None:
        assert len(self._masks) <= self._hashes_max
        masks: dict[bytes, int] = {}
        for slot, holder in self._holders.items():
            for hash_ in holder.hashes:
                masks[hash_] = masks.get(hash_, 0) | 1 << slot
        assert masks == dict(self._masks), "a hash's mask differs from its holders"

    def _store(self, slot: int, holder: _Holder, hash_: bytes) -> None:
        self._masks[hash_] = self._masks.get(hash_, 0) | 1 << slot
        self._masks.move_to_end(hash_)
        holder.hashes[hash_] = None
        if len(self._masks) > self._hashes_max:
            forgotten, mask = self._masks.popitem(last=False)
            for one in bits(mask):
                del self._holders[one].hashes[forgotten]

    def _remove(self, slot: int, holder: _Holder, hash_: bytes) -> None:
        if hash_ not in holder.hashes:
            return
        del holder.hashes[hash_]
        mask = self._masks[hash_] & ~(1 << slot)
        if mask:
            self._masks[hash_] = mask
        else:
            del self._masks[hash_]

    def _clear(self, slot: int, holder: _Holder) -> None:
        for hash_ in list(holder.hashes):
            self._remove(slot, holder, hash_)

    def _spread(self, mask: int) -> Units:
        """[slots]: 1 where the mask's bit is set."""
        packed = np.frombuffer(mask.to_bytes((self._slots + 7) // 8, "little"), np.uint8)
        return np.unpackbits(packed, count=self._slots, bitorder="little").astype(np.int64)


def split(packed: bytes) -> list[bytes]:
    """Packed hashes one by one; an incomplete last one is dropped."""
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed) - HASH_BYTES + 1, HASH_BYTES)]


def bits(mask: int) -> list[int]:
    """Numbers of the bits that are set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
