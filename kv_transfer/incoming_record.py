"""How far an incoming transfer has come."""

from dataclasses import dataclass
from enum import StrEnum

from kv_transfer.coverage import Coverage
from kv_transfer.types import Peer, TransferKey


class IncomingState(StrEnum):
    RESERVED = "reserved"
    """Asked for; no blocks yet, nothing may be sent."""
    BOUND = "bound"
    """Blocks are granted, nothing announced yet."""
    RECEIVING = "receiving"
    """Chunks announced, arriving or being scattered."""
    ABORTING = "aborting"
    """Over, as was said; a scatter still writes, so the blocks are not yet free."""
    COMMITTED = "committed"
    ABORTED = "aborted"


ALLOWED: dict[IncomingState, tuple[IncomingState, ...]] = {
    IncomingState.RESERVED: (IncomingState.BOUND, IncomingState.ABORTED),
    IncomingState.BOUND: (IncomingState.RECEIVING, IncomingState.COMMITTED, IncomingState.ABORTED),
    IncomingState.RECEIVING: (IncomingState.COMMITTED, IncomingState.ABORTING, IncomingState.ABORTED),
    IncomingState.ABORTING: (IncomingState.ABORTED,),
    IncomingState.COMMITTED: (),
    IncomingState.ABORTED: (),
}
"""BOUND → COMMITTED is the fully cached prompt: nothing to send."""


@dataclass(slots=True)
class IncomingRecord:
    key: TransferKey
    peer: Peer
    tokens: int
    state: IncomingState = IncomingState.RESERVED
    coverage: Coverage | None = None
    """From bind() on."""

    @property
    def scattering(self) -> int:
        return self.coverage.scattering if self.coverage is not None else 0
