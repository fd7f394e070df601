"""What both kinds of worker share in virtual time: engine thread, routers, reports, heartbeats, drain."""

from dataclasses import dataclass
from typing import Any

from core.cost_model import StepCost
from core.prefix_hashes import HASH_UNIT
from core.request import InstanceKey, ModelIdentity, Role
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import FakeModel
from engine.timed_backend import Fault, TimedBackend, digest_layout
from kv_transfer.types import Fingerprint, Peer
from router.actions import Resync
from router.messages import InstanceInfo, LoadReport, PrefixEvents, WorkerHello
from sim.engine_thread import EngineThread
from sim.lanes import LaneSpeed
from sim.node import Link, Node, World

FAKE_MODEL = ModelIdentity("fake", "1")
FAKE_WEIGHTS = FakeModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker hosts."""

    engine: EngineConfig
    cost: StepCost
    model: ModelIdentity = FAKE_MODEL
    dtype: str = "digest"
    fake: FakeModel = FAKE_WEIGHTS
    fault: Fault | None = None
    """A mistake planted in its backend."""
    chunk_tokens: int = 64
    whole_prompt_tokens: int = 64
    report_interval_us: int = 50_000
    heartbeat_us: int = 2_000_000


class WorkerNode(Node):
    """One start of a worker; a subclass adds its plain object and its peers."""

    role: Role

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: str,
        spec: WorkerSpec,
        routers: tuple[str, ...],
        lane_speed: LaneSpeed,
    ) -> None:
        super().__init__(world, name, incarnation)
        self.spec, self.lane_speed = spec, lane_speed
        self.peer = Peer(name, incarnation)
        self.instance = InstanceKey(name, incarnation, spec.model)
        self._router_addresses = routers
        layout = digest_layout(spec.engine.block_size, spec.engine.blocks)
        self.backend = TimedBackend(spec.cost, layout, spec.fake, fault=spec.fault)
        self.fingerprint = Fingerprint(
            spec.model, spec.dtype, layout.layers, layout.kv_heads, layout.head_dim
        )
        self.thread = EngineThread(self, self.backend, spec.cost, self._check_in_flight)
        self._links: dict[str, Link] = {}
        self._prefix_sequence: dict[str, int] = {}
        self._reports = 0
        self._changed = True
        self._idle_intervals = 0
        self._leaving = False

    @property
    def engine(self) -> Engine:
        engine: Engine = self.plain.engine
        return engine

    def start(self) -> None:
        for address in self._router_addresses:
            self._links[address] = Link(
                self,
                address,
                up=lambda link: self._introduce(link),
                message=lambda message, address=address: self._from_router(address, message),  # type: ignore[misc]
                down=lambda why: None,
            )
        self.every(self.spec.report_interval_us, self._report)
        self.every(self.spec.heartbeat_us, self.heartbeat)

    def heartbeat(self) -> None:
        """Peers whose stream is up live."""

    def told(self) -> None:
        self._changed = True
        if self._leaving and not self.plain.live and not self.plain.transferring:
            self._leaving = False
            self.soon(self.crash)

    def drain(self, grace_us: int) -> None:
        """SIGTERM: finish what is here, then exit."""
        self._leaving = True
        self.tell("drain", grace_us)
        self._send_report()

    def run_step(self, plan: Any) -> None:
        self.thread.step(plan, lambda result: self.tell("step_done", result))

    def _check_in_flight(self, blocks: tuple[int, ...]) -> None:
        """L2: what a transfer reads or writes is nobody else's until it has done so."""
        pins = self.engine._blocks.manager._pins
        loose = [block for block in blocks if not pins[block]]
        assert not loose, f"{self.name}: a transfer touches blocks {loose}, which are not in flight"

    # What routers are told.

    def _introduce(self, link: Link) -> None:
        link.send(self._hello())
        link.send(self._load((), ()))
        self._send_snapshot(link)

    def _from_router(self, address: str, message: Any) -> None:
        if isinstance(message, Resync):
            self._send_snapshot(self._links[address])

    def _report(self) -> None:
        self._idle_intervals += 1
        if not self._changed and self._idle_intervals < 10:
            return
        self._changed, self._idle_intervals = False, 0
        changes = self.engine.take_prefix_changes()
        for link in self._links.values():
            if changes.resync:
                self._send_snapshot(link)
            elif changes.stored or changes.removed:
                self._send_prefixes(link, changes.stored, changes.removed, snapshot=False)
        self._send_report()

    def _send_report(self) -> None:
        # Asked directly: an event, recorded like the others, whose answer is no action.
        placed, ended = self.plain.take_reservations(self.now_us)
        report = self._load(placed, ended)
        for link in self._links.values():
            link.send(report)

    def _send_snapshot(self, link: Link) -> None:
        self._prefix_sequence[link.address] = 0
        self._send_prefixes(link, self.engine.prefix_hashes(), (), snapshot=True)

    def _send_prefixes(
        self, link: Link, stored: tuple[bytes, ...], removed: tuple[bytes, ...], *, snapshot: bool
    ) -> None:
        first = self._prefix_sequence.get(link.address, 0)
        self._prefix_sequence[link.address] = first + len(stored) + len(removed)
        link.send(PrefixEvents(first, self.spec.model, snapshot, b"".join(stored), b"".join(removed)))

    def _hello(self) -> WorkerHello:
        spec = self.spec
        info = InstanceInfo(
            model=spec.model,
            dtype=spec.dtype,
            block_size=spec.engine.block_size,
            blocks_total=spec.engine.blocks,
            max_positions=spec.engine.max_positions,
            max_running=spec.engine.max_running,
            cost_base_ns=spec.cost.base_ns,
            cost_token_ns=spec.cost.token_ns,
            cost_context_ns=spec.cost.context_ns,
            kv_bytes_per_token=self.backend.layout.bytes_per_token,
            hash_unit=HASH_UNIT,
        )
        return WorkerHello(self.name, self.incarnation, self.role, self.address, 1, (info,))

    def _load(self, placed: tuple[tuple[str, int], ...], ended: tuple[tuple[str, int], ...]) -> LoadReport:
        self._reports += 1
        counts, engine = self.engine.counts(), self.engine
        return LoadReport(
            sequence=self._reports,
            model=self.spec.model,
            blocks_free=counts.free,
            blocks_cached=counts.cached,
            blocks_held=counts.held,
            blocks_in_flight=counts.in_flight,
            running=engine.running,
            waiting=self.plain.waiting,
            transferring=self.plain.transferring,
            queued_prefill_us=self.plain.queued_prefill_us(),
            acknowledged=placed,
            service=tuple(sorted(engine.service_us.items())),
            draining=self.plain.draining,
            ended=ended,
        )
