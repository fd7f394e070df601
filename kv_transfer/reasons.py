"""Every word for why a transfer ended without its KV, and for why a message changed nothing."""

from enum import StrEnum


class EndReason(StrEnum):
    """Why a transfer failed or was aborted; committed and delivered ones need no reason."""

    CANCELLED = "cancelled"
    """The request it served is over, by whatever cause."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The transfer's absolute deadline passed."""
    LEASE_EXPIRED = "lease_expired"
    """No sign of life of the peer for a whole lease."""
    PEER_LOST = "peer_lost"
    PEER_ABORTED = "peer_aborted"
    """The other end said that it gave up."""
    LANE_FAILED = "lane_failed"
    """A lane broke with chunks of this transfer on it."""
    PACK_FAILED = "pack_failed"
    """The sender's engine could not read the blocks."""
    SEND_FAILED = "send_failed"
    SCATTER_FAILED = "scatter_failed"
    """The receiver's engine could not write the blocks."""
    BAD_CHECKSUM = "bad_checksum"
    WRONG_RANGE = "wrong_range"
    """A chunk outside [first_token, tokens), one that overlaps another, or a wrong first_token."""
    WRONG_LENGTH = "wrong_length"
    """A payload length that is not the range's."""
    WRONG_TOTAL = "wrong_total"
    """Chunk numbers and the announced total contradict each other."""
    NOT_BOUND = "not_bound"
    """A chunk came before this end had granted blocks."""
    WRONG_HEADER = "wrong_header"
    """A chunk's number announced again, or arrived, with another content."""
    NOT_WANTED = "not_wanted"
    """The abort overtook the opening: it never began."""


class Ignored(StrEnum):
    """Why a message was harmless and changed nothing; counted, never logged one by one."""

    UNKNOWN = "unknown"
    """No such transfer, ever or any more: forged, or older than the memory of the ended."""
    WRONG_EPOCH = "wrong_epoch"
    """The transfer exists, under another epoch."""
    WRONG_PEER = "wrong_peer"
    """The transfer exists, and is not this peer's business."""
    LATE = "late"
    """The transfer has ended."""
    DOUBLED = "doubled"
    """Said before."""
    UNANNOUNCED = "unannounced"
    """A payload or a report of a chunk that was never announced or sent."""
