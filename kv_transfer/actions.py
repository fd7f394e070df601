"""What the two transfer tables ask their shells to do."""

from dataclasses import dataclass

from kv_transfer.reasons import EndReason, Ignored
from kv_transfer.types import ChunkHeader, Peer, TransferKey


# ---- both ends ----
@dataclass(frozen=True, slots=True)
class ReleaseBlocks:
    """This end's transfer no longer touches its blocks: they may be freed or reused from now on."""

    peer: Peer
    key: TransferKey


# ---- the receiving end: Incoming ----
@dataclass(frozen=True, slots=True)
class Receive:
    """Post a receive for this chunk into staging; answer with chunk_arrived."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class Drain:
    """A payload is on the lane that nobody wants: take it off and drop it, or the lane loses its order."""

    peer: Peer
    header: ChunkHeader
    reason: Ignored | EndReason


@dataclass(frozen=True, slots=True)
class Scatter:
    """Write the staged payload into the transfer's blocks; answer with scattered or scatter_failed."""

    key: TransferKey
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class Discard:
    """Give the staged payload's memory back without looking at it."""

    header: ChunkHeader
    reason: Ignored | EndReason


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the sender that the chunk was checked and scattered."""

    peer: Peer
    key: TransferKey
    chunk: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Every token's KV is proven present: decode may begin. Terminal."""

    peer: Peer
    key: TransferKey


@dataclass(frozen=True, slots=True)
class Aborted:
    """It will never commit. Terminal; blocks follow by ReleaseBlocks, if any were bound."""

    peer: Peer
    key: TransferKey
    reason: EndReason
    tell_peer: bool
    """False where the peer knows, or is gone."""


# ---- the sending end: Outgoing ----
@dataclass(frozen=True, slots=True)
class Planned:
    """The transfer's geometry is decided: this many chunks in all, which FirstTokens carries."""

    peer: Peer
    key: TransferKey
    chunks: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy the KV of tokens start..stop out of the blocks; answer with packed or pack_failed."""

    peer: Peer
    key: TransferKey
    chunk: int
    start: int
    stop: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Send:
    """Announce the packed chunk and put it on the lane; answer with sent or send_failed, or lane_failed."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class DropPacked:
    """The transfer ended while this chunk was being packed: forget the copy."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class Delivered:
    """The prompt is computed and every chunk acknowledged. Terminal."""

    peer: Peer
    key: TransferKey


@dataclass(frozen=True, slots=True)
class Failed:
    """It will never be delivered. Terminal; ReleaseBlocks follows once nothing is being packed."""

    peer: Peer
    key: TransferKey
    reason: EndReason
    tell_peer: bool
    """False where the peer knows, or is gone."""


IncomingAction = Receive | Drain | Scatter | Discard | Acknowledge | Committed | Aborted | ReleaseBlocks
OutgoingAction = Planned | Pack | Send | DropPacked | Delivered | Failed | ReleaseBlocks
