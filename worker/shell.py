"""What every worker's process is around its plain object: clock, engine thread, routers, state, drain."""

import asyncio
import os
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from core.addresses import advertised, host_of
from core.membership import MemberKind
from core.request import Role
from engine.engine import Engine
from kv_transfer.gloo_lane import LaneConfig
from kv_transfer.lane import LaneError
from kv_transfer.lanes import Lanes
from kv_transfer.types import Fingerprint, Peer
from proto import worker_pb2, worker_pb2_grpc
from rpc.channels import Channels
from rpc.clock import now_us
from rpc.metrics import process_registry, serve_metrics
from rpc.server import Server, Service, make_server
from rpc.service_main import Process
from worker.config import WorkerConfig
from worker.instance import Hosted
from worker.lane_host import lane_address
from worker.metrics import WorkerMetrics
from worker.plain_worker import PlainWorker
from worker.registration import Registration
from worker.router_links import RouterLinks
from worker.self_report import SelfReport
from worker.step_loop import StepLoop
from worker.timer import Timer

HEARTBEAT_S = 2.0
"""How often peers whose stream is up are said to live, where they say nothing; well below a lease's third."""
IDLE_CHECK_S = 1.0
LANE_BUDGET_BYTES = 1 << 30
LANE_RETRY_S = 0.5
CRASHED = 70


Plain = TypeVar("Plain", bound=PlainWorker)


