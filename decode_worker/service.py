"""The decode worker on the wire: gateways above, prefill workers beside, lanes and engine below."""

import asyncio
import uuid
from typing import Any

from core.ends import End
from core.membership import MemberKind
from core.outcomes import Outcome
from core.request import AttemptKey, Role
from decode_worker.actions import (
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
from decode_worker.attempts import GatewayKey
from decode_worker.config import DecodeConfig
from decode_worker.decode_worker import DecodeWorker, build
from decode_worker.mailboxes import SendFrame
from decode_worker.prefill_links import PrefillLinks
from decode_worker.wire import (
    abort_to_wire,
    ask_to_wire,
    attach_from_wire,
    bound_to_wire,
    first_from_wire,
    frame_to_wire,
    header_from_wire,
    peer_of,
    received_to_wire,
    refusal_to_wire,
    resume_to_wire,
    start_from_wire,
)
from kv_transfer.lane import Arrived, LaneError
from kv_transfer.types import ChunkHeader, Peer, TransferKey
from proto import decode_pb2, decode_pb2_grpc, prefill_pb2
from rpc.convert import end_from_wire, outcome_from_wire
from rpc.errors import FieldError
from rpc.recording import recorded_in
from rpc.server import Service
from rpc.service_main import Process
from rpc.streams import InboundStream
from worker.config import WorkerConfig
from worker.instance import Hosted, host
from worker.shell import LANE_RETRY_S, WorkerShell

GatewayStream = InboundStream[decode_pb2.GatewayMessage, decode_pb2.DecodeMessage]


class DecodeShell(WorkerShell[DecodeWorker]):
    """Performs what a DecodeWorker decides."""

    role = Role.DECODE
    kind = MemberKind.DECODE

    def __init__(self, config: WorkerConfig, hosted: Hosted, worker: DecodeWorker, process: Process) -> None:
        super().__init__(config, hosted, worker.engine, worker, process)
        self._gateways: dict[GatewayKey, GatewayStream] = {}
        self._staged: dict[ChunkHeader, Arrived] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._prefills = PrefillLinks(
            self.own, self.fingerprint, self.channels, self, self.spawn, self.random
        )

    # ---- gateways ----

    def service(self) -> Service:
        name = decode_pb2.DESCRIPTOR.services_by_name["Decode"].full_name
        return Service(name, _Decode(self), decode_pb2_grpc.add_DecodeServicer_to_server)

    def gateway_attached(self, stream: GatewayStream, message: decode_pb2.GatewayAttach) -> GatewayKey:
        gateway, resume = attach_from_wire(message)
        replaced = self._gateways.get(gateway)
        self._gateways[gateway] = stream
        if replaced is not None:
            replaced.close(End(Outcome.CANCELLED, "attached anew"))
        self.tell(self.plain.gateway_attached, gateway, resume)
        return gateway

    def gateway_lost(self, gateway: GatewayKey, stream: GatewayStream) -> None:
        if self._gateways.get(gateway) is stream:
            del self._gateways[gateway]
            self.tell(self.plain.gateway_lost, gateway)

    def gateway_message(self, gateway: GatewayKey, message: decode_pb2.GatewayMessage) -> None:
        match message.WhichOneof("message"):
            case "start":
                self._start(gateway, message.start)
            case "cancel":
                key = AttemptKey(message.cancel.request, message.cancel.attempt)
                self.tell(self.plain.cancel, key, outcome_from_wire(message.cancel.outcome or "cancelled"))

    def _start(self, gateway: GatewayKey, message: decode_pb2.Start) -> None:
        try:
            request = start_from_wire(message)
        except FieldError as error:  # this request's error, not the stream's (L8)
            end = End(Outcome.INVALID_ARGUMENT, str(error), error.field)
            self._to_gateway(gateway, refusal_to_wire(AttemptKey(message.request, message.attempt), end))
            return
        self.tell(self.plain.start, gateway, request)

    def _to_gateway(self, gateway: GatewayKey, message: decode_pb2.DecodeMessage) -> None:
        stream = self._gateways.get(gateway)
        if stream is not None:
            stream.send(message)

    # ---- prefill workers ----

    def attached(self, peer: Peer) -> None:
        self._offer_lane(peer)

    def message(self, peer: Peer, message: prefill_pb2.PrefillMessage) -> None:
        match message.WhichOneof("message"):
            case "bind":
                self.tell(self.plain.bind_asked, peer, TransferKey(message.bind.transfer, message.bind.epoch))
            case "first":
                key = TransferKey(message.first.transfer, message.first.epoch)
                self.tell(self.plain.first_tokens, peer, key, first_from_wire(message.first))
            case "sent":
                self._chunk_sent(peer, message.sent)
            case "failed":
                key = TransferKey(message.failed.transfer, message.failed.epoch)
                self.tell(self.plain.transfer_failed, peer, key, end_from_wire(message.failed.end))

    def lost(self, peer: Peer, end: End) -> None:
        self.lanes.close_peer(peer)
        self.process.log.warning("prefill_lost", peer=peer.worker, reason=end.message)
        self.tell(self.plain.prefill_lost, peer, end)

    def _chunk_sent(self, peer: Peer, message: prefill_pb2.ChunkSent) -> None:
        """Of a lane that is gone the chunk is lost, as lane_failed has said."""
        if self.lanes.epoch(peer) == message.lane_epoch:
            self.tell(self.plain.chunk_sent, peer, header_from_wire(message))

    # ---- lanes ----

    def _offer_lane(self, peer: Peer) -> None:
        if peer not in self._prefills.attached:
            return
        try:
            offer = self.lanes.offer(peer)
        except LaneError as error:
            self.process.log.warning("lane_refused", peer=peer.worker, reason=str(error))
            self.loop.call_later(LANE_RETRY_S, self._offer_lane, peer)
            return
        lane = prefill_pb2.LaneOffer(
            lane_epoch=offer.lane_epoch, store_address=offer.store_address, store_prefix=offer.store_prefix
        )
        self._prefills.send(peer, prefill_pb2.HomeMessage(lane=lane))

    def lane_ready(self, peer: Peer, epoch: int, error: LaneError | None) -> None:
        if error is not None:
            self.lane_failed(peer, epoch, error)

    def lane_failed(self, peer: Peer, epoch: int, error: LaneError) -> None:
        """What was on it is lost before its next epoch is announced."""
        self.process.log.warning("lane_failed", peer=peer.worker, epoch=epoch, reason=str(error))
        self.tell(self.plain.lane_failed, peer)
        self.loop.call_later(LANE_RETRY_S, self._offer_lane, peer)

    def _receive(self, peer: Peer, header: ChunkHeader, *, drain: bool) -> None:
        lane = self.lanes.lane(peer)
        if lane is not None:
            lane.receive(header, lambda arrived: self._arrived(peer, arrived, drain=drain), drain=drain)

    def _arrived(self, peer: Peer, arrived: Arrived | LaneError, *, drain: bool) -> None:
        if isinstance(arrived, LaneError):  # lane_failed follows
            return
        if drain:
            arrived.release()
            return
        self._staged[arrived.header] = arrived
        self.tell(self.plain.chunk_arrived, peer, arrived.header, arrived.checksum_ok)

    def _scatter(self, action: ScatterChunk) -> None:
        arrived, header = self._staged.pop(action.header), action.header

        def done(written: bool) -> None:
            arrived.release()
            self.tell(self.plain.scattered, header, written)

        self.steps.write(action.block_table, header.start, header.stop, arrived.payload, done)

    # ---- actions ----

    def perform(self, action: Any) -> None:
        match action:
            case SendFrame(gateway):
                self._to_gateway(gateway, frame_to_wire(action))
            case RunStep(plan):
                self.steps.step(plan, lambda result: self.tell(self.plain.step_done, result))
            case SendAttached(gateway, unknown):
                attached = decode_pb2.Attached(worker=self.own.worker, incarnation=self.own.incarnation)
                attached.unknown.extend(resume_to_wire(key) for key in unknown)
                self._to_gateway(gateway, decode_pb2.DecodeMessage(attached=attached))
            case AskPrefill(instance, address):
                self._prefills.ask(peer_of(instance), address, ask_to_wire(action))
            case SendBound(peer):
                self._prefills.send(peer, bound_to_wire(action))
            case SendAbort(peer, transfer, reason):
                self._prefills.send(peer, abort_to_wire(transfer, reason))
            case SendReceived(peer, transfer, chunk):
                self._prefills.send(peer, received_to_wire(transfer, chunk))
            case ReceiveChunk(peer, header):
                self._receive(peer, header, drain=False)
            case DrainChunk(peer, header):
                self._receive(peer, header, drain=True)
            case ScatterChunk():
                self._scatter(action)
            case DiscardChunk(header):
                if (arrived := self._staged.pop(header, None)) is not None:
                    arrived.release()
            case _:
                raise AssertionError(f"nobody performs {action}")

    def heartbeat(self) -> None:
        for peer in self._prefills.attached:
            self.tell(self.plain.prefill_heard, peer)

    async def close_streams(self) -> None:
        await self._prefills.close()
        for stream in list(self._gateways.values()):
            stream.close(End(Outcome.MOVED, "this worker has drained"))

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """A task that nobody waits for, kept from the garbage collector."""
        task = self.loop.create_task(work)
        self._tasks = [other for other in self._tasks if not other.done()]
        self._tasks.append(task)
        return task


class _Decode(decode_pb2_grpc.DecodeServicer):
    """One stream per gateway; its first message says whose it is."""

    def __init__(self, shell: DecodeShell) -> None:
        self._shell = shell

    async def Serve(self, request_iterator: Any, context: Any) -> None:
        stream: GatewayStream = InboundStream(context)
        gateway: GatewayKey | None = None

        def heard(message: decode_pb2.GatewayMessage) -> None:
            nonlocal gateway
            if message.HasField("attach"):
                gateway = self._shell.gateway_attached(stream, message.attach)
            elif gateway is None:
                raise FieldError("attach", "must be the first message of the stream")
            else:
                self._shell.gateway_message(gateway, message)

        try:
            await stream.serve(heard)
        finally:
            if gateway is not None:
                self._shell.gateway_lost(gateway, stream)


async def serve(config: WorkerConfig, process: Process, decode: DecodeConfig | None = None) -> None:
    """Load the model, announce, serve until drained."""
    name = config.id or f"decode-{uuid.uuid4().hex[:8]}"
    hosted = await process.prepare(lambda: host(config, name, uuid.uuid4().hex[:16]))
    arguments = (
        decode or DecodeConfig(),
        hosted.key,
        hosted.engine,
        hosted.cost,
        hosted.backend.layout.bytes_per_token,
    )
    incarnation = hosted.key.incarnation
    worker, close_recording = recorded_in(config.record, name, incarnation, build(*arguments), arguments)
    try:
        await DecodeShell(config, hosted, worker, process).run()
    finally:
        close_recording()
