"""The nouns both ends of a KV transfer share: who, which transfer, which chunk, and what must agree."""

from dataclasses import dataclass

from core.request import ModelIdentity
from engine.plan import KvLayout


@dataclass(frozen=True, slots=True, order=True)
class TransferKey:
    """One hand-off of one prompt's KV; unique per incarnation of the home that issued it."""

    transfer: int
    epoch: int


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """The worker at the other end, on one start of its process: a restarted worker is another peer."""

    worker: str
    incarnation: str


@dataclass(frozen=True, slots=True, order=True)
class ChunkHeader:
    """Everything that is said of a chunk before its payload is looked at."""

    transfer: int
    epoch: int
    chunk: int
    """Number of the chunk within its transfer, from 0."""
    start: int
    """First prompt token whose KV the payload holds."""
    stop: int
    """One past the last."""
    bytes: int
    """Length of the payload: (stop - start) * bytes per token."""
    checksum: int
    """`layout.checksum` of the payload."""

    @property
    def key(self) -> TransferKey:
        return TransferKey(self.transfer, self.epoch)


@dataclass(frozen=True, slots=True)
class LaneOffer:
    """What the receiver tells the sender on the control stream."""

    lane_epoch: int
    store_address: str
    """host:port"""
    store_prefix: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What two engines must share to exchange KV; page size is not part of it: the wire layout converts."""

    model: ModelIdentity
    dtype: str
    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: ModelIdentity, layout: KvLayout) -> "Fingerprint":
        return cls(model, layout.dtype, layout.layers, layout.kv_heads, layout.head_dim)

    def mismatch(self, other: "Fingerprint") -> str | None:
        """Names the first field in which the two differ, with both values; None if KV may flow."""
        pairs = (
            ("model.name", self.model.name, other.model.name),
            ("model.revision", self.model.revision, other.model.revision),
            ("model.adapter", self.model.adapter, other.model.adapter),
            ("dtype", self.dtype, other.dtype),
            ("layers", self.layers, other.layers),
            ("kv_heads", self.kv_heads, other.kv_heads),
            ("head_dim", self.head_dim, other.head_dim),
        )
        for field, ours, theirs in pairs:
            if ours != theirs:
                return f"{field}: {ours!r} here, {theirs!r} at the peer"
        return None
