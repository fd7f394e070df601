"""What a process counts about itself: one registry, its RPCs, and the page that shows them."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RpcMetrics:
    """RPCs served by one process, by method and status. About 3 us per RPC, nothing per message."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Counter(
            "baton_rpc_ended", "RPCs ended, by method and status.", ["method", "code"], registry=registry
        )
        self._live = Gauge("baton_rpc_live", "RPCs running, by method.", ["method"], registry=registry)
        self._seconds = Histogram(
            "baton_rpc_seconds",
            "Duration of unary RPCs.",
            ["method"],
            registry=registry,
            buckets=SECONDS_BUCKETS,
        )
        self._children: dict[str, tuple[Any, Any]] = {}

    def begin(self, method: str) -> float:
        # `labels` costs more than the counting: its answers are kept.
        children = self._children.get(method)
        if children is None:
            children = self._children[method] = (self._live.labels(method), self._seconds.labels(method))
        children[0].inc()
        return perf_counter()

    def end(self, method: str, code: str, began: float, unary: bool) -> None:
        live, seconds = self._children[method]
        live.dec()
        self._ended.labels(method, code).inc()
        if unary:
            seconds.observe(perf_counter() - began)


class CountingInterceptor(grpc.aio.ServerInterceptor):
    """Counts every RPC of the methods this process serves; unknown methods make no series."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            wrapped = self._wrapped[method] = _counted(handler, method, self._metrics)
        return wrapped


def _counted(handler: Any, method: str, metrics: RpcMetrics) -> Any:
    """The handler with its behaviour counted, in the same style: coroutine or generator."""
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    behaviour = next(
        found
        for found in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        if found is not None
    )
    unary = not handler.request_streaming and not handler.response_streaming

    async def coroutine(request: Any, context: Any) -> Any:
        began, code = metrics.begin(method), "UNKNOWN"
        try:
            answer = await behaviour(request, context)
            code = _code_of(context, "OK")
            return answer
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except grpc.aio.AbortError:
            code = _code_of(context, "UNKNOWN")
            raise
        finally:
            metrics.end(method, code, began, unary)

    async def generator(request: Any, context: Any) -> Any:
        began, code = metrics.begin(method), "UNKNOWN"
        try:
            async for message in behaviour(request, context):
                yield message
            code = _code_of(context, "OK")
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        except grpc.aio.AbortError:
            code = _code_of(context, "UNKNOWN")
            raise
        finally:
            metrics.end(method, code, began, unary)

    return make(
        generator if inspect.isasyncgenfunction(behaviour) else coroutine,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _code_of(context: Any, otherwise: str) -> str:
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return str(code.name)
    by_number = {status.value[0]: status.name for status in grpc.StatusCode}
    return str(by_number.get(code, otherwise)) if code else otherwise


def process_registry() -> CollectorRegistry:
    """A registry of this process's own, with its memory, CPU time and file descriptors."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """(page, content type) for an HTTP server that a process has anyway."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


async def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> tuple[asyncio.Server, int]:
    """A page server for a process without HTTP: answers any GET with the metrics. (server, its port)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
            page, content_type = exposition(registry)
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(page)}\r\n"
            writer.write(f"{head}connection: close\r\n\r\n".encode() + page)
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # A caller that sends no request gets no answer.
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port)
    return server, server.sockets[0].getsockname()[1]
