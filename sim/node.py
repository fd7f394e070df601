"""How one process of the fleet lives in virtual time: its clock, its timer, its death and its pauses."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any

from core.recorder import recorded
from sim.journal import Journal
from sim.loop import Loop, Planned
from sim.network import End, Network, Stream


class World:
    """What all nodes share."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        journal: Journal,
        random: Random,
        write: Callable[[bytes], None] | None = None,
        check_every: int = 1,
    ) -> None:
        self.loop, self.network, self.journal, self.random = loop, network, journal, random
        self.write = write
        """Takes the recording's frames; None: nothing is recorded."""
        self.check_every = check_every
        """A node checks its laws after every so many of its events."""

    def recorded(self, plain: Any, name: str, config: tuple[object, ...]) -> Any:
        return plain if self.write is None else recorded(plain, name, self.write, config)


class Node(ABC):
    """One start of one process. A restart is another node at the same address."""

    plain: Any

    def __init__(self, world: World, name: str, incarnation: str) -> None:
        self.world, self.name, self.address, self.incarnation = world, name, f"{name}:1", incarnation
        self.loop, self.network = world.loop, world.network
        # Clocks of different machines have nothing in common: an absolute time that leaks shows.
        self.clock_offset_us = world.random.randint(0, 10**12)
        self._dead = False
        self._paused = False
        self._backlog: list[Callable[[], None]] = []
        self._timer: Planned | None = None
        self._events = 0
        self.network.listen(self)

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def now_us(self) -> int:
        """This process's own monotonic clock."""
        return self.loop.now_us + self.clock_offset_us

    @abstractmethod
    def start(self) -> None:
        """Connect to whom it has to know."""

    @abstractmethod
    def perform(self, action: Any) -> None:
        """Carry out one action; never tells the plain object anything at once."""

    @abstractmethod
    def accept(self, stream: Stream) -> End:
        """Somebody connects."""

    def told(self) -> None:
        """After each event, its actions being under way."""
        return

    def tell(self, method: str, *arguments: Any) -> None:
        """One event of the plain object, and its actions."""
        returned = getattr(self.plain, method)(*arguments, self.now_us)
        self.world.journal.record(self.loop.now_us, self.name, method, arguments, returned)
        for action in returned or ():
            self.perform(action)
        self._events += 1
        if self._events % self.world.check_every == 0:
            self.plain.check()
        self.told()
        self._set_timer()

    def enter(self, call: Callable[[], None]) -> None:
        """Make the call here: never once dead, later while paused."""
        if self._dead:
            return
        if self._paused:
            self._backlog.append(call)
        else:
            call()

    def soon(self, call: Callable[[], None], delay_us: int = 0) -> None:
        self.loop.after(delay_us, lambda: self.enter(call))

    def every(self, interval_us: int, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.soon(again, interval_us)

        self.soon(again, interval_us)

    def crash(self) -> None:
        """Dies without a word; the others' streams break."""
        self._dead = True
        self._backlog.clear()
        for stream in self.network.of(self):
            stream.close("the process died")

    def pause(self) -> None:
        """Stops, as by SIGSTOP: everything that comes waits, and peers notice by keep-alive."""
        self._paused = True
        streams = self.network.of(self)

        def noticed() -> None:
            for stream in streams:
                if self._paused:
                    stream.close("keep-alive")

        self.loop.after(self.network.config.keepalive_us, noticed)

    def resume(self) -> None:
        self._paused = False
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            self.enter(call)

    def _set_timer(self) -> None:
        due_us = self.plain.next_deadline_us
        at_us = None if due_us is None else due_us - self.clock_offset_us
        if self._timer is not None:
            if self._timer.call is not None and self._timer.at_us == at_us:
                return
            self._timer.cancel()
            self._timer = None
        if at_us is not None:
            self._timer = self.loop.at(at_us, lambda: self.enter(self._tick))

    def _tick(self) -> None:
        self.tell("tick")


class Link:
    """A client's stream that is opened again and again until it is closed."""

    def __init__(
        self,
        node: Node,
        address: str,
        *,
        up: Callable[["Link"], None],
        message: Callable[[Any], None],
        down: Callable[[str], None],
        refused: Callable[[str], None] | None = None,
        persistent: bool = True,
    ) -> None:
        self.node, self.address = node, address
        self.stream: Stream | None = None
        self._up, self._message, self._down, self._refused = up, message, down, refused
        self._persistent = persistent
        self._closed = False
        self._tries = 0
        self._connect()

    def send(self, message: Any) -> None:
        """Lost where the stream is not up."""
        if self.stream is not None:
            self.stream.to_server(message)

    def close(self) -> None:
        self._closed = True
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.close()

    def message(self, message: Any) -> None:
        if not self._closed:
            self._message(message)

    def down(self, why: str) -> None:
        if self._closed or self.stream is None:
            return
        self.stream = None
        self._down(why)
        self._again()

    def _connect(self) -> None:
        self.node.network.connect(self.node, self.address, self._opened, self._failed)

    def _opened(self, stream: Stream) -> End:
        if self._closed:
            stream.close()
            return self
        self.stream, self._tries = stream, 0
        self._up(self)
        return self

    def _failed(self, why: str) -> None:
        if self._closed:
            return
        if self._refused is not None:
            self._refused(why)
        self._again()

    def _again(self) -> None:
        if self._persistent and not self._closed:
            pause_us = min(self.node.network.config.reconnect_us << min(self._tries, 5), 1_000_000)
            self._tries += 1
            self.node.soon(
                lambda: None if self._closed or self.stream is not None else self._connect(),
                self.node.world.random.randint(pause_us // 2, pause_us),
            )
