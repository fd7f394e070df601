"""What a process of the fleet answers to: its services, its health and its description."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from rpc.errors import ServiceError
from rpc.settings import ConnectionSettings, server_options


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service: its full name, its servicer, and the generated function that adds it."""

    name: str
    """E.g. `router_pb2.DESCRIPTOR.services_by_name["Router"].full_name`."""
    servicer: Any
    add: Callable[[Any, Any], None]
    """E.g. `router_pb2_grpc.add_RouterServicer_to_server`."""


class _Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Whose watchers are told that a server is leaving, and hold it up no longer."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving = asyncio.Event()

    async def Watch(self, request: Any, context: Any) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work) for work in (super().Watch(request, context), self.leaving.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Server:
    """A running server. Health starts as not serving: say `set_serving(True)` once that is so."""

    def __init__(self, server: grpc.aio.Server, address: str, names: list[str], servicer: _Health) -> None:
        self._server = server
        self._names = names
        self._health = servicer
        self.address = address
        """host:port it listens on, the port filled in."""

    async def set_serving(self, serving: bool) -> None:
        """What the health service says, of the process and of each of its services."""
        words = health_pb2.HealthCheckResponse
        word = words.SERVING if serving else words.NOT_SERVING
        for name in ["", *self._names]:
            await self._health.set(name, word)

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, lets live ones go on for `grace_s`, then cancels them."""
        await self.set_serving(False)
        self._health.leaving.set()
        await self._server.stop(grace_s)


async def make_server(
    services: Sequence[Service],
    address: str,
    *,
    settings: ConnectionSettings | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> Server:
    """Starts a server on host:port (port 0: a free one).

    Raises ServiceError where the address cannot be had.
    """
    server = grpc.aio.server(
        interceptors=list(interceptors), options=server_options(settings or ConnectionSettings())
    )
    for service in services:
        service.add(service.servicer, server)
    names = [service.name for service in services]
    health_servicer = _Health()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ServiceError(f"cannot listen on {address}: the port is busy or the host is not ours") from error
    await server.start()
    started = Server(server, f"{address.rpartition(':')[0]}:{port}", names, health_servicer)
    await started.set_serving(False)
    return started
