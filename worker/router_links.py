"""Which routers hear of this worker, and how each learns what it holds."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.prefix_cache import PrefixChanges
from proto import common_pb2, router_pb2, router_pb2_grpc
from rpc.channels import Channels
from rpc.streams import OutboundStream

Update = router_pb2.WorkerUpdate


@dataclass(slots=True)
class _Link:
    address: str
    stream: OutboundStream[router_pb2.WorkerUpdate, router_pb2.RouterUpdate]
    next_sequence: int = 0
    """Prefix events said on this stream; a snapshot starts anew."""


@dataclass(slots=True)
class RouterLinks:
    """One Attach stream per router; load reports and prefix events go to all that are up."""

    model: common_pb2.Model
    hello: Callable[[], router_pb2.WorkerHello]
    report: Callable[[], router_pb2.LoadReport]
    """A report for a router that has just been attached to; says nothing of reservations."""
    prefixes: Callable[[], tuple[bytes, ...]]
    """Every prefix hash cached now."""
    channels: Channels
    random: random.Random
    _links: dict[str, _Link] = field(default_factory=dict)

    def add(self, address: str) -> None:
        """Idempotent."""
        if address in self._links:
            return
        stub = router_pb2_grpc.RouterStub(self.channels.get(address))
        stream: OutboundStream[router_pb2.WorkerUpdate, router_pb2.RouterUpdate] = OutboundStream(
            stub.Attach,
            on_up=lambda: self._introduce(address),
            on_message=lambda message: self._heard(address, message),
            on_down=lambda _end: None,
            random=self.random,
        )
        self._links[address] = _Link(address, stream)
        stream.start()

    async def remove(self, address: str) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            await link.stream.close()
            await self.channels.drop(address)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._links)

    def send_report(self, report: router_pb2.LoadReport) -> None:
        for link in self._links.values():
            link.stream.send(Update(load=report))

    def send_prefixes(self, changes: PrefixChanges) -> None:
        if changes.resync:
            for link in self._links.values():
                self._send_snapshot(link)
        elif changes.stored or changes.removed:
            for link in self._links.values():
                self._send_events(link, changes.stored, changes.removed, snapshot=False)

    async def close(self, flush_s: float) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.stream.close(flush_s)

    def _introduce(self, address: str) -> None:
        link = self._links.get(address)
        if link is not None:
            link.stream.send(Update(hello=self.hello()))
            link.stream.send(Update(load=self.report()))
            self._send_snapshot(link)

    def _heard(self, address: str, message: router_pb2.RouterUpdate) -> None:
        link = self._links.get(address)
        if link is not None and message.HasField("resync"):
            self._send_snapshot(link)

    def _send_snapshot(self, link: _Link) -> None:
        link.next_sequence = 0
        self._send_events(link, self.prefixes(), (), snapshot=True)

    def _send_events(
        self, link: _Link, stored: tuple[bytes, ...], removed: tuple[bytes, ...], *, snapshot: bool
    ) -> None:
        events = router_pb2.PrefixEvents(
            first_sequence=link.next_sequence,
            model=self.model,
            snapshot=snapshot,
            stored=b"".join(stored),
            removed=b"".join(removed),
        )
        link.next_sequence += len(stored) + len(removed)
        link.stream.send(Update(prefixes=events))
