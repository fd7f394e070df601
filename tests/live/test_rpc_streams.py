"""Long-lived streams over real gRPC on loopback: they come back, end loudly, and leave nothing behind."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from core.ends import End
from core.outcomes import Outcome
from proto import router_pb2, router_pb2_grpc
from rpc.channels import channel
from rpc.errors import FieldError
from rpc.server import Server, Service, make_server
from rpc.streams import InboundStream, OutboundStream, StreamSettings

NAME = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
STUB: Any = router_pb2_grpc.RouterStub
QUICK = StreamSettings(backoff_min_s=0.01, backoff_max_s=0.1)


async def eventually(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.005)


class EchoRouter(router_pb2_grpc.RouterServicer):
    """Answers every Submit with a Refused of the same request; forgets a peer when its stream ends."""

    def __init__(self, settings: StreamSettings | None = None) -> None:
        self.live: list[InboundStream[Any, Any]] = []
        self.seen: list[str] = []
        self.settings = settings

    async def Route(self, request_iterator: Any, context: Any) -> None:
        stream: InboundStream[Any, Any] = InboundStream(context, self.settings)
        self.live.append(stream)
        try:
            await stream.serve(lambda message: self.answer(stream, message))
        finally:
            self.live.remove(stream)

    def answer(self, stream: InboundStream[Any, Any], message: Any) -> None:
        request = message.submit.request
        if request == "malformed":
            raise FieldError("submit.choices", "must be at least 1")
        if request == "bug":
            raise AssertionError("a law is broken")
        self.seen.append(request)
        copies = 5000 if request == "flood" else 1
        for _ in range(copies):
            stream.send(
                router_pb2.RouteResponse(refused=router_pb2.Refused(request=request + "x" * (copies - 1)))
            )


class Client:
    """An outbound stream that writes down what it is told."""

    def __init__(self, grpc_channel: Any, settings: StreamSettings = QUICK) -> None:
        self.ups = 0
        self.downs: list[End] = []
        self.refusals: list[End] = []
        self.received: list[str] = []
        self.stream: OutboundStream[Any, Any] = OutboundStream(
            STUB(grpc_channel).Route,
            on_up=self.up,
            on_message=lambda message: self.received.append(message.refused.request),
            on_down=self.downs.append,
            on_refused=self.refusals.append,
            random=random.Random(7),
            settings=settings,
        )

    def up(self) -> None:
        self.ups += 1
        assert self.stream.send(submit(f"hello {self.ups}"))


def submit(request: str) -> Any:
    return router_pb2.RouteRequest(submit=router_pb2.Submit(request=request))


@asynccontextmanager
async def serving(servicer: EchoRouter, address: str = "127.0.0.1:0") -> AsyncIterator[Server]:
    server = await make_server(
        [Service(NAME, servicer, router_pb2_grpc.add_RouterServicer_to_server)], address
    )
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(server: Server, settings: StreamSettings = QUICK) -> AsyncIterator[Client]:
    async with channel(server.address) as grpc_channel:
        client = Client(grpc_channel, settings)
        client.stream.start()
        try:
            yield client
        finally:
            await client.stream.close()


async def test_messages_travel_both_ways_in_order_and_close_leaves_no_peer() -> None:
    servicer = EchoRouter()
    async with serving(servicer) as server, connected(server) as client:
        await eventually(lambda: client.received == ["hello 1"], "the first answer")
        for number in range(500):
            assert client.stream.send(submit(str(number)))
        await eventually(lambda: len(client.received) == 501, "all answers")
        assert client.received[1:] == [str(number) for number in range(500)]
        await client.stream.close()
        await eventually(lambda: not servicer.live, "the server forgets the peer")
        assert [end.outcome for end in client.downs] == [Outcome.CANCELLED]
        assert not client.stream.send(submit("late"))


async def test_close_hands_out_what_is_queued_first() -> None:
    servicer = EchoRouter()
    async with serving(servicer) as server, connected(server) as client:
        await eventually(lambda: client.ups == 1, "up")
        for number in range(300):
            client.stream.send(submit(str(number)))
        await client.stream.close(flush_s=10)
        await eventually(lambda: not servicer.live, "the server forgets the peer")
        assert servicer.seen == ["hello 1", *(str(number) for number in range(300))]


async def test_a_stream_comes_back_after_its_server_did() -> None:
    servicer = EchoRouter()
    async with serving(servicer) as server, connected(server) as client:
        await eventually(lambda: client.received == ["hello 1"], "up")
        await server.stop(0)
        await eventually(lambda: len(client.downs) == 1, "down")
        assert not client.stream.is_up
        assert not client.stream.send(submit("lost"))
        await eventually(lambda: len(client.refusals) > 2, "refused while nobody listens")
        async with serving(servicer, server.address):
            await eventually(lambda: client.received == ["hello 1", "hello 2"], "up again")
            assert client.ups == 2 and len(client.downs) == 1


async def test_the_servers_reason_reaches_the_client_whole() -> None:
    servicer = EchoRouter()
    async with serving(servicer) as server, connected(server) as client:
        await eventually(lambda: client.received == ["hello 1"], "up")
        servicer.live[0].close(End(Outcome.DRAINING, "going away", retry_after_us=1_500_000))
        await eventually(lambda: len(client.downs) == 1, "down")
        assert client.downs[0] == End(Outcome.DRAINING, "going away", "", 1_500_000)


async def test_what_was_queued_before_a_close_still_arrives() -> None:
    servicer = EchoRouter()
    async with serving(servicer) as server, connected(server) as client:
        await eventually(lambda: client.received == ["hello 1"], "up")
        stream = servicer.live[0]
        for number in range(200):
            stream.send(router_pb2.RouteResponse(refused=router_pb2.Refused(request=str(number))))
        stream.close(End(Outcome.DRAINING))
        await eventually(lambda: len(client.downs) == 1, "down")
        assert client.received[1:201] == [str(number) for number in range(200)]


async def test_a_malformed_message_ends_the_stream_naming_its_field() -> None:
    async with serving(EchoRouter()) as server, connected(server) as client:
        await eventually(lambda: client.ups == 1, "up")
        client.stream.send(submit("malformed"))
        await eventually(lambda: len(client.downs) == 1, "down")
        assert client.downs[0].outcome is Outcome.INVALID_ARGUMENT
        assert client.downs[0].field == "submit.choices"


async def test_a_bug_in_a_callback_is_reported_and_ends_only_its_stream() -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )
    servicer = EchoRouter()
    async with serving(servicer) as server, connected(server) as bystander, connected(server) as client:
        await eventually(lambda: client.ups == 1 and bystander.ups == 1, "up")
        client.stream.send(submit("bug"))
        await eventually(lambda: len(client.downs) == 1, "down")
        assert client.downs[0].outcome is Outcome.INTERNAL
        assert [str(error) for error in reported] == ["a law is broken"]
        assert bystander.downs == []


async def test_a_full_outbox_breaks_the_stream_and_never_loses_in_silence() -> None:
    settings = StreamSettings(outbox_messages_max=10, backoff_min_s=0.01, backoff_max_s=0.1)
    async with serving(EchoRouter()) as server, connected(server, settings) as client:
        await eventually(lambda: client.ups == 1, "up")
        taken = [client.stream.send(submit(str(number))) for number in range(100)]
        assert not all(taken)
        await eventually(lambda: len(client.downs) == 1, "down")
        assert "outbox is full" in client.downs[0].message
        await eventually(lambda: client.ups == 2, "a new life")


async def test_a_client_that_does_not_read_overflows_the_server_and_is_let_go() -> None:
    servicer = EchoRouter(StreamSettings(outbox_messages_max=100))
    async with serving(servicer) as server, channel(server.address) as grpc_channel:
        call = STUB(grpc_channel).Route()
        try:
            await call.write(submit("flood"))
            await eventually(lambda: bool(servicer.seen) and not servicer.live, "the server gives up")
        finally:
            call.cancel()


@pytest.mark.parametrize("lives", [2000])
async def test_thousands_of_dropped_streams_leave_no_live_calls(lives: int) -> None:
    servicer = EchoRouter()
    async with serving(servicer) as server, channel(server.address) as grpc_channel:
        for start in range(0, lives, 50):
            clients = [Client(grpc_channel) for _ in range(start, min(start + 50, lives))]
            for client in clients:
                client.stream.start()
            await eventually(lambda: all(client.received for client in clients), "50 streams up")  # noqa: B023
            await asyncio.gather(*(client.stream.close() for client in clients))
            await eventually(lambda: not servicer.live, "all of them forgotten")
        assert len(servicer.seen) == lives
