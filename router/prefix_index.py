"""Which instances have which prefix cached."""

from collections import OrderedDict
from dataclasses import dataclass, field

from core.request import InstanceKey
from router.messages import HASH_BYTES, PrefixEvents


@dataclass(slots=True)
class _Holder:
    bit: int
    """Its place in the masks."""
    next_sequence: int | None = None
    """None: a snapshot is awaited."""
    hashes: dict[bytes, None] = field(default_factory=dict)


class PrefixIndex:
    """Chained hash to the instances that hold it, as a bit mask per hash.

    Hints only: a worker compares the tokens themselves. Beyond `hashes_max` distinct hashes the least
    recently used one is forgotten; a hash forgotten or evicted in mid-chain ends the match there.
    """

    def __init__(self, hashes_max: int) -> None:
        self._hashes_max = hashes_max
        self._masks: OrderedDict[bytes, int] = OrderedDict()
        self._holders: dict[InstanceKey, _Holder] = {}
        self._by_bit: dict[int, InstanceKey] = {}
        self._free_bits: list[int] = []

    def apply(self, instance: InstanceKey, events: PrefixEvents) -> bool:
        """Takes the events over; False on a gap: nothing is taken until a snapshot comes."""
        holder = self._holders.get(instance) or self._join(instance)
        stored, removed = split(events.stored), split(events.removed)
        if events.snapshot:
            self._clear(holder)
        elif holder.next_sequence is None or events.first_sequence != holder.next_sequence:
            holder.next_sequence = None
            return False
        for hash_ in stored:
            self._store(holder, hash_)
        for hash_ in removed:
            self._remove(holder, hash_)
        holder.next_sequence = events.first_sequence + len(stored) + len(removed)
        return True

    def forget(self, instance: InstanceKey) -> None:
        """The instance is gone."""
        holder = self._holders.pop(instance, None)
        if holder is not None:
            self._clear(holder)
            del self._by_bit[holder.bit]
            self._free_bits.append(holder.bit)

    def match(self, packed: bytes) -> list[tuple[InstanceKey, int]]:
        """(instance, units of the longest cached chain from the start) of all that hold the first unit."""
        found: list[tuple[InstanceKey, int]] = []
        alive = -1
        units = 0
        for units, hash_ in enumerate(split(packed)):
            mask = self._masks.get(hash_, 0)
            if mask:
                self._masks.move_to_end(hash_)
            if units:
                self._collect(alive & ~mask, units, found)
            alive &= mask
            if not alive:
                return found
        if packed:
            self._collect(alive, units + 1, found)
        return found

    @property
    def size(self) -> int:
        """Distinct hashes indexed."""
        return len(self._masks)

    def check(self) -> None:
        assert len(self._masks) <= self._hashes_max
        masks: dict[bytes, int] = {}
        for instance, holder in self._holders.items():
            assert self._by_bit[holder.bit] == instance
            for hash_ in holder.hashes:
                masks[hash_] = masks.get(hash_, 0) | 1 << holder.bit
        assert masks == dict(self._masks), "a hash's mask differs from its holders"

    def _join(self, instance: InstanceKey) -> _Holder:
        bit = self._free_bits.pop() if self._free_bits else len(self._holders)
        # A process that has just started counts from 0; from any other point a snapshot is needed.
        holder = self._holders[instance] = _Holder(bit, next_sequence=0)
        self._by_bit[bit] = instance
        return holder

    def _store(self, holder: _Holder, hash_: bytes) -> None:
        self._masks[hash_] = self._masks.get(hash_, 0) | 1 << holder.bit
        self._masks.move_to_end(hash_)
        holder.hashes[hash_] = None
        if len(self._masks) > self._hashes_max:
            forgotten, mask = self._masks.popitem(last=False)
            for bit in bits(mask):
                del self._holders[self._by_bit[bit]].hashes[forgotten]

    def _remove(self, holder: _Holder, hash_: bytes) -> None:
        if hash_ not in holder.hashes:
            return
        del holder.hashes[hash_]
        mask = self._masks[hash_] & ~(1 << holder.bit)
        if mask:
            self._masks[hash_] = mask
        else:
            del self._masks[hash_]

    def _clear(self, holder: _Holder) -> None:
        for hash_ in list(holder.hashes):
            self._remove(holder, hash_)

    def _collect(self, mask: int, units: int, found: list[tuple[InstanceKey, int]]) -> None:
        found.extend((self._by_bit[bit], units) for bit in bits(mask))


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
