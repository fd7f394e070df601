"""The router as a process would run it: real gRPC streams of gateways and workers, a real store."""

import asyncio
import io
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from capacity.embedded import start_embedded
from capacity.quantities import Lost
from capacity.store import CapacityStore
from core.membership import MemberKind
from core.outcomes import Outcome
from core.replay import replay
from proto import common_pb2, router_pb2, router_pb2_grpc
from router.config import RouterConfig
from router.router import Router
from router.service import serve
from rpc.logs import Log, LogSettings
from rpc.service_main import Process

MODEL = common_pb2.Model(name="model", revision="r1")
WAIT_S = 10.0


class Ready(Process):
    """A process whose ready line is a future."""

    def __init__(self) -> None:
        self.said = io.StringIO()
        super().__init__(Log(LogSettings(), out=self.said))
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(self, role: str, id: str, address: str, **more: object) -> None:
        self.address.set_result(address)


@asynccontextmanager
async def running(**config: Any) -> AsyncIterator[str]:
    """A router's address; drained at the end."""
    process = Ready()
    service = asyncio.create_task(serve(RouterConfig(id="r1", check_laws=True, **config), process))
    waits: list[asyncio.Future[Any]] = [service, process.address]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield process.address.result() if process.address.done() else await process.address
    finally:
        process.drain()
        await asyncio.wait_for(service, WAIT_S)


