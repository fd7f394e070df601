"""What a prefill worker remembers of one prompt."""

from dataclasses import dataclass
from enum import StrEnum

from core.request import AttemptKey
from kv_transfer.types import Peer, TransferKey
from prefill_worker.actions import PrefillRequest


class Phase(StrEnum):
    """A prompt moves down this list only, skipping what does not apply."""

    WAITING = "waiting"
    """For its turn, then for its home's blocks."""
    COMPUTING = "computing"
    SHIPPING = "shipping"
    """Computed and said; chunks are still to be packed, sent or acknowledged."""
    ENDED = "ended"


@dataclass(slots=True)
class Prompt:
    """One prompt on this worker."""

    number: int
    peer: Peer
    request: PrefillRequest
    arrived_us: int
    started_us: int = 0
    phase: Phase = Phase.WAITING
    owed_blocks: bool = False
    """The transfer table has this prompt, and has not said yet that nothing of it will be read any more."""

    @property
    def key(self) -> AttemptKey:
        return self.request.job.key

    @property
    def tokens(self) -> int:
        return len(self.request.job.prompt) + len(self.request.job.choices[0].output)


Name = tuple[Peer, TransferKey]
"""Transfer numbers are unique per home only."""
