"""The control streams from this home to its prefill workers, one per start of each."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.ends import End
from core.outcomes import Outcome
from decode_worker.wire import fingerprint_from_wire, home_attach_to_wire
from kv_transfer.types import Fingerprint, Peer
from proto import prefill_pb2, prefill_pb2_grpc
from rpc.channels import Channels
from rpc.convert import end_from_wire
from rpc.streams import OutboundStream

Stream = OutboundStream[prefill_pb2.HomeMessage, prefill_pb2.PrefillMessage]


class Heard(Protocol):
    """Who is told what the prefill workers say."""

    def attached(self, peer: Peer) -> None: ...
    def message(self, peer: Peer, message: prefill_pb2.PrefillMessage) -> None: ...
    def lost(self, peer: Peer, end: End) -> None: ...


@dataclass(slots=True)
class _Link:
    address: str
    stream: Stream
    attached: bool = False
    pending: list[prefill_pb2.HomeMessage] = field(default_factory=list)
    """Until the pair is known to fit."""


class PrefillLinks:
    """A link lives until it breaks, then its peer is lost; the next ask makes a new one."""

    def __init__(
        self,
        own: Peer,
        fingerprint: Fingerprint,
        channels: Channels,
        heard: Heard,
        run: Callable[[Coroutine[Any, Any, None]], object],
        random: random.Random,
    ) -> None:
        """`run` schedules a coroutine that nobody waits for."""
        self._own, self._fingerprint = own, fingerprint
        self._channels, self._heard = channels, heard
        self._run = run
        self._random = random
        self._links: dict[Peer, _Link] = {}

    @property
    def attached(self) -> tuple[Peer, ...]:
        return tuple(peer for peer, link in self._links.items() if link.attached)

    def ask(self, peer: Peer, address: str, message: prefill_pb2.HomeMessage) -> None:
        """Connects first, if need be."""
        link = self._links.get(peer) or self._open(peer, address)
        if link.attached:
            link.stream.send(message)
        else:
            link.pending.append(message)

    def send(self, peer: Peer, message: prefill_pb2.HomeMessage) -> None:
        """To a peer that asked or was asked; nothing where its link is gone."""
        link = self._links.get(peer)
        if link is not None:
            (link.stream.send if link.attached else link.pending.append)(message)

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.stream.close(flush_s=0.5)

    async def _shut(self, link: _Link) -> None:
        await link.stream.close()
        if all(other.address != link.address for other in self._links.values()):
            await self._channels.drop(link.address)

    def _open(self, peer: Peer, address: str) -> _Link:
        stub = prefill_pb2_grpc.PrefillStub(self._channels.get(address))
        stream: Stream = OutboundStream(
            stub.Serve,
            on_up=lambda: self._attach(peer),
            on_message=lambda message: self._message(peer, message),
            on_down=lambda end: self._broken(peer, end),
            on_refused=lambda end: self._broken(peer, end),
            random=self._random,
        )
        link = self._links[peer] = _Link(address, stream)
        stream.start()
        return link

    def _attach(self, peer: Peer) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.stream.send(home_attach_to_wire(self._own, self._fingerprint))

    def _message(self, peer: Peer, message: prefill_pb2.PrefillMessage) -> None:
        link = self._links.get(peer)
        if link is None:
            return
        if not message.HasField("attached"):
            self._heard.message(peer, message)
            return
        refusal = self._refusal(peer, message.attached)
        if refusal is not None:
            self._broken(peer, refusal)
            return
        link.attached = True
        self._heard.attached(peer)
        for pending in link.pending:
            link.stream.send(pending)
        link.pending.clear()

    def _refusal(self, peer: Peer, attached: prefill_pb2.PrefillAttached) -> End | None:
        """Both ends compare, so that an older peer's leniency never lets wrong KV in."""
        if attached.HasField("refused"):
            return end_from_wire(attached.refused)
        if (attached.worker, attached.incarnation) != (peer.worker, peer.incarnation):
            return End(Outcome.WORKER_LOST, f"{attached.worker} has restarted as {attached.incarnation}")
        mismatch = self._fingerprint.mismatch(fingerprint_from_wire(attached.fingerprint))
        return None if mismatch is None else End(Outcome.INCOMPATIBLE, mismatch, mismatch.split(":")[0])

    def _broken(self, peer: Peer, end: End) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            self._run(self._shut(link))
            known = end.outcome in (Outcome.INCOMPATIBLE, Outcome.MOVED, Outcome.WORKER_FULL)
            self._heard.lost(peer, end if known else End(Outcome.WORKER_LOST, end.message))
