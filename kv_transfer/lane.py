"""What every lane does, whatever carries it: one direction, in order, and an end that is final."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kv_transfer.types import ChunkHeader

Payload = bytes | bytearray | memoryview


class LaneError(Exception):
    """The lane is over: what was on it may be lost, and only a new epoch helps."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A chunk in staging."""

    header: ChunkHeader
    payload: memoryview
    """[bytes] of uint8, read-only; valid until release()."""
    checksum_ok: bool
    release: Callable[[], None]
    """Gives the staging back; idempotent, from any thread."""


SendDone = Callable[[LaneError | None], None]
ReceiveDone = Callable[[Arrived | LaneError], None]


class Lane(Protocol):
    """One direction between two processes, for one epoch. Methods return at once.

    Every send and receive is answered exactly once, on the event loop of the shell that owns the lane.
    Order is the contract: the receiver posts receives in the order of the sender's sends, which is the order
    of the announcements on the control stream.
    """

    def send(self, header: ChunkHeader, payload: Payload, done: SendDone) -> None:
        """Ships a chunk. The payload must not change until `done`."""
        ...

    def receive(self, header: ChunkHeader, done: ReceiveDone, *, drain: bool = False) -> None:
        """Takes the announced chunk off the lane into staging. `drain`: nobody wants it; the answer's
        payload is empty and holds no staging."""
        ...

    def close(self) -> None:
        """Ends the lane: what is queued or running is answered with LaneError soon. Idempotent."""
        ...
