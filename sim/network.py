"""When a message arrives, and when a stream breaks."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from sim.loop import Loop


class Process(Protocol):
    """What the network needs to know of a node."""

    name: str
    address: str

    @property
    def alive(self) -> bool: ...

    def enter(self, call: Callable[[], None]) -> None:
        """Make the call in this process: not if it is dead, later if it is paused."""
        ...

    def accept(self, stream: "Stream") -> "End":
        """Somebody connects; answers with this side's end."""
        ...


class End(Protocol):
    """One side of a stream."""

    def message(self, message: Any) -> None: ...
    def down(self, why: str) -> None: ...


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Times in microseconds; delays are drawn between delay_us and delay_us + jitter_us."""

    delay_us: int = 100
    jitter_us: int = 400
    keepalive_us: int = 5_000_000
    """Silence of a stream's other end after which it is broken."""
    connect_timeout_us: int = 1_000_000
    reconnect_us: int = 50_000
    """Pause before the next try to connect, at most; doubles up to a second."""


class Stream:
    """One client and one server, in order both ways, until it breaks; a broken one never heals."""

    def __init__(self, network: "Network", client: Process, server: Process) -> None:
        self.network, self.client, self.server = network, client, server
        self.client_end: End | None = None
        self.server_end: End | None = None
        self.broken = False
        self._last_us = {True: 0, False: 0}

    def to_server(self, message: Any) -> None:
        self._send(message, to_server=True)

    def to_client(self, message: Any) -> None:
        self._send(message, to_server=False)

    def close(self, why: str = "closed") -> None:
        """Break it: what is on its way is lost, and both ends learn of it in their own time."""
        if self.broken:
            return
        self.broken = True
        self.network.forget(self)
        for process, end in ((self.client, self.client_end), (self.server, self.server_end)):
            if end is not None:
                self.network.later(process, lambda end=end: end.down(why))  # type: ignore[misc]

    def _send(self, message: Any, *, to_server: bool) -> None:
        if self.broken:
            return
        fate = self.network.fate(self, message)
        if fate == LOST:
            self.close("a message was lost")
            return
        at_us = max(self.network.arrival_us(), self._last_us[to_server])
        self._last_us[to_server] = at_us
        deliver = self._delivery(message, to_server)
        self.network.loop.at(at_us, deliver)
        if fate != DELIVERED:
            self.network.loop.at(at_us + fate, deliver)

    def _delivery(self, message: Any, to_server: bool) -> Callable[[], None]:
        def deliver() -> None:
            if self.network.is_cut(self.client, self.server):
                self.network.held.append((self, deliver))
                return
            process = self.server if to_server else self.client
            process.enter(lambda: self._hand_over(message, to_server))

        return deliver

    def _hand_over(self, message: Any, to_server: bool) -> None:
        end = self.server_end if to_server else self.client_end
        if not self.broken and end is not None:
            end.message(message)


DELIVERED = -1
LOST = -2
Fate = Callable[[Stream, Any], int]
"""DELIVERED, LOST (with its stream), or by how many µs a second copy is late."""


class Network:
    """All streams, by one seeded source of chance."""

    def __init__(self, loop: Loop, random: Random, config: NetworkConfig) -> None:
        self.loop, self.random, self.config = loop, random, config
        self.processes: dict[str, Process] = {}
        """By address: who listens there now."""
        self.streams: dict[int, Stream] = {}
        self.held: list[tuple[Stream, Callable[[], None]]] = []
        """Messages between two processes that are cut off from each other."""
        self.fate_of: Fate | None = None
        self._cuts: dict[tuple[str, str], None] = {}

    def listen(self, process: Process) -> None:
        self.processes[process.address] = process

    def connect(
        self, client: Process, address: str, up: Callable[[Stream], End], refused: Callable[[str], None]
    ) -> None:
        """Answers once: `up` with the stream, or `refused` with the reason."""
        self.loop.at(self.arrival_us(), lambda: self._arrive(client, address, up, refused))

    def _arrive(
        self, client: Process, address: str, up: Callable[[Stream], End], refused: Callable[[str], None]
    ) -> None:
        server = self.processes.get(address)
        if server is not None and server.alive and self.is_cut(client, server):
            self.loop.after(
                self.config.connect_timeout_us, lambda: client.enter(lambda: refused("no answer"))
            )
            return
        if server is None or not server.alive:
            self.later(client, lambda: refused("connection refused"))
            return
        stream = Stream(self, client, server)
        self.streams[id(stream)] = stream

        def accept() -> None:
            if not stream.broken:
                stream.server_end = server.accept(stream)
                self.later(client, lambda: self._open(stream, up))

        server.enter(accept)

    def _open(self, stream: Stream, up: Callable[[Stream], End]) -> None:
        if stream.client_end is None:
            stream.client_end = up(stream)
            if stream.broken:
                self.later(stream.client, lambda: _tell_down(stream.client_end))

    def later(self, process: Process, call: Callable[[], None]) -> None:
        self.loop.at(self.arrival_us(), lambda: process.enter(call))

    def arrival_us(self) -> int:
        return self.loop.now_us + self.config.delay_us + self.random.randint(0, self.config.jitter_us)

    def fate(self, stream: Stream, message: Any) -> int:
        return DELIVERED if self.fate_of is None else self.fate_of(stream, message)

    def forget(self, stream: Stream) -> None:
        self.streams.pop(id(stream), None)

    def of(self, process: Process) -> list[Stream]:
        """Its streams, oldest first."""
        return [stream for stream in self.streams.values() if process in (stream.client, stream.server)]

    def between(self, one: str, other: str) -> list[Stream]:
        """The streams between two processes, by name."""
        return [
            stream
            for stream in self.streams.values()
            if sorted((stream.client.name, stream.server.name)) == sorted((one, other))
        ]

    def is_cut(self, one: Process, other: Process) -> bool:
        return bool(self._cuts) and _pair(one.name, other.name) in self._cuts

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between the two from now on; their streams break by keep-alive."""
        self._cuts[_pair(one, other)] = None
        streams = self.between(one, other)

        def give_up() -> None:
            for stream in streams:
                if _pair(one, other) in self._cuts:
                    stream.close("keep-alive")

        self.loop.after(self.config.keepalive_us, give_up)

    def heal(self, one: str, other: str) -> None:
        self._cuts.pop(_pair(one, other), None)
        held, self.held = self.held, []
        for _, deliver in held:
            deliver()


def _tell_down(end: End | None) -> None:
    if end is not None:
        end.down("closed")


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
