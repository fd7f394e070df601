"""The load client against a small real server: as many streams as asked, and bad answers kept apart."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web

from bench.load import LoadShape, main, measure, served_model

PIECES = 3


@dataclass
class Server:
    """Streams three pieces; every `refused`th request gets 429, every `broken`th stream is cut short."""

    url: str = ""
    refused: int = 0
    broken: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    running: int = 0
    running_max: int = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers["authorization"])
        number = len(self.bodies)
        if self.refused and number % self.refused == 0:
            return web.Response(status=429, text="later")
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            return await self._stream(request, cut=bool(self.broken) and number % self.broken == 0)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, cut: bool) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(PIECES):
            await self._send(response, {"choices": [{"delta": {"content": "é"}, "finish_reason": None}]})
            await asyncio.sleep(0)
        if not cut:
            await self._send(response, {"choices": [{"delta": {}, "finish_reason": "length"}]})
            await self._send(
                response, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": PIECES}}
            )
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + orjson.dumps(event) + b"\n\n")


@pytest.fixture
def server() -> Iterator[Server]:
    found, started, stop = Server(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", found.models)
        app.router.add_post("/v1/chat/completions", found.chat)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    yield found
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def test_every_request_is_asked_once_with_as_many_streams_as_asked(server: Server) -> None:
    ended: list[int] = []
    shape = LoadShape(concurrency=4, requests=18, words=5)
    result = measure(server.url, "m", shape, key="secret", ended=ended.append)
    assert (result.ok, result.bad, result.output_tokens, result.prompt_tokens) == (18, 0, 18 * 3, 18 * 7)
    assert ended == list(range(1, 19))
    assert 1 <= server.running_max <= 4
    asked = sorted(orjson.dumps(body) for body in server.bodies)
    assert asked == sorted(orjson.dumps(body) for body in shape.bodies("m"))
    assert server.keys == ["Bearer secret"] * 18


def test_more_clients_than_requests_ask_no_more(server: Server) -> None:
    assert measure(server.url, "m", LoadShape(concurrency=8, requests=3)).ok == 3


def test_refusals_and_cut_streams_are_bad(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.refused, server.broken = 3, 4
    code = main([server.url, "m", "--requests", "12", "--concurrency", "1", "--json"])
    found = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 1
    assert (found["ok"], found["bad"]) == (6, 6)
    assert sorted(found["bad_sample"]) == [
        "2 x ended without finish_reason and [DONE]",
        "4 x status 429: later",
    ]


def test_the_first_model_listed_is_measured(server: Server) -> None:
    assert served_model(server.url) == "first"
