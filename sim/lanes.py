"""How payloads cross between two workers: in order, at a speed, and what may befall them."""

from collections.abc import Callable

from kv_transfer.lane import Payload, SendDone
from kv_transfer.memory_lane import MemoryLane, memory_lane_pair
from kv_transfer.types import ChunkHeader
from sim.loop import Loop


class LanePair:
    """One epoch of the lane from one prefill worker to one home; both ends learn when it fails."""

    def __init__(self, loop: Loop, sender: str, receiver: str, epoch: int, speed: "LaneSpeed") -> None:
        self.sender_name, self.receiver_name, self.epoch = sender, receiver, epoch
        self._loop, self._speed = loop, speed
        self._sender, self.receiver = memory_lane_pair(self._carry)
        self._failed: list[Callable[[], None]] = []
        self.over = False

    @property
    def receiving(self) -> MemoryLane:
        return self.receiver

    def send(self, header: ChunkHeader, payload: Payload, done: SendDone) -> None:
        if self._speed.corrupt_chunks > 0:
            self._speed.corrupt_chunks -= 1
            damaged = bytearray(payload)
            damaged[len(damaged) // 2] ^= 1
            payload = damaged
        self._sender.send(header, payload, done)

    def on_failure(self, call: Callable[[], None]) -> None:
        """Said once, of a failure that was not asked for by `close`."""
        self._failed.append(call)

    def fail(self, why: str) -> None:
        if self.over:
            return
        self.over = True
        self._sender.fail(why)
        for call in self._failed:
            call()

    def close(self) -> None:
        """The peer is gone, or the lane is replaced: nobody needs to be told."""
        if not self.over:
            self.over = True
            self._sender.close()

    def _carry(self, size_bytes: int, arrive: Callable[[], None]) -> None:
        self._speed.carried_bytes += size_bytes
        micros = self._speed.latency_us + size_bytes * 1_000_000 // self._speed.bytes_per_second
        self._loop.after(micros, lambda: None if self.over else arrive())


class LaneSpeed:
    """How fast every lane of the fleet is now; a fault may change it while chunks are on the way."""

    def __init__(self, latency_us: int, bytes_per_second: int) -> None:
        self.latency_us = latency_us
        self.bytes_per_second = bytes_per_second
        self.carried_bytes = 0
        self.corrupt_chunks = 0
        """So many of the next payloads are damaged on the way."""
