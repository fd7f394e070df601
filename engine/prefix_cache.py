"""Which full blocks of KV can serve again, and for exactly which tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.prefix_hashes import namespace_at


@dataclass(slots=True, eq=False)
class CachedBlock:
    """One registered block; equal only to itself, so that a chain is proven link by link."""

    block: int
    lookup: int
    root: bytes
    parent: "CachedBlock | None"
    tokens: tuple[int, ...]
    """Compared on every hit: a hash alone is never believed."""
    unit_hashes: tuple[bytes, ...]
    """HASH_UNIT hashes that end in this block; what the outside knows it by."""
    children: dict[int, "CachedBlock"] = field(default_factory=dict)
    """By lookup."""
    live: bool = True
    slot: int | None = None
    """On the host, where it is there and not in `block`."""


@dataclass(frozen=True, slots=True)
class PrefixChanges:
    """What became findable and what no longer is, as HASH_UNIT hashes."""

    stored: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    resync: bool = False
    """stored is everything there is; forget the rest."""


class PrefixCache:
    """A forest of registered blocks, each found by its chained hash and verified by its tokens."""

    def __init__(self, block_size: int, blocks: int, hash_bits: int = 64) -> None:
        self._block_size = block_size
        self._hash_mask = (1 << hash_bits) - 1
        self._by_lookup: dict[int, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._by_slot: dict[int, CachedBlock] = {}
        self.slot_freed: Callable[[int], None] | None = None
        """Told of host slots that hold nothing findable any more."""
        self._changes: dict[bytes, bool] = {}
        self._changes_max = 4 * blocks * max(1, block_size // 16)
        self._overflown = False
        self.collisions = 0
        """Lookups that found another chain under the same hash."""

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def match(
        self,
        root: bytes,
        hashes: Sequence[bytes],
        tokens: Sequence[int],
        most: int,
        *,
        on_device: bool = False,
    ) -> list[CachedBlock]:
        """The longest registered chain of at most `most` blocks that holds exactly these tokens.

        `on_device`: as far as it need not be brought back from the host.
        """
        found: list[CachedBlock] = []
        parent: CachedBlock | None = None
        for index in range(min(most, len(hashes))):
            entry = self._by_lookup.get(self._lookup(hashes[index]))
            if entry is None or (on_device and entry.slot is not None):
                break
            start = index * self._block_size
            stop = start + self._block_size
            if not _same(entry, namespace_at(root, stop), parent, tuple(tokens[start:stop])):
                self.collisions += 1
                break
            found.append(entry)
            parent = entry
        return found

    def store(
        self,
        block: int,
        root: bytes,
        parent: CachedBlock | None,
        chained_hash: bytes,
        tokens: tuple[int, ...],
        unit_hashes: tuple[bytes, ...],
    ) -> CachedBlock | None:
        """Register a full, computed block after its parent (None: it is a prompt's first).

        Returns the entry of these tokens, which may be another block's; None if the chain cannot
        go on here: its parent was evicted, or another chain sits under this hash.
        """
        if parent is not None and not parent.live:
            return None
        lookup = self._lookup(chained_hash)
        if (entry := self._by_lookup.get(lookup)) is not None:
            if _same(entry, root, parent, tokens):
                return entry
            self.collisions += 1
            return None
        entry = CachedBlock(block, lookup, root, parent, tokens, unit_hashes)
        self._by_lookup[lookup] = self._by_block[block] = entry
        if parent is not None:
            parent.children[lookup] = entry
        self._note(unit_hashes, stored=True)
        return entry

    def forget(self, block: int) -> list[int]:
        """Unregister a block and all that follow it, which nothing could find any more; returns them."""
        return self._forget(self._by_block[block])

    def forget_slot(self, slot: int) -> list[int]:
        """As forget, of one on the host."""
        return self._forget(self._by_slot[slot])

    def spill(self, block: int, slot: int) -> None:
        """A registered block is now on the host; it can still be found."""
        entry = self._by_block.pop(block)
        entry.slot = slot
        self._by_slot[slot] = entry

    def revive(self, entry: CachedBlock, block: int) -> None:
        """What was on the host is in a block again."""
        assert entry.slot is not None and entry.live
        del self._by_slot[entry.slot]
        entry.block, entry.slot = block, None
        self._by_block[block] = entry

    def hashes(self) -> tuple[bytes, ...]:
        """Every HASH_UNIT hash that can be found now, oldest registration first."""
        return tuple(unit for entry in self._by_lookup.values() for unit in entry.unit_hashes)

    def take_changes(self) -> PrefixChanges:
        """The changes since the last call; each hash once, in its last state."""
        changes, overflown = self._changes, self._overflown
        self._changes, self._overflown = {}, False
        if overflown:
            return PrefixChanges(self.hashes(), (), resync=True)
        stored = tuple(unit for unit, is_stored in changes.items() if is_stored)
        removed = tuple(unit for unit, is_stored in changes.items() if not is_stored)
        return PrefixChanges(stored, removed)

    def check(self) -> None:
        assert len(self._by_lookup) == len(self._by_block) + len(self._by_slot)
        for block, entry in self._by_block.items():
            assert entry.block == block and entry.slot is None
        for slot, entry in self._by_slot.items():
            assert entry.slot == slot
        for lookup, entry in self._by_lookup.items():
            assert entry.live and entry.lookup == lookup
            assert entry.parent is None or (entry.parent.live and entry.parent.children[lookup] is entry)
            assert all(child.live for child in entry.children.values())

    @property
    def slots(self) -> int:
        """Blocks on the host."""
        return len(self._by_slot)

    def _forget(self, entry: CachedBlock) -> list[int]:
        if entry.parent is not None:
            del entry.parent.children[entry.lookup]
        gone, pending = [], [entry]
        while pending:
            entry = pending.pop()
            pending.extend(entry.children.values())
            entry.live = False
            del self._by_lookup[entry.lookup]
            self._note(entry.unit_hashes, stored=False)
            if entry.slot is None:
                del self._by_block[entry.block]
                gone.append(entry.block)
            else:
                del self._by_slot[entry.slot]
                assert self.slot_freed is not None
                self.slot_freed(entry.slot)
        return gone

    def _note(self, unit_hashes: tuple[bytes, ...], *, stored: bool) -> None:
        if self._overflown:
            return
        for unit in unit_hashes:
            self._changes.pop(unit, None)
            self._changes[unit] = stored
        # Nobody may be listening; what they would have to replay is then cheaper to send whole.
        if len(self._changes) > self._changes_max:
            self._changes, self._overflown = {}, True

    def _lookup(self, chained_hash: bytes) -> int:
        return int.from_bytes(chained_hash, "little") & self._hash_mask


def _same(entry: CachedBlock, root: bytes, parent: CachedBlock | None, tokens: tuple[int, ...]) -> bool:
    """Own tokens compared, earlier ones proven by the identity of the parent."""
    return entry.parent is parent and entry.tokens == tokens and entry.root == root
