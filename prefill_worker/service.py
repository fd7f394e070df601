"""The prefill worker on the wire: homes' streams in, lanes out, engine below."""

import uuid
from typing import Any

from core.ends import End
from core.membership import MemberKind
from core.outcomes import Outcome
from core.request import Role
from kv_transfer.lane import LaneError
from kv_transfer.layout import checksum
from kv_transfer.types import ChunkHeader, Peer, TransferKey
from prefill_worker.actions import AskBind, DropChunk, PackChunk, RunStep, SendChunk, SendFailed, SendFirst
from prefill_worker.config import PrefillConfig
from prefill_worker.prefill_worker import PrefillWorker, build
from prefill_worker.wire import (
    attached_to_wire,
    bind_to_wire,
    failed_to_wire,
    first_to_wire,
    home_from_wire,
    offer_from_wire,
    sent_to_wire,
    start_from_wire,
)
from proto import prefill_pb2, prefill_pb2_grpc
from rpc.errors import FieldError
from rpc.recording import recorded_in
from rpc.server import Service
from rpc.service_main import Process
from rpc.streams import InboundStream
from worker.config import WorkerConfig
from worker.instance import Hosted, host
from worker.shell import WorkerShell

HomeStream = InboundStream[prefill_pb2.HomeMessage, prefill_pb2.PrefillMessage]


class PrefillShell(WorkerShell[PrefillWorker]):
    """Performs what a PrefillWorker decides."""

    role = Role.PREFILL
    kind = MemberKind.PREFILL

    def __init__(self, config: WorkerConfig, hosted: Hosted, worker: PrefillWorker, process: Process) -> None:
        super().__init__(config, hosted, worker.engine, worker, process)
        self._homes: dict[Peer, HomeStream] = {}
        self._packed: dict[tuple[Peer, ChunkHeader], bytes] = {}
        self._laneless: dict[Peer, list[ChunkHeader]] = {}
        """Packed, and waiting for the home's lane to be offered."""

    # ---- homes ----

    def service(self) -> Service:
        name = prefill_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name
        return Service(name, _Prefill(self), prefill_pb2_grpc.add_PrefillServicer_to_server)

    def home_attached(self, stream: HomeStream, message: prefill_pb2.HomeAttach) -> Peer | None:
        """None: the pair does not fit, and the home was told why; both live on."""
        home, fingerprint = home_from_wire(message)
        mismatch = self.fingerprint.mismatch(fingerprint)
        refused = None if mismatch is None else End(Outcome.INCOMPATIBLE, mismatch, mismatch.split(":")[0])
        stream.send(attached_to_wire(self.own, self.fingerprint, refused))
        if refused is not None:
            return None
        replaced = self._homes.get(home)
        if replaced is not None:
            self.home_lost(home, replaced)
            replaced.close(End(Outcome.CANCELLED, "attached anew"))
        self._homes[home] = stream
        return home

    def home_lost(self, home: Peer, stream: HomeStream) -> None:
        """The stream is the home's life here: without it nobody hears what its prompts became."""
        if self._homes.get(home) is stream:
            del self._homes[home]
            self._fail_laneless(home)
            self.tell(self.plain.home_lost, home)
            self.lanes.close_peer(home)

    def home_message(self, home: Peer, message: prefill_pb2.HomeMessage) -> None:
        match message.WhichOneof("message"):
            case "start":
                self._start(home, message.start)
            case "bound":
                bound = message.bound
                key = TransferKey(bound.transfer, bound.epoch)
                self.tell(self.plain.bound, home, key, bound.first_token, bound.lease_us)
            case "abort":
                self.tell(self.plain.aborted, home, TransferKey(message.abort.transfer, message.abort.epoch))
            case "received":
                received = message.received
                key = TransferKey(received.transfer, received.epoch)
                self.tell(self.plain.received, home, key, received.chunk)
            case "lane":
                self._accept_lane(home, message.lane)

    def _start(self, home: Peer, message: prefill_pb2.PrefillStart) -> None:
        try:
            request = start_from_wire(message)
        except FieldError as error:  # this prompt's error, not the stream's (L8)
            end = End(Outcome.INVALID_ARGUMENT, str(error), error.field)
            self._to_home(home, failed_to_wire(TransferKey(message.transfer, message.epoch), end))
            return
        self.tell(self.plain.start, home, request)

    def _to_home(self, home: Peer, message: prefill_pb2.PrefillMessage) -> None:
        stream = self._homes.get(home)
        if stream is not None:
            stream.send(message)

    # ---- lanes ----

    def _accept_lane(self, home: Peer, message: prefill_pb2.LaneOffer) -> None:
        try:
            self.lanes.accept(home, offer_from_wire(message))
        except ValueError as error:
            raise FieldError("lane.store_address", str(error)) from None
        for header in self._laneless.pop(home, []):
            self._send(home, header)

    def lane_ready(self, peer: Peer, epoch: int, error: LaneError | None) -> None:
        ready = prefill_pb2.LaneReady(lane_epoch=epoch, error="" if error is None else str(error))
        self._to_home(peer, prefill_pb2.PrefillMessage(lane=ready))
        if error is not None:
            self.lane_failed(peer, epoch, error)

    def lane_failed(self, peer: Peer, epoch: int, error: LaneError) -> None:
        self.process.log.warning("lane_failed", peer=peer.worker, epoch=epoch, reason=str(error))
        self._fail_laneless(peer)
        self.tell(self.plain.lane_failed, peer)

    def _fail_laneless(self, home: Peer) -> None:
        for header in self._laneless.pop(home, []):
            self._sent(home, header, False)

    def _pack(self, action: PackChunk) -> None:
        def done(payload: bytes) -> None:
            transfer = action.transfer
            header = ChunkHeader(
                transfer.transfer,
                transfer.epoch,
                action.chunk,
                action.start,
                action.stop,
                len(payload),
                checksum(payload),
            )
            self._packed[action.peer, header] = payload
            self.tell(self.plain.packed, action.peer, header)

        self.steps.read(action.block_table, action.start, action.stop, done)

    def _send(self, home: Peer, header: ChunkHeader) -> None:
        """On the lane and on the control stream in one order."""
        lane, epoch = self.lanes.lane(home), self.lanes.epoch(home)
        if lane is None or epoch is None:
            self._laneless.setdefault(home, []).append(header)
            return
        payload = self._packed[home, header]
        lane.send(header, payload, lambda error: self._sent(home, header, error is None))
        self._to_home(home, sent_to_wire(header, epoch))

    def _sent(self, home: Peer, header: ChunkHeader, delivered: bool) -> None:
        del self._packed[home, header]
        self.tell(self.plain.sent, home, header, delivered)

    # ---- actions ----

    def perform(self, action: Any) -> None:
        match action:
            case RunStep(plan):
                self.steps.step(plan, lambda result: self.tell(self.plain.step_done, result))
            case AskBind(peer, transfer):
                self._to_home(peer, bind_to_wire(transfer))
            case SendFirst(peer):
                self._to_home(peer, first_to_wire(action))
            case PackChunk():
                self._pack(action)
            case SendChunk(peer, header):
                self._send(peer, header)
            case DropChunk(peer, header):
                self._packed.pop((peer, header), None)
            case SendFailed(peer, transfer, end):
                self._to_home(peer, failed_to_wire(transfer, end))
            case _:
                raise AssertionError(f"nobody performs {action}")

    def heartbeat(self) -> None:
        for home in list(self._homes):
            self.tell(self.plain.home_heard, home)

    async def close_streams(self) -> None:
        for stream in list(self._homes.values()):
            stream.close(End(Outcome.MOVED, "this worker has drained"))


