"""Connections that were idle longer than anybody keeps them: pinged, given up, made anew; no wrong answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proto import router_pb2, router_pb2_grpc
from rpc.channels import channel
from rpc.server import Service, make_server
from rpc.settings import ConnectionSettings
from services.gateway import http_server
from tests.live.cut_proxy import CutProxy
from tests.live.gateway_fleet import fake_fleet
from tests.live.test_rpc_streams import NAME, Client, EchoRouter, eventually

# The transport pings once a second at most, whatever is asked for.
SHORT = ConnectionSettings(keepalive_time_ms=1_000, keepalive_timeout_ms=500, ping_interval_min_ms=100)


@pytest.fixture
async def proxied() -> AsyncIterator[tuple[CutProxy, Client]]:
    """A stream to a router, over a wire that can be cut."""
    servicer = EchoRouter()
    service = Service(NAME, servicer, router_pb2_grpc.add_RouterServicer_to_server)
    server = await make_server([service], "127.0.0.1:0", settings=SHORT)
    host, _, port = server.address.rpartition(":")
    proxy = CutProxy((host, int(port)))
    peer = channel(await proxy.open(), SHORT)
    client = Client(peer)
    client.stream.start()
    try:
        await eventually(lambda: client.stream.is_up, "the stream is up")
        yield proxy, client
    finally:
        await client.stream.close()
        await peer.close()
        await server.stop(0)
        await proxy.close()


async def answered(client: Client, request: str) -> None:
    await eventually(lambda: client.stream.is_up, "the stream is up again")
    client.stream.send(router_pb2.RouteRequest(submit=router_pb2.Submit(request=request)))
    await eventually(lambda: request in client.received, f"{request} is answered")


async def test_an_idle_stream_is_kept_by_pings(proxied: tuple[CutProxy, Client]) -> None:
    proxy, client = proxied
    await answered(client, "first")
    quiet = proxy.carried_chunks
    await eventually(lambda: proxy.carried_chunks >= quiet + 8, "two pings and their answers")
    await answered(client, "second")
    assert (proxy.accepted, client.downs) == (1, [])
    assert client.received == ["hello 1", "first", "second"]


async def test_a_stream_whose_wire_went_dead_while_it_was_idle_comes_back(
    proxied: tuple[CutProxy, Client],
) -> None:
    proxy, client = proxied
    await answered(client, "first")
    proxy.forget()
    await eventually(lambda: len(client.downs) == 1, "the dead wire is noticed")
    await answered(client, "second")
    assert proxy.accepted == 2
    assert client.received == ["hello 1", "first", "hello 2", "second"]


async def test_a_client_that_comes_back_after_its_connection_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_CONNECTION_S", 1)
    async with fake_fleet(tmp_path) as fleet, httpx.AsyncClient(base_url=fleet.url) as client:
        body: dict[str, Any] = {"model": "tiny", "prompt": "SAY hello", "max_tokens": 20}
        first = await client.post("/v1/completions", json=body)
        host, _, port = fleet.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(reader.read(), 20)  # to its end: idle connections are closed
        writer.close()
        second = await client.post("/v1/completions", json=body)
        for answer in (first, second):
            assert answer.json()["choices"][0]["text"] == "hello"
