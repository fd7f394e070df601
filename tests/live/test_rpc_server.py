"""Servers and channels over real gRPC on loopback: statuses, deadlines, health, keepalive, counts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from core.ends import End
from core.outcomes import Outcome
from proto import gateway_pb2, gateway_pb2_grpc
from rpc.channels import Channels, channel
from rpc.errors import ServiceError
from rpc.metrics import CountingInterceptor, RpcMetrics, exposition, process_registry, serve_metrics
from rpc.server import Server, Service, make_server
from rpc.settings import ConnectionSettings
from rpc.status import abort, end_of_error

NAME = gateway_pb2.DESCRIPTOR.services_by_name["GatewayPeer"].full_name
STUB: Any = gateway_pb2_grpc.GatewayPeerStub


async def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + 20.0
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.005)


class Peer(gateway_pb2_grpc.GatewayPeerServicer):
    """Ends every ForwardCancel as its tenant asks; "wait" never ends by itself."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.waiting = 0

    async def ForwardCancel(self, request: Any, context: Any) -> Any:
        if request.tenant == "wait":
            self.waiting += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(request.request)
                raise
        if request.tenant:
            await abort(context, End(Outcome(request.tenant), "because", "some.field", 250_000))
        return gateway_pb2.ForwardCancelResponse(found=True)


@asynccontextmanager
async def serving(
    servicer: Peer | None = None, address: str = "127.0.0.1:0", **options: Any
) -> AsyncIterator[Server]:
    service = Service(NAME, servicer or Peer(), gateway_pb2_grpc.add_GatewayPeerServicer_to_server)
    server = await make_server([service], address, **options)
    try:
        yield server
    finally:
        await server.stop(0)


def cancel(tenant: str, request: str = "r") -> Any:
    return gateway_pb2.ForwardCancelRequest(tenant=tenant, request=request)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
async def test_every_refusal_arrives_as_it_was_meant(outcome: Outcome) -> None:
    async with serving() as server, channel(server.address) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await STUB(peer).ForwardCancel(cancel(outcome.value))
        assert end_of_error(refused.value) == End(outcome, "because", "some.field", 250_000)


async def test_a_deadline_ends_both_ends() -> None:
    servicer = Peer()
    async with serving(servicer) as server, channel(server.address) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await STUB(peer).ForwardCancel(cancel("wait", "late"), timeout=0.3)
        assert end_of_error(late.value).outcome is Outcome.DEADLINE_EXCEEDED
        await eventually(lambda: servicer.cancelled == ["late"], "the server stops as well")


async def test_nobody_listening_is_unavailable_and_a_channel_recovers() -> None:
    channels = Channels()
    async with serving() as server:
        address = server.address
        assert (await STUB(channels.get(address)).ForwardCancel(cancel(""))).found
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await STUB(channels.get(address)).ForwardCancel(cancel(""), timeout=10)
    assert end_of_error(gone.value).outcome is Outcome.NO_WORKER
    async with serving(address=address):
        answer = await STUB(channels.get(address)).ForwardCancel(cancel(""), timeout=10, wait_for_ready=True)
        assert answer.found
        await channels.drop(address)
        assert (await STUB(channels.get(address)).ForwardCancel(cancel(""), timeout=10)).found
    await channels.close()


async def test_a_busy_port_is_one_clear_error() -> None:
    async with serving() as server:
        with pytest.raises(ServiceError, match=f"cannot listen on {server.address}"):
            async with serving(address=server.address):
                pass


async def test_health_says_what_it_was_told_and_the_services_describe_themselves() -> None:
    words = health_pb2.HealthCheckResponse
    async with serving() as server, channel(server.address) as peer:
        health = health_pb2_grpc.HealthStub(peer)
        for name in ("", NAME):
            assert (
                await health.Check(health_pb2.HealthCheckRequest(service=name))
            ).status == words.NOT_SERVING
        await server.set_serving(True)
        for name in ("", NAME):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == words.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(peer).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = [service.name for service in (await call.read()).list_services_response.service]
        call.cancel()
        assert NAME in listed and "grpc.health.v1.Health" in listed


async def test_who_watches_the_health_does_not_hold_a_server_up() -> None:
    words = health_pb2.HealthCheckResponse
    async with serving() as server, channel(server.address) as peer:
        watch = health_pb2_grpc.HealthStub(peer).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == words.NOT_SERVING
        await server.set_serving(True)
        assert (await watch.read()).status == words.SERVING
        async with asyncio.timeout(30.0):
            await server.stop(grace_s=600.0)
        assert watch.done() or await watch.read() in (grpc.aio.EOF, words(status=words.NOT_SERVING))


async def test_frequent_pings_of_a_silent_call_bring_no_goaway() -> None:
    # The transport pings once a second at most; a third strike would bring the GOAWAY.
    settings = ConnectionSettings(keepalive_time_ms=50, keepalive_timeout_ms=5_000, ping_interval_min_ms=20)
    servicer = Peer()
    async with serving(servicer, settings=settings) as server, channel(server.address, settings) as peer:
        call = STUB(peer).ForwardCancel(cancel("wait"))
        await eventually(lambda: servicer.waiting == 1, "the call runs")
        ended = asyncio.ensure_future(call.code())
        await asyncio.wait([ended], timeout=5.0)
        assert not ended.done(), f"the silent call was ended: {await call.details()}"
        ended.cancel()
        call.cancel()


async def test_rpcs_are_counted_by_method_and_status_and_shown() -> None:
    registry = process_registry()
    metrics = RpcMetrics(registry)
    method = f"/{NAME}/ForwardCancel"
    servicer = Peer()
    async with (
        serving(servicer, interceptors=[CountingInterceptor(metrics)]) as server,
        channel(server.address) as peer,
    ):
        for _ in range(3):
            await STUB(peer).ForwardCancel(cancel(""))
        with pytest.raises(grpc.aio.AioRpcError):
            await STUB(peer).ForwardCancel(cancel(Outcome.QUEUE_FULL.value))
        unknown: Any = peer.unary_unary("/made.up/Method")
        with pytest.raises(grpc.aio.AioRpcError):
            await unknown(b"")
        call = STUB(peer).ForwardCancel(cancel("wait"))
        await eventually(lambda: servicer.waiting == 1, "one is running")
        assert count(registry, "baton_rpc_live", method) == 1
        call.cancel()
        await eventually(lambda: count(registry, "baton_rpc_live", method) == 0, "none is running")
        assert count(registry, "baton_rpc_ended_total", method, code="OK") == 3
        assert count(registry, "baton_rpc_ended_total", method, code="RESOURCE_EXHAUSTED") == 1
        assert count(registry, "baton_rpc_ended_total", method, code="CANCELLED") == 1
    page, _ = exposition(registry)
    assert b"made.up" not in page
    web, port = await serve_metrics(registry, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = await reader.read()
    writer.close()
    web.close()
    assert answer.startswith(b"HTTP/1.1 200") and b"baton_rpc_ended_total" in answer


def count(registry: CollectorRegistry, name: str, method: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"method": method, **labels})
