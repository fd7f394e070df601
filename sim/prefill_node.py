"""A prefill worker in virtual time: the real plain object, its homes' streams and lanes."""

from typing import Any

from core.ends import End as Ending
from core.outcomes import Outcome
from core.request import Role
from decode_worker.actions import SendAbort, SendBound, SendReceived
from kv_transfer.layout import header_of
from kv_transfer.types import ChunkHeader, Peer
from prefill_worker.actions import (
    Action,
    AskBind,
    DropChunk,
    PackChunk,
    PrefillRequest,
    RunStep,
    SendChunk,
    SendFailed,
    SendFirst,
)
from prefill_worker.config import PrefillConfig
from prefill_worker.prefill_worker import build
from sim.lanes import LanePair, LaneSpeed
from sim.messages import ChunkSent, HomeAttach, LaneOffer, PrefillAttached
from sim.network import End, Stream
from sim.node import World
from sim.worker_node import WorkerNode, WorkerSpec


class PrefillNode(WorkerNode):
    """One start of a prefill worker."""

    role = Role.PREFILL

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: str,
        spec: WorkerSpec,
        routers: tuple[str, ...],
        lane_speed: LaneSpeed,
        config: PrefillConfig | None = None,
    ) -> None:
        super().__init__(world, name, incarnation, spec, routers, lane_speed)
        arguments = (
            config or PrefillConfig(),
            spec.engine,
            spec.cost,
            self.backend.layout.bytes_per_token,
            spec.chunk_tokens,
            spec.whole_prompt_tokens,
        )
        self.plain = world.recorded(build(*arguments), f"{name}@{incarnation}", arguments)
        self._homes: dict[Peer, HomeEnd] = {}
        self._packed: dict[tuple[Peer, ChunkHeader], bytes] = {}

    def accept(self, stream: Stream) -> End:
        return HomeEnd(self, stream)

    def heartbeat(self) -> None:
        for peer in list(self._homes):
            self.tell("home_heard", peer)

    def perform(self, action: Action) -> None:
        match action:
            case AskBind(peer, _) | SendFirst(peer, _) | SendFailed(peer, _):
                self._to_home(peer, action)
            case PackChunk():
                self._pack(action)
            case SendChunk(peer, header):
                self._send(peer, header)
            case DropChunk(peer, header):
                del self._packed[peer, header]
            case RunStep(plan):
                self.run_step(plan)

    @property
    def packed_copies(self) -> int:
        """Chunks copied out of the blocks and not yet given to a lane or dropped."""
        return len(self._packed)

    # Homes.

    def attach(self, home: "HomeEnd", attach: HomeAttach) -> None:
        peer = attach.peer
        mismatch = self.fingerprint.mismatch(attach.fingerprint)
        refused = None
        if mismatch is not None:
            refused = Ending(Outcome.INCOMPATIBLE, mismatch, mismatch.split(":")[0])
        elif self.plain.draining:
            refused = Ending(Outcome.MOVED, "this worker is draining")
        if refused is None:
            if (earlier := self._homes.get(peer)) is not None:
                self.detach(earlier)
                earlier.stream.close()
            home.peer = peer
            self._homes[peer] = home
        home.stream.to_client(PrefillAttached(self.peer, self.fingerprint, refused))

    def detach(self, home: "HomeEnd") -> None:
        if home.peer is not None and self._homes.get(home.peer) is home:
            del self._homes[home.peer]
            if home.lane is not None:
                home.lane.close()
            self.tell("home_lost", home.peer)

    def lane_broke(self, home: "HomeEnd", lane: LanePair) -> None:
        if home.peer is not None and home.lane is lane and self._homes.get(home.peer) is home:
            home.lane = None
            self.tell("lane_failed", home.peer)

    def _to_home(self, peer: Peer, message: Any) -> None:
        if (home := self._homes.get(peer)) is not None:
            home.stream.to_client(message)

    # Chunks.

    def _pack(self, pack: PackChunk) -> None:
        def packed(payload: bytes) -> None:
            header = header_of(pack.transfer, pack.chunk, pack.start, pack.stop, payload)
            self._packed[pack.peer, header] = payload
            self.tell("packed", pack.peer, header)

        self.thread.read(pack.block_table, pack.start, pack.stop, packed)

    def _send(self, peer: Peer, header: ChunkHeader) -> None:
        payload = self._packed.pop((peer, header))
        home = self._homes.get(peer)
        lane = None if home is None else home.lane
        if home is None or lane is None:
            self.soon(lambda: self.tell("sent", peer, header, False))
            return
        home.stream.to_client(ChunkSent(header, lane.epoch))
        lane.send(
            header,
            payload,
            lambda error: self.soon(lambda: self.tell("sent", peer, header, error is None)),
        )


class HomeEnd:
    """This worker's side of one home's stream."""

    def __init__(self, node: PrefillNode, stream: Stream) -> None:
        self.node, self.stream = node, stream
        self.peer: Peer | None = None
        self.lane: LanePair | None = None

    def message(self, message: Any) -> None:
        if isinstance(message, HomeAttach):
            if self.peer is None:  # only a stream's first message introduces
                self.node.attach(self, message)
            return
        peer = self.peer
        if peer is None:
            return
        match message:
            case LaneOffer(lane):
                if self.lane is not None:
                    self.lane.close()
                self.lane = None if lane.over else lane
                lane.on_failure(lambda: self.node.soon(lambda: self.node.lane_broke(self, lane)))
            case PrefillRequest():
                self.node.tell("start", peer, message)
            case SendBound(_, transfer, first_token, lease_us):
                self.node.tell("bound", peer, transfer, first_token, lease_us)
            case SendAbort(_, transfer, _):
                self.node.tell("aborted", peer, transfer)
            case SendReceived(_, transfer, chunk):
                self.node.tell("received", peer, transfer, chunk)

    def down(self, why: str) -> None:
        self.node.detach(self)
