"""The HTTP server around the application: its socket, its protocol, its end."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rpc.errors import ServiceError
from services.gateway.http_call import ABORT

BACKLOG = 2048
IDLE_CONNECTION_S = 75
"""Longer than the idle time-out of common proxies, so that it is they who close."""


def listen(host: str, port: int, share: bool) -> socket.socket:
    """A listening socket. Raises ServiceError where the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise ServiceError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    found.setblocking(False)
    return found


class _Protocol(HttpToolsProtocol):
    """Lets the application break a connection whose client does not read."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's."""
        yield


class HttpServer:
    """One running server."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        self._socket = listening
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # What is no HTTP is its sender's fault: answered with 400, and no line each for the operator.
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_CONNECTION_S,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ServiceError(f"the HTTP server on {self.address} ended at its start")
            await asyncio.sleep(0.005)

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections, lets live responses end for `grace_s`, then breaks them."""
        self._server.config.timeout_graceful_shutdown = max(1, int(grace_s))
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task])
