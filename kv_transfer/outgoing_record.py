"""How far an outgoing transfer and each of its chunks have come."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from kv_transfer.geometry import Geometry
from kv_transfer.types import Peer, TransferKey


class OutgoingState(StrEnum):
    OPEN = "open"
    """The home asked for the prompt; it has granted no blocks yet."""
    SENDING = "sending"
    """Bound: chunks go out as they are computed and credit allows."""
    ENDING = "ending"
    """Failed, as was said; a chunk is still being packed or sent, and counted."""
    DELIVERED = "delivered"
    FAILED = "failed"


ALLOWED: dict[OutgoingState, tuple[OutgoingState, ...]] = {
    OutgoingState.OPEN: (OutgoingState.SENDING, OutgoingState.FAILED),
    OutgoingState.SENDING: (OutgoingState.DELIVERED, OutgoingState.ENDING, OutgoingState.FAILED),
    OutgoingState.ENDING: (OutgoingState.FAILED,),
    OutgoingState.DELIVERED: (),
    OutgoingState.FAILED: (),
}


class OutgoingChunk(IntEnum):
    """How far one outgoing chunk has come; it only ever goes up."""

    PACKING = 0
    """Being read: its blocks must stay."""
    SENDING = 1
    """A packed copy is on its way to or on the lane; the blocks are no longer read."""
    UNACKNOWLEDGED = 2
    ACKNOWLEDGED = 3


@dataclass(slots=True)
class OutgoingRecord:
    peer: Peer
    key: TransferKey
    prompt_tokens: int
    state: OutgoingState = OutgoingState.OPEN
    computed: int = 0
    """Prompt tokens whose KV is in the blocks."""
    geometry: Geometry | None = None
    """From bound() on."""
    chunks: dict[int, OutgoingChunk] = field(default_factory=dict)
    """Every chunk that was asked to be packed."""
    acknowledged: int = 0
    released: bool = False

    def count(self, state: OutgoingChunk) -> int:
        return sum(1 for chunk in self.chunks.values() if chunk is state)

    @property
    def in_flight(self) -> int:
        return len(self.chunks) - self.acknowledged

    @property
    def done_reading(self) -> bool:
        """The prompt is computed, every chunk was asked for, and none is being read."""
        if self.geometry is None or self.computed < self.prompt_tokens:
            return False
        return len(self.chunks) == self.geometry.chunks and not self.count(OutgoingChunk.PACKING)

    @property
    def on_lane(self) -> bool:
        """Whether a lane was handed a chunk whose arrival nobody has confirmed."""
        return bool(self.count(OutgoingChunk.SENDING) or self.count(OutgoingChunk.UNACKNOWLEDGED))

    @property
    def delivered(self) -> bool:
        return self.geometry is not None and self.acknowledged == self.geometry.chunks
