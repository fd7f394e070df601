"""A lane inside one process, for simulations and tests: chunks match in order, and time is the driver's."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kv_transfer.lane import Arrived, LaneError, Payload, ReceiveDone, SendDone
from kv_transfer.layout import matches
from kv_transfer.types import ChunkHeader

Carry = Callable[[int, Callable[[], None]], None]
"""carry(bytes, arrive): the driver calls `arrive` when so many bytes would have crossed."""


@dataclass(slots=True)
class _Wire:
    carry: Carry
    sends: deque[tuple[ChunkHeader, Payload, SendDone]] = field(default_factory=deque)
    receives: deque[tuple[ChunkHeader, ReceiveDone, bool]] = field(default_factory=deque)
    crossing: bool = False
    error: LaneError | None = None


class MemoryLane:
    """Both ends share one wire; closing or failing either end answers everything pending on both."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def send(self, header: ChunkHeader, payload: Payload, done: SendDone) -> None:
        if self._wire.error is not None:
            return done(self._wire.error)
        self._wire.sends.append((header, payload, done))
        self._match()

    def receive(self, header: ChunkHeader, done: ReceiveDone, *, drain: bool = False) -> None:
        if self._wire.error is not None:
            return done(self._wire.error)
        self._wire.receives.append((header, done, drain))
        self._match()

    def close(self) -> None:
        self.fail("closed")

    def fail(self, why: str) -> None:
        """What a dead peer or a cut cable does to a real lane."""
        wire = self._wire
        if wire.error is not None:
            return
        wire.error = LaneError(why)
        sends, receives = list(wire.sends), list(wire.receives)
        wire.sends.clear()
        wire.receives.clear()
        for _, _, sent in sends:
            sent(wire.error)
        for _, received, _ in receives:
            received(wire.error)

    def _match(self) -> None:
        wire = self._wire
        if wire.crossing or not wire.sends or not wire.receives:
            return
        if wire.sends[0][0] != wire.receives[0][0]:
            return self.fail("the chunk on the lane is not the one that was announced")
        wire.crossing = True
        wire.carry(wire.sends[0][0].bytes, self._arrive)

    def _arrive(self) -> None:
        wire = self._wire
        wire.crossing = False
        if wire.error is not None:
            return
        header, payload, sent = wire.sends.popleft()
        _, received, drain = wire.receives.popleft()
        copy = memoryview(b"" if drain else bytes(payload)).toreadonly()
        sent(None)
        received(Arrived(header, copy, drain or matches(header, copy), lambda: None))
        self._match()


def memory_lane_pair(carry: Carry | None = None) -> tuple[MemoryLane, MemoryLane]:
    """(sender's end, receiver's end). Without `carry`, a chunk crosses as soon as both ends are there."""
    wire = _Wire(carry or (lambda size_bytes, arrive: arrive()))
    return MemoryLane(wire), MemoryLane(wire)
