"""The router on the wire: gateways' and workers' streams in, the capacity store beside it."""

import asyncio
import os
import random
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from capacity.quantities import Ask, GiveBack, LeaseConfig, Lost
from capacity.store import CapacityStore
from core.addresses import advertised
from core.membership import Member, MemberKind
from proto import router_pb2, router_pb2_grpc
from router.actions import Place, Refuse, Resync
from router.config import RouterConfig
from router.grpc_api import RouterApi, Streams
from router.metrics import RouterMetrics
from router.router import Action, Router
from router.wire import answer_to_wire
from rpc.clock import now_us, wall_us
from rpc.convert import model_to_wire
from rpc.metrics import SECONDS_BUCKETS, CountingInterceptor, RpcMetrics, process_registry, serve_metrics
from rpc.recording import recorded_in
from rpc.server import Server, Service, make_server
from rpc.service_main import Process

ANNOUNCE_TTL_US = 5_000_000
ANNOUNCE_INTERVAL_S = 1.5
IDLE_CHECK_S = 1.0
TICK_WAIT_MIN_S = 0.001
LAW_BROKEN = 70


class RouterService:
    """Reads the clock once per event, calls one method of the Router, performs its actions."""

    def __init__(self, config: RouterConfig, router: Router, incarnation: str, process: Process) -> None:
        self.config = config
        self.router = router
        self.incarnation = incarnation
        self.streams = Streams()
        self.log = process.log.bind(role="router", id=config.id)
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us: int | None = None
        self._store: CapacityStore | None = None
        self._store_tasks: dict[asyncio.Task[None], None] = {}
        self._registry = process_registry()
        self._metrics = RouterMetrics(self._registry, SECONDS_BUCKETS, lambda: router.snapshot(now_us()))
        self._degraded = False
        self._events = 0

    def tell(self, event: Callable[..., list[Action]], *arguments: Any) -> None:
        """One event of the router: one reading of the clock, then its actions."""
        self._events += 1
        for action in event(*arguments, now_us()):
            self._perform(action)
        self._set_timer()
        if self.config.check_laws:
            self.check_or_crash()

    async def run(self) -> None:
        """Serves until asked to drain, answers what waits, and leaves."""
        rpc_metrics = RpcMetrics(self._registry)
        name = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
        service = Service(name, RouterApi(self), router_pb2_grpc.add_RouterServicer_to_server)
        interceptors = [CountingInterceptor(rpc_metrics)]
        server = await make_server([service], self.config.address, interceptors=interceptors)
        member = self._member(advertised(server.address, self.config.advertise_host))
        more = await self._open_metrics(server.address)
        await self._open_store(member)
        background = [asyncio.create_task(each) for each in (self._announce(member), self._watch())]
        await server.set_serving(True)
        self._process.ready("router", self.config.id, server.address, **more)
        try:
            await self._process.draining.wait()
            await self._drain(server, member)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._leave(server)

    def check_or_crash(self) -> None:
        """A broken law means that counts are wrong: better a fresh start, and gateways announce again."""
        try:
            self.router.check()
        except AssertionError:
            self.log.error("law_broken", law=traceback.format_exc(limit=-3))
            os._exit(LAW_BROKEN)

    # Actions.

    def _perform(self, action: Action) -> None:
        if isinstance(action, Place | Refuse):
            self._metrics.count(action)
            self.streams.to_gateway(action.gateway, answer_to_wire(action))
        elif isinstance(action, Resync):
            resync = router_pb2.ResyncPrefixes(model=model_to_wire(action.model))
            self.streams.to_worker(
                (action.worker, action.incarnation), router_pb2.RouterUpdate(resync=resync)
            )
        elif self._store is not None:
            self._in_background(self._ask(self._store, action))

    async def _ask(self, store: CapacityStore, question: Ask | GiveBack) -> None:
        if isinstance(question, GiveBack):
            await store.give_back(question)
            return
        answer = await store.ask(question)
        if isinstance(answer, Lost):
            return  # `_store_lost` has told the router, and whoever waits has asked again.
        self.tell(self.router.lease_answered, question, answer)

    def _in_background(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._store_tasks[task] = None
        task.add_done_callback(lambda done: self._store_tasks.pop(done, None))

    def _set_timer(self) -> None:
        at_us = self.router.next_deadline_us
        if at_us == self._timer_us:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = at_us
        if at_us is None:
            self._timer = None
            return
        wait_s = max(TICK_WAIT_MIN_S, (at_us - now_us()) / 1e6)
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer_us = self._timer = None
        self.tell(self.router.tick)

    # Beside the streams.

    async def _open_store(self, member: Member) -> None:
        if not self.config.redis_url:
            # Nobody to share limits with: what a lost store leaves a single router is all of them.
            self.tell(self.router.leases_lost)
            return
        self._store = CapacityStore(
            self.config.redis_url,
            f"{self.config.id}/{self.incarnation}",
            random=random.Random(self.incarnation),
            leases=LeaseConfig(),
            on_lost=self._store_lost,
            on_returned=self._store_returned,
        )
        await self._store.announce(member, ANNOUNCE_TTL_US)

    def _store_lost(self, lost: Lost) -> None:
        self.log.warning("store_lost", reason=lost.reason)
        self.tell(self.router.leases_lost)

    def _store_returned(self) -> None:
        self.log.info("store_returned")
        self.tell(self.router.leases_returned)

    async def _announce(self, member: Member) -> None:
        while self._store is not None:
            await asyncio.sleep(ANNOUNCE_INTERVAL_S)
            if await self._store.announce(member, ANNOUNCE_TTL_US) is False:
                self.log.error("replaced", reason="a later router has this id")
                self._process.drain()
            routers = await self._store.members(MemberKind.ROUTER)
            if not isinstance(routers, Lost):
                self.tell(self.router.routers_known, max(1, len(routers)))

    async def _watch(self) -> None:
        """Laws when idle; whether reports are stale."""
        seen = 0
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            snapshot = self.router.snapshot(now_us())
            if bool(snapshot.stale_instances) != self._degraded:
                self._degraded = bool(snapshot.stale_instances)
                stale = [instance.worker for instance in snapshot.stale_instances]
                self.log.warning("telemetry", degraded=self._degraded, stale=stale)
            if self._events == seen or not (snapshot.in_flight or snapshot.queued):
                self.check_or_crash()
            seen = self._events

    async def _open_metrics(self, address: str) -> dict[str, int]:
        if self.config.metrics_port is None:
            return {}
        host = address.rpartition(":")[0]
        _, port = await serve_metrics(self._registry, host, self.config.metrics_port)
        return {"metrics_port": port}

    async def _drain(self, server: Server, member: Member) -> None:
        """Workers and gateways go on without us; what waits here may still be placed for a while."""
        await server.set_serving(False)
        if self._store is not None:
            await self._store.withdraw(member)
        self.tell(self.router.drain)
        deadline_us = now_us() + self.config.drain_grace_us
        while self.router.snapshot(now_us()).queued and now_us() < deadline_us:
            await asyncio.sleep(0.02)

    async def _leave(self, server: Server) -> None:
        self.streams.close()
        await server.stop(grace_s=0.5)
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._store_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            await self._store.close()

    def _member(self, address: str) -> Member:
        return Member(
            kind=MemberKind.ROUTER,
            id=self.config.id,
            address=address,
            incarnation=self.incarnation,
            started_us=wall_us(),
            pid=os.getpid(),
        )


async def serve(config: RouterConfig, process: Process) -> None:
    """Serve until drained. Raises ServiceError where the address cannot be had."""
    incarnation = uuid.uuid4().hex[:16]
    # Larger than any number an earlier process of this id gave out, at up to one a microsecond.
    arguments = (config.id, config.policy, wall_us(), random.Random(incarnation).getrandbits(32))
    router, close_recording = recorded_in(
        config.record, config.id, incarnation, Router(*arguments), arguments
    )
    try:
        await RouterService(config, router, incarnation, process).run()
    finally:
        close_recording()
