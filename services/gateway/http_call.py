"""One HTTP request and its response, over ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from core.ends import End
from core.outcomes import Outcome
from rpc.status import retry_headers, status_of
from services.gateway.openai_format import error_body
from services.gateway.refusal import Refusal

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
ABORT = "baton.abort"
"""The scope extension that breaks the connection at once, whatever waits in its buffers."""


class HttpCall:
    """Reads one request, writes one response."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
        self._receive, self._send = receive, send
        self.begun = False
        """The status is sent: whatever goes wrong now is told in the body."""
        self.is_stream = False
        """That body is server-sent events."""
        self.response_headers: list[tuple[str, str]] = []

    def header(self, name: str) -> str:
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self._headers if key == wanted), "")

    async def body(self, bytes_max: int) -> bytes:
        """Raises Refusal as soon as it is known to be too large, ConnectionError if the client leaves."""
        declared = self.header("content-length")
        if declared.isdecimal() and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left before its body was read")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > bytes_max:
                raise _too_large(bytes_max)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client has closed its connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def abort(self) -> None:
        if self._abort is not None:
            self._abort()

    async def json(self, status: int, body: Any, headers: list[tuple[str, str]] | None = None) -> None:
        data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
        await self.respond(status, data, "application/json", headers)

    async def refuse(self, end: End) -> None:
        headers = retry_headers(end)
        if end.outcome is Outcome.UNAUTHENTICATED:
            headers = [*headers, ("www-authenticate", "Bearer")]
        await self.json(status_of(end.outcome).http, error_body(end), headers)

    async def respond(
        self, status: int, data: bytes, content_type: str, headers: list[tuple[str, str]] | None = None
    ) -> None:
        await self.begin(status, content_type, [*(headers or []), ("content-length", str(len(data)))])
        await self._send({"type": "http.response.body", "body": data if self.method != "HEAD" else b""})

    async def begin(self, status: int, content_type: str, headers: list[tuple[str, str]]) -> None:
        self.begun = True
        self.is_stream = content_type.startswith("text/event-stream")
        named = [("content-type", content_type), *self.response_headers, *headers]
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in named]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(End(Outcome.BODY_TOO_LARGE, f"the body exceeds {bytes_max} bytes", "body"))


async def while_connected(call: HttpCall, work: Awaitable[None], on_gone: Callable[[], None]) -> None:
    """Runs `work`; tells `on_gone` if the client closes its connection before that is done."""

    async def watch() -> None:
        await call.gone()
        on_gone()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        await work
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