class Peer:
    """One end of a stream that a test speaks and listens on."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def say(self, **message: Any) -> None:
        await self.call.write(self.request(**message))

    async def hear(self) -> Any:
        return await asyncio.wait_for(self.call.read(), WAIT_S)

    def request(self, **message: Any) -> Any:
        raise NotImplementedError


class Gateway(Peer):
    def request(self, **message: Any) -> router_pb2.RouteRequest:
        return router_pb2.RouteRequest(**message)


class Worker(Peer):
    def request(self, **message: Any) -> router_pb2.WorkerUpdate:
        return router_pb2.WorkerUpdate(**message)


async def gateway(stub: Any, *live: router_pb2.LiveRequest, incarnation: str = "i1") -> Gateway:
    peer = Gateway(stub.Route())
    await peer.say(hello=router_pb2.GatewayHello(gateway="g1", incarnation=incarnation, live=live))
    hello = await peer.hear()
    assert hello.hello.router == "r1" and hello.hello.incarnation
    return peer


async def worker(stub: Any, name: str, role: str, incarnation: str = "i1") -> Worker:
    peer = Worker(stub.Attach())
    info = router_pb2.InstanceInfo(
        model=MODEL, dtype="float32", block_size=16, blocks_total=64, max_positions=1024, max_running=4,
        cost_base_ns=1_000_000, cost_token_ns=10_000, kv_bytes_per_token=100, hash_unit=16,
    )  # fmt: skip
    hello = router_pb2.WorkerHello(
        worker=name, incarnation=incarnation, role=role, address=f"{name}:1", pid=7, instances=[info]
    )
    await peer.say(hello=hello)
    assert (await peer.hear()).hello.router == "r1"
    return peer


def submit(request: str, attempt: int = 1, prompt_tokens: int = 100, **more: Any) -> router_pb2.Submit:
    return router_pb2.Submit(
        request=request, attempt=attempt, tenant="a", tenant_class=1, model=MODEL,
        prompt_tokens=prompt_tokens, max_tokens=20, choices=1, tenant_weight=1.0, **more,
    )  # fmt: skip


async def eventually(stub: Any, holds: Callable[[router_pb2.RouterState], bool]) -> router_pb2.RouterState:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        state: router_pb2.RouterState = await stub.GetState(router_pb2.GetRouterStateRequest())
        if holds(state):
            return state
        assert asyncio.get_running_loop().time() < deadline, state
        await asyncio.sleep(0.01)


async def test_a_request_is_placed_settled_and_recorded(tmp_path: Path) -> None:
    async with running(record=str(tmp_path)) as address, grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        prefill, decode = await worker(stub, "p1", "prefill"), await worker(stub, "d1", "decode")
        client = await gateway(stub)
        await client.say(submit=submit("q1"))
        placed = (await client.hear()).placed
        assert [leg.role for leg in placed.legs] == ["prefill", "decode"]
        assert [leg.address for leg in placed.legs] == ["p1:1", "d1:1"]
        assert placed.fallback == "prefer"
        await client.say(submit=submit("q1"))
        assert (await client.hear()).placed.legs == placed.legs
        state = await eventually(stub, lambda state: state.in_flight == 1)
        assert dict(state.tenants_in_flight) == {"a": 1}
        assert [one.hello.worker for one in state.workers] == ["d1", "p1"]
        await client.say(first_token=router_pb2.FirstToken(request="q1", attempt=1))
        await client.say(
            settle=router_pb2.Settle(request="q1", attempt=1, outcome="completed", prompt_tokens=100,
                                     output_tokens=5, final=True)
        )  # fmt: skip
        await eventually(stub, lambda state: state.in_flight == 0)
        await prefill.say(prefixes=router_pb2.PrefixEvents(first_sequence=9, model=MODEL, stored=bytes(8)))
        assert (await prefill.hear()).resync.model == MODEL
        load = router_pb2.LoadReport(sequence=1, model=MODEL, blocks_free=60, blocks_held=4, running=1)
        await decode.say(load=load)
        await eventually(stub, lambda state: any(one.loads for one in state.workers))
    [file] = tmp_path.iterdir()
    replayed = replay(file.read_bytes(), {"router.router.Router": Router})
    assert replayed.events >= 8 and replayed.mismatches == ()


async def test_refusals_name_their_reason_and_bad_numbers_their_field() -> None:
    async with running() as address, grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        client = await gateway(stub)
        await client.say(submit=submit("q1"))
        assert (await client.hear()).refused.end.outcome == Outcome.MODEL_NOT_FOUND
        decode = await worker(stub, "d1", "decode")
        await client.say(submit=submit("q2", prompt_tokens=2000))
        end = (await client.hear()).refused.end
        assert (end.outcome, end.field) == (Outcome.PROMPT_TOO_LONG, "prompt") and "1024" in end.message
        await client.say(submit=submit("q3", prefix_hashes=b"short"))
        end = (await client.hear()).refused.end
        assert (end.outcome, end.field) == (Outcome.INVALID_ARGUMENT, "submit.prefix_hashes")
        decode.call.cancel()
        mute = Gateway(stub.Route())
        await mute.say(submit=submit("q4"))
        with pytest.raises(grpc.aio.AioRpcError, match="hello: must be the first message"):
            await mute.hear()
        assert await mute.call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_new_router_learns_from_gateways_what_runs() -> None:
    async with running() as address, grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        await worker(stub, "d1", "decode")
        client = await gateway(stub)
        await client.say(submit=submit("q1"))
        legs = (await client.hear()).placed.legs
    async with running() as address, grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        live = router_pb2.LiveRequest(submit=submit("q1"), legs=legs, first_token_seen=True)
        waiting = router_pb2.LiveRequest(submit=submit("q2"))
        await worker(stub, "d1", "decode")
        client = await gateway(stub, live, waiting)
        assert (await client.hear()).placed.request == "q2"
        await eventually(stub, lambda state: state.in_flight == 2)
        # The stream breaks and the same gateway forgets one: nothing stays reserved for it.
        client.call.cancel()
        await gateway(stub, live)
        await eventually(stub, lambda state: state.in_flight == 1)


async def test_a_dead_gateway_holds_nothing_after_its_grace() -> None:
    async with running() as address, grpc.aio.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        await worker(stub, "d1", "decode")
        client = await gateway(stub)
        await client.say(submit=submit("q1"))
        await client.hear()
        client.call.cancel()
        await eventually(stub, lambda state: state.in_flight == 0)


async def test_health_and_drain() -> None:
    process = Ready()
    service = asyncio.create_task(serve(RouterConfig(id="r1"), process))
    address = await process.address
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="baton.internal.v1.Router")
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
        client = await gateway(router_pb2_grpc.RouterStub(channel))
        process.drain()
        await asyncio.wait_for(service, WAIT_S)
        with pytest.raises(grpc.aio.AioRpcError, match="leaving"):
            await client.hear()


async def test_a_router_that_announces_loopback_elsewhere_says_so_once() -> None:
    process = Ready()
    # By its name not this machine's, and refuses at once.
    config = RouterConfig(id="r1", redis_url="redis://0.0.0.0:1")
    service = asyncio.create_task(serve(config, process))
    await asyncio.wait_for(process.address, WAIT_S)
    process.drain()
    await asyncio.wait_for(service, WAIT_S)
    assert process.said.getvalue().count("loopback_announced") == 1


@asynccontextmanager
async def running_store(folder: Path) -> AsyncIterator[tuple[str, CapacityStore]]:
    """A store's URL and a connection to it."""
    server = start_embedded(folder=folder)
    store = CapacityStore(server.url, "test", random=random.Random(1))
    try:
        yield server.url, store
    finally:
        await store.close()
        server.stop()


async def test_limits_are_shared_and_membership_announced_through_the_store(tmp_path: Path) -> None:
    async with running_store(tmp_path) as (url, store):
        async with running(redis_url=url) as address, grpc.aio.insecure_channel(address) as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            await worker(stub, "d1", "decode")
            client = await gateway(stub)
            for number in range(3):
                await client.say(submit=submit(f"q{number}", tenant_concurrency=2))
            answers = [await client.hear() for _ in range(3)]
            kinds = sorted(answer.WhichOneof("message") for answer in answers)
            assert kinds == ["placed", "placed", "refused"]
            [refused] = [answer.refused for answer in answers if answer.HasField("refused")]
            assert refused.end.outcome == Outcome.CONCURRENCY_LIMITED and refused.end.retry_after_us > 0
            members = await store.members(MemberKind.ROUTER)
            assert not isinstance(members, Lost)
            assert [member.address for member in members] == [address]
        assert await store.members(MemberKind.ROUTER) == ()