class _Prefill(prefill_pb2_grpc.PrefillServicer):
    """One stream per home; its first message says whose it is."""

    def __init__(self, shell: PrefillShell) -> None:
        self._shell = shell

    async def Serve(self, request_iterator: Any, context: Any) -> None:
        stream: HomeStream = InboundStream(context)
        home: Peer | None = None

        def heard(message: prefill_pb2.HomeMessage) -> None:
            nonlocal home
            if message.HasField("attach"):
                home = self._shell.home_attached(stream, message.attach)
            elif home is None:
                raise FieldError("attach", "must be the first message of the stream")
            else:
                self._shell.home_message(home, message)

        try:
            await stream.serve(heard)
        finally:
            if home is not None:
                self._shell.home_lost(home, stream)


async def serve(config: WorkerConfig, process: Process, prefill: PrefillConfig | None = None) -> None:
    """Load the model, announce, serve until drained."""
    name = config.id or f"prefill-{uuid.uuid4().hex[:8]}"
    hosted = await process.prepare(lambda: host(config, name, uuid.uuid4().hex[:16]))
    arguments = (
        prefill or PrefillConfig(),
        hosted.engine,
        hosted.cost,
        hosted.backend.layout.bytes_per_token,
    )
    incarnation = hosted.key.incarnation
    worker, close_recording = recorded_in(config.record, name, incarnation, build(*arguments), arguments)
    try:
        await PrefillShell(config, hosted, worker, process).run()
    finally:
        close_recording()