class WorkerShell(ABC, Generic[Plain]):
    """Reads the clock once per event, calls one method of the plain object, performs its actions."""

    role: Role
    kind: MemberKind

    def __init__(
        self, config: WorkerConfig, hosted: Hosted, engine: Engine, plain: Plain, process: Process
    ) -> None:
        self.config = config
        self.hosted = hosted
        self.plain = plain
        self.own = Peer(hosted.key.worker, hosted.key.incarnation)
        self.fingerprint = Fingerprint.of(hosted.key.model, hosted.backend.layout)
        self.process = process
        self.loop = asyncio.get_running_loop()
        self.channels = Channels()
        self.steps = StepLoop(hosted.backend, self.loop, self._engine_failed, paced=config.backend == "timed")
        self.random = random.Random(hosted.key.incarnation)
        self.lanes = Lanes(
            self.own,
            LaneConfig(),
            LANE_BUDGET_BYTES,
            self.loop.call_soon_threadsafe,
            ready=self.lane_ready,
            failed=self.lane_failed,
        )
        self._engine = engine
        self._timer = Timer(self.loop, lambda: self.tell(self.plain.tick))
        self._changed = True
        self.about = SelfReport(self.role, self.kind, hosted, engine, plain)
        self._links = RouterLinks(
            self.about.model,
            self.about.hello,
            self.about.plain_report,
            engine.prefix_hashes,
            self.channels,
            self.random,
        )

    # ---- what a role adds ----

    @abstractmethod
    def perform(self, action: Any) -> None:
        """Carry out one action of the plain object."""

    @abstractmethod
    def service(self) -> Service:
        """The role's own gRPC service."""

    @abstractmethod
    def heartbeat(self) -> None:
        """Say of every peer whose stream is up that it lives."""

    @abstractmethod
    def lane_ready(self, peer: Peer, epoch: int, error: LaneError | None) -> None: ...

    @abstractmethod
    def lane_failed(self, peer: Peer, epoch: int, error: LaneError) -> None: ...

    @abstractmethod
    async def close_streams(self) -> None: ...

    # ---- events ----

    def tell(self, event: Callable[..., list[Any]], *arguments: Any) -> None:
        """One event of the plain object: one reading of the clock, then its actions.

        An event that raises has left its object half changed, and perhaps a step that nobody waits for.
        """
        try:
            for action in event(*arguments, now_us()):
                self.perform(action)
        except Exception as error:
            self._crash("event_failed", error)
            return
        self._timer.set(self.plain.next_deadline_us)
        self._changed = True
        if self.config.check_laws:
            self._check_or_crash()

    # ---- life ----

    async def run(self) -> None:
        """Serve until asked to drain, drain, and leave."""
        state = Service(
            worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name,
            _State(self),
            worker_pb2_grpc.add_WorkerServicer_to_server,
        )
        await self.bind_lanes()
        server = await make_server([self.service(), state], self.config.address)
        self.about.address = advertised(server.address, self.config.advertise_host)
        registration = Registration(self.config, self.about.member(), self._links, self.process.log)
        await registration.start()
        background = [
            asyncio.create_task(each) for each in (self._report(), self._beat(), self._check_idle())
        ]
        await server.set_serving(True)
        more = await self._open_metrics(server.address)
        named = {"id": self.own.worker, "pid": os.getpid(), "address": server.address}
        budget = self.hosted.memory_budget(LaneConfig().staging_bytes)
        self.process.log.info("memory_budget", **named, **budget.shown())
        self.process.log.info("itl_target", id=self.own.worker, ms=self.hosted.engine.itl_target_us / 1000)
        self.process.ready(
            self.role.value, self.own.worker, server.address, model=str(self.hosted.key.model), **more
        )
        await self.process.draining.wait()
        await self._drain(server)
        for task in background:
            task.cancel()
        await registration.close()
        await self._leave(server)

    async def bind_lanes(self) -> None:
        """At the start, where an operator sees what is wrong, rather than at the first hand-off."""
        host = host_of(advertised(self.config.address, self.config.advertise_host))
        field = "advertise_host" if self.config.advertise_host else "address"
        await lane_address(host, self.lanes.bind_to, self.process.log, field=field)

    async def _open_metrics(self, address: str) -> dict[str, int]:
        if self.config.metrics_port is None:
            return {}
        registry = process_registry()
        registry.register(WorkerMetrics(self.about.load))
        _, port = await serve_metrics(registry, address.rpartition(":")[0], self.config.metrics_port)
        return {"metrics_port": port}

    async def _drain(self, server: Server) -> None:
        self.tell(self.plain.drain, self.config.drain_grace_us)
        self._send_report()
        await server.set_serving(False)
        while self.plain.live or self.plain.transferring:
            await asyncio.sleep(0.02)

    async def _leave(self, server: Server) -> None:
        await self.close_streams()
        await self._links.close(flush_s=0.5)
        await server.stop(grace_s=0.5)
        await self.channels.close()
        self._timer.cancel()
        self.lanes.close()
        await asyncio.to_thread(self.steps.close)

    async def _report(self) -> None:
        """Load and prefix events, at a steady pace while anything changes."""
        idle = 0
        while True:
            await asyncio.sleep(self.config.report_interval_us / 1e6)
            idle += 1
            if self._changed or idle >= 10:
                self._changed, idle = False, 0
                self._links.send_prefixes(self._engine.take_prefix_changes())
                self._send_report()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.heartbeat()

    async def _check_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            if not self.plain.live:
                self._check_or_crash()

    def _check_or_crash(self) -> None:
        if broken := self.broken_law():
            self.process.log.error("law_broken", law=broken)
            self._exit()

    def broken_law(self) -> str:
        """Empty where every law holds."""
        try:
            self.plain.check()
        except AssertionError:
            return traceback.format_exc(limit=-3)
        return ""

    def _engine_failed(self, error: BaseException) -> None:
        """What the engine thread computed is unknown, so the process starts anew."""
        self._crash("engine_failed", error)

    def _crash(self, what: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.process.log.error(what, error=repr(error), trace=trace)
        self._exit()

    def _exit(self) -> None:
        os._exit(CRASHED)

    def _send_report(self) -> None:
        self._links.send_report(self.about.next_report())


class _State(worker_pb2_grpc.WorkerServicer):
    """The part of a worker that people and gateways look at."""

    def __init__(self, shell: WorkerShell[Any]) -> None:
        self._shell = shell

    async def GetState(self, request: Any, context: Any) -> worker_pb2.WorkerSnapshot:
        return self._shell.about.snapshot(self._shell.broken_law())

    async def Drain(self, request: worker_pb2.DrainRequest, context: Any) -> worker_pb2.DrainResponse:
        self._shell.process.drain()
        return worker_pb2.DrainResponse()
