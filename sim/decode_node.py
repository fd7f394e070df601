"""A decode worker in virtual time: the real plain object, its gateways, its prefill workers and lanes."""

from dataclasses import dataclass, field
from typing import Any

from core.ends import End as Ending
from core.outcomes import Outcome
from core.request import Role
from decode_worker.actions import (
    Action,
    AskPrefill,
    DiscardChunk,
    DrainChunk,
    ReceiveChunk,
    RunStep,
    ScatterChunk,
    SendAbort,
    SendAttached,
    SendBound,
    SendReceived,
)
from decode_worker.attempts import GatewayKey, StartRequest
from decode_worker.config import DecodeConfig
from decode_worker.decode_worker import build
from decode_worker.mailboxes import SendFrame
from kv_transfer.lane import Arrived, LaneError
from kv_transfer.types import ChunkHeader, Peer
from prefill_worker.actions import AskBind, SendFailed, SendFirst
from sim.lanes import LanePair, LaneSpeed
from sim.messages import (
    Attached,
    Cancel,
    ChunkSent,
    GatewayAttach,
    HomeAttach,
    LaneOffer,
    PrefillAttached,
    frame,
    prefill_drawn,
    prefill_request,
)
from sim.network import End, Stream
from sim.node import Link, World
from sim.worker_node import WorkerNode, WorkerSpec


@dataclass(slots=True)
class PrefillLink:
    """The stream to one start of a prefill worker, and the lane from it."""

    link: Link
    attached: bool = False
    pending: list[Any] = field(default_factory=list)
    lane: LanePair | None = None


