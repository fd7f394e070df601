"""A wire between two processes that a test can cut or let go dead."""

import asyncio
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Wire:
    """One connection, carried both ways."""

    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    is_dead: bool = False


@dataclass(slots=True)
class CutProxy:
    """Listens and carries every connection to one address."""

    target: tuple[str, int]
    wires: list[Wire] = field(default_factory=list)
    accepted: int = 0
    carried_chunks: int = 0
    _server: asyncio.Server | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Its address."""
        self._server = await asyncio.start_server(self._accept, host, port)
        found: tuple[str, int] = self._server.sockets[0].getsockname()
        return f"{found[0]}:{found[1]}"

    def cut(self) -> int:
        """Every connection is broken now, at both ends; how many were. New ones are taken."""
        cut, self.wires = self.wires, []
        for wire in cut:
            for end in wire.ends:
                end.transport.abort()
        return len(cut)

    def forget(self) -> None:
        """As a NAT does with idle ones: nothing passes any more, and nobody is told. New ones are taken."""
        for wire in self.wires:
            wire.is_dead = True

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self.accepted += 1
        wire = Wire((writer, far_writer))
        self.wires.append(wire)
        try:
            await asyncio.gather(self._carry(wire, reader, far_writer), self._carry(wire, far_reader, writer))
        except OSError:
            pass
        finally:
            if wire in self.wires:
                self.wires.remove(wire)
            for end in wire.ends:
                end.transport.abort()

    async def _carry(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            if not wire.is_dead:
                self.carried_chunks += 1
                writer.write(chunk)
                await writer.drain()
        if not wire.is_dead:
            writer.close()
