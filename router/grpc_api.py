"""The streams of gateways and workers, and which of them is whose."""

from typing import Any, Protocol

from core.ends import End
from core.outcomes import Outcome
from core.request import AttemptKey
from proto import router_pb2, router_pb2_grpc
from router.config import RouterConfig
from router.router import Router
from router.wire import (
    hello_from_wire,
    live_from_wire,
    prefixes_from_wire,
    refused_to_wire,
    report_from_wire,
    state_to_wire,
    submission_from_wire,
)
from rpc.clock import now_us
from rpc.convert import outcome_from_wire
from rpc.errors import FieldError
from rpc.streams import InboundStream

GatewayStream = InboundStream[router_pb2.RouteRequest, router_pb2.RouteResponse]
WorkerStream = InboundStream[router_pb2.WorkerUpdate, router_pb2.RouterUpdate]
WorkerKey = tuple[str, str]
"""(worker, incarnation)"""

REPLACED = End(Outcome.MOVED, "a newer stream of this peer took over")
LEAVING = End(Outcome.DRAINING, "this router is leaving")


class Streams:
    """The newest stream of every gateway and worker."""

    def __init__(self) -> None:
        self._gateways: dict[str, GatewayStream] = {}
        self._workers: dict[WorkerKey, WorkerStream] = {}

    def open_gateway(self, gateway: str, stream: GatewayStream) -> None:
        """An older stream of it ends here, and its end is no news any more."""
        if (old := self._gateways.get(gateway)) is not None:
            old.close(REPLACED)
        self._gateways[gateway] = stream

    def open_worker(self, worker: WorkerKey, stream: WorkerStream) -> None:
        if (old := self._workers.get(worker)) is not None:
            old.close(REPLACED)
        self._workers[worker] = stream

    def close_gateway(self, gateway: str, stream: GatewayStream) -> bool:
        """Whether it was the current one."""
        current = self._gateways.get(gateway) is stream
        if current:
            del self._gateways[gateway]
        return current

    def close_worker(self, worker: WorkerKey, stream: WorkerStream) -> bool:
        current = self._workers.get(worker) is stream
        if current:
            del self._workers[worker]
        return current

    def is_current(self, gateway: str, stream: GatewayStream) -> bool:
        return self._gateways.get(gateway) is stream

    def to_gateway(self, gateway: str, message: router_pb2.RouteResponse) -> None:
        """A gateway that is away asks again when it returns."""
        if (stream := self._gateways.get(gateway)) is not None:
            stream.send(message)

    def to_worker(self, worker: WorkerKey, message: router_pb2.RouterUpdate) -> None:
        if (stream := self._workers.get(worker)) is not None:
            stream.send(message)

    def close(self) -> None:
        for gateway in self._gateways.values():
            gateway.close(LEAVING)
        for worker in self._workers.values():
            worker.close(LEAVING)


class Teller(Protocol):
    """What the streams need of the service."""

    router: Router
    config: RouterConfig
    incarnation: str
    streams: Streams

    def tell(self, event: Any, *arguments: Any) -> None: ...


class RouterApi(router_pb2_grpc.RouterServicer):
    """Each message of a stream is one event of the router."""

    def __init__(self, service: Teller) -> None:
        self._service = service

    async def Route(self, request_iterator: Any, context: Any) -> None:
        """A gateway's stream, until it breaks."""
        stream: GatewayStream = InboundStream(context)
        gateway = _Gateway(self._service, stream)
        try:
            await stream.serve(gateway.hear)
        finally:
            gateway.gone()

    async def Attach(self, request_iterator: Any, context: Any) -> None:
        """A worker's stream, until it breaks."""
        stream: WorkerStream = InboundStream(context)
        worker = _Worker(self._service, stream)
        try:
            await stream.serve(worker.hear)
        finally:
            worker.gone()

    async def GetState(self, request: Any, context: Any) -> router_pb2.RouterState:
        """Counted when asked."""
        return state_to_wire(self._service.config.id, self._service.router.snapshot(now_us()))


class _Gateway:
    """One stream of one gateway."""

    def __init__(self, service: Teller, stream: GatewayStream) -> None:
        self._service, self._stream = service, stream
        self._name = self._incarnation = ""

    def hear(self, message: router_pb2.RouteRequest) -> None:
        if message.HasField("hello"):
            self._hello(message.hello)
            return
        if not self._name:
            raise FieldError("hello", "must be the first message")
        if not self._service.streams.is_current(self._name, self._stream):
            return
        router, tell = self._service.router, self._service.tell
        if message.HasField("submit"):
            self._submit(message.submit)
        elif message.HasField("first_token"):
            tell(router.first_token, _key(message.first_token))
        elif message.HasField("settle"):
            settle = message.settle
            outcome = outcome_from_wire(settle.outcome)
            used = (settle.prompt_tokens, settle.output_tokens)
            tell(router.settle, _key(settle), outcome, *used, settle.final)
        elif message.HasField("withdraw"):
            tell(router.withdraw, _key(message.withdraw))

    def gone(self) -> None:
        if self._name and self._service.streams.close_gateway(self._name, self._stream):
            self._service.tell(self._service.router.gateway_down, self._name, self._incarnation)

    def _hello(self, hello: router_pb2.GatewayHello) -> None:
        if not hello.gateway or not hello.incarnation:
            raise FieldError("hello.gateway", "gateway and incarnation must not be empty")
        if self._name:
            raise FieldError("hello", "comes once")
        live = tuple(live_from_wire(one) for one in hello.live)
        self._name, self._incarnation = hello.gateway, hello.incarnation
        service = self._service
        service.streams.open_gateway(self._name, self._stream)
        own = router_pb2.RouterHello(router=service.config.id, incarnation=service.incarnation)
        self._stream.send(router_pb2.RouteResponse(hello=own))
        service.tell(service.router.gateway_up, self._name, self._incarnation, live)

    def _submit(self, message: router_pb2.Submit) -> None:
        try:
            submission = submission_from_wire(message)
        except FieldError as error:
            end = End(Outcome.INVALID_ARGUMENT, str(error), error.field)
            self._stream.send(refused_to_wire(message, end))
            return
        self._service.tell(self._service.router.submit, self._name, submission)


class _Worker:
    """One stream of one worker."""

    def __init__(self, service: Teller, stream: WorkerStream) -> None:
        self._service, self._stream = service, stream
        self._key: WorkerKey | None = None

    def hear(self, message: router_pb2.WorkerUpdate) -> None:
        router, tell = self._service.router, self._service.tell
        if message.HasField("hello"):
            self._hello(message.hello)
            return
        if self._key is None:
            raise FieldError("hello", "must be the first message")
        if message.HasField("load"):
            tell(router.load_report, *self._key, report_from_wire(message.load))
        elif message.HasField("prefixes"):
            tell(router.prefix_events, *self._key, prefixes_from_wire(message.prefixes))

    def gone(self) -> None:
        if self._key is not None and self._service.streams.close_worker(self._key, self._stream):
            self._service.tell(self._service.router.worker_down, *self._key)

    def _hello(self, message: router_pb2.WorkerHello) -> None:
        hello = hello_from_wire(message)
        self._key = (hello.worker, hello.incarnation)
        service = self._service
        service.streams.open_worker(self._key, self._stream)
        own = router_pb2.RouterHello(router=service.config.id, incarnation=service.incarnation)
        self._stream.send(router_pb2.RouterUpdate(hello=own))
        service.tell(service.router.worker_hello, hello)


def _key(message: router_pb2.FirstToken | router_pb2.Settle | router_pb2.Withdraw) -> AttemptKey:
    return AttemptKey(message.request, message.attempt)