class DecodeNode(WorkerNode):
    """One start of a decode worker."""

    role = Role.DECODE

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: str,
        spec: WorkerSpec,
        routers: tuple[str, ...],
        lane_speed: LaneSpeed,
        config: DecodeConfig | None = None,
    ) -> None:
        super().__init__(world, name, incarnation, spec, routers, lane_speed)
        arguments = (
            config or DecodeConfig(),
            self.instance,
            spec.engine,
            spec.cost,
            self.backend.layout.bytes_per_token,
        )
        self.plain = world.recorded(build(*arguments), f"{name}@{incarnation}", arguments)
        self._gateways: dict[GatewayKey, GatewayEnd] = {}
        self._prefills: dict[Peer, PrefillLink] = {}
        self._staging: dict[ChunkHeader, memoryview] = {}
        self._lane_epochs = 0
        self._announced_epoch = 0
        """The lane epoch of the announcement that is being handled."""

    def accept(self, stream: Stream) -> End:
        return GatewayEnd(self, stream)

    def heartbeat(self) -> None:
        for peer, prefill in list(self._prefills.items()):
            if prefill.attached:
                self.tell("prefill_heard", peer)

    @property
    def staged_chunks(self) -> int:
        return len(self._staging)

    @property
    def lanes(self) -> list[LanePair]:
        return [prefill.lane for prefill in self._prefills.values() if prefill.lane is not None]

    def perform(self, action: Action) -> None:
        match action:
            case SendFrame(gateway):
                self._to_gateway(gateway, frame(action))
            case SendAttached(gateway, unknown):
                self._to_gateway(gateway, Attached(self.name, self.incarnation, unknown))
            case AskPrefill():
                self._ask(action)
            case SendBound(peer) | SendAbort(peer) | SendReceived(peer):
                self._to_prefill(peer, action)
            case ReceiveChunk(peer, header):
                self._receive(peer, header, drain=False)
            case DrainChunk(peer, header):
                self._receive(peer, header, drain=True)
            case ScatterChunk(header, table):
                self._scatter(header, table)
            case DiscardChunk(header):
                self._staging.pop(header, None)
            case RunStep(plan):
                self.run_step(plan)

    # Gateways.

    def attach(self, end: "GatewayEnd", attach: GatewayAttach) -> None:
        end.key = attach.gateway
        self._gateways[attach.gateway] = end
        self.tell("gateway_attached", attach.gateway, attach.resume)

    def detach(self, end: "GatewayEnd") -> None:
        if end.key is not None and self._gateways.get(end.key) is end:
            del self._gateways[end.key]
            self.tell("gateway_lost", end.key)

    def _to_gateway(self, gateway: GatewayKey, message: Any) -> None:
        if (end := self._gateways.get(gateway)) is not None:
            end.stream.to_client(message)

    # Prefill workers.

    def _ask(self, ask: AskPrefill) -> None:
        peer = Peer(ask.instance.worker, ask.instance.incarnation)
        if peer not in self._prefills:
            self._prefills[peer] = PrefillLink(self._connect(peer, ask.address))
        self._to_prefill(peer, prefill_request(ask))

    def _connect(self, peer: Peer, address: str) -> Link:
        return Link(
            self,
            address,
            up=lambda link: link.send(HomeAttach(self.peer, self.fingerprint)),
            message=lambda message: self._from_prefill(peer, message),
            down=lambda why: self._lost(peer, Ending(Outcome.WORKER_LOST, why)),
            refused=lambda why: self._lost(peer, Ending(Outcome.WORKER_LOST, why)),
            persistent=False,
        )

    def _to_prefill(self, peer: Peer, message: Any) -> None:
        prefill = self._prefills.get(peer)
        if prefill is None:
            return
        if prefill.attached:
            prefill.link.send(message)
        else:
            prefill.pending.append(message)

    def _from_prefill(self, peer: Peer, message: Any) -> None:
        prefill = self._prefills.get(peer)
        if prefill is None:
            return
        match message:
            case PrefillAttached() if not prefill.attached:
                self._attached(peer, prefill, message)
            case AskBind(_, transfer):
                self.tell("bind_asked", peer, transfer)
            case SendFirst(_, transfer):
                self.tell("first_tokens", peer, transfer, prefill_drawn(message))
            case SendFailed(_, transfer, end):
                self.tell("transfer_failed", peer, transfer, end)
            case ChunkSent(header, epoch):
                self._announced_epoch = epoch
                self.tell("chunk_sent", peer, header)

    def _attached(self, peer: Peer, prefill: PrefillLink, attached: PrefillAttached) -> None:
        refused = attached.refused
        if refused is None and attached.peer != peer:
            refused = Ending(Outcome.WORKER_LOST, f"{peer.worker} has restarted")
        if refused is not None:
            self._lost(peer, refused)
            return
        prefill.attached = True
        self._open_lane(peer, prefill)
        for message in prefill.pending:
            prefill.link.send(message)
        prefill.pending.clear()

    def _lost(self, peer: Peer, end: Ending) -> None:
        prefill = self._prefills.pop(peer, None)
        if prefill is None:
            return
        prefill.link.close()
        if prefill.lane is not None:
            prefill.lane.close()
        self.tell("prefill_lost", peer, end)

    # Lanes.

    def _open_lane(self, peer: Peer, prefill: PrefillLink) -> None:
        self._lane_epochs += 1
        lane = LanePair(self.loop, peer.worker, self.name, self._lane_epochs, self.lane_speed)
        prefill.lane = lane
        lane.on_failure(lambda: self.soon(lambda: self._lane_broke(peer, lane)))
        prefill.link.send(LaneOffer(lane))

    def _lane_broke(self, peer: Peer, lane: LanePair) -> None:
        prefill = self._prefills.get(peer)
        if prefill is not None and prefill.lane is lane:
            # The table hears of the loss before the next epoch is offered.
            self.tell("lane_failed", peer)
            self._open_lane(peer, prefill)

    def _receive(self, peer: Peer, header: ChunkHeader, *, drain: bool) -> None:
        prefill = self._prefills.get(peer)
        lane = None if prefill is None else prefill.lane
        if lane is None or lane.epoch != self._announced_epoch:
            # It was put on a lane that is over: what is announced so late is lost with it.
            if not drain:
                self.soon(lambda: self.tell("lane_failed", peer))
            return

        def done(arrived: Arrived | LaneError) -> None:
            self.soon(lambda: self._arrived(peer, header, arrived, drain))

        lane.receiving.receive(header, done, drain=drain)

    def _arrived(self, peer: Peer, header: ChunkHeader, arrived: Arrived | LaneError, drain: bool) -> None:
        if drain or isinstance(arrived, LaneError):
            return
        self._staging[header] = arrived.payload
        self.tell("chunk_arrived", peer, header, arrived.checksum_ok)

    def _scatter(self, header: ChunkHeader, table: tuple[int, ...]) -> None:
        def done(written: bool) -> None:
            del self._staging[header]
            self.tell("scattered", header, written)

        self.thread.write(table, header.start, header.stop, self._staging[header], done)


class GatewayEnd:
    """This worker's side of one gateway's stream."""

    def __init__(self, node: DecodeNode, stream: Stream) -> None:
        self.node, self.stream = node, stream
        self.key: GatewayKey | None = None

    def message(self, message: Any) -> None:
        if isinstance(message, GatewayAttach):
            if self.key is None:  # only a stream's first message introduces
                self.node.attach(self, message)
            return
        if self.key is None:
            return
        match message:
            case StartRequest():
                self.node.tell("start", self.key, message)
            case Cancel(key, outcome):
                self.node.tell("cancel", key, outcome)

    def down(self, why: str) -> None:
        self.node.detach(self)
