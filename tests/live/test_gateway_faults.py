"""Clients that leave or do not read, workers and routers that die, cancels from everywhere."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.ends import End
from core.outcomes import Outcome
from proto import router_pb2
from proto.router_pb2_grpc import add_RouterServicer_to_server
from rpc.server import Service, make_server
from services.gateway.gateway import GatewayPolicy
from tests.live.gateway_fleet import FakeFleet, FakeWorker, eventually, fake_fleet, post, serve_worker

CHAT = "/v1/chat/completions"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FakeFleet]:
    policy = GatewayPolicy(no_worker_wait_us=400_000)
    async with fake_fleet(tmp_path, workers=2, policy=policy, keep_alive_s=0.1) as fleet:
        yield fleet
        await fleet.idle()


def body_of(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": f"SAY {text}"}], **more}


async def raw(fleet: FakeFleet, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a bare socket."""
    host, _, port = fleet.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


async def collect(fleet: FakeFleet, body: Any, number: int = 0) -> tuple[str, list[dict[str, Any]], str]:
    """(text of choice 0, all chunks, the raw stream) of a streamed answer."""
    async with httpx.AsyncClient(base_url=fleet.url_of(number), timeout=30.0) as client:
        answer = await client.post(CHAT, json={**body, "stream": True})
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c.get("choices"))
    return text, chunks, answer.text


async def sent_at_least(fleet: FakeFleet, count: int) -> None:
    """Until some attempt at the first worker has sent that many tokens of each choice."""
    attempts = fleet.workers[0].attempts
    await eventually(lambda: any(min(attempt.sent) >= count for attempt in attempts.values()))


async def resumed(fleet: FakeFleet, times: int) -> None:
    await eventually(lambda: len(fleet.workers[0].resumes) == times)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("paused", [False, True])
async def test_a_dropped_connection_cancels(fleet: FakeFleet, streamed: bool, paused: bool) -> None:
    fleet.workers[0].paused = paused
    fleet.workers[0].pace_s = 0.01
    _, writer = await raw(fleet, body_of("LONG ab", max_tokens=4000, stream=streamed))
    await eventually(lambda: fleet.workers[0].attempts)
    writer.close()
    await fleet.idle()
    assert len(fleet.workers[0].cancels) == 1
    assert fleet.router.settles[-1].outcome == "cancelled"


async def test_a_drop_while_the_router_is_silent(fleet: FakeFleet) -> None:
    fleet.router.refuse = End(Outcome.NO_WORKER)
    _, writer = await raw(fleet, body_of("x"))
    await eventually(lambda: fleet.gateways[0].gateway.in_flight)
    writer.close()
    await fleet.idle()


async def test_many_drops_at_random_moments(fleet: FakeFleet) -> None:
    choices = random.Random(7)
    fleet.workers[0].pace_s = 0.002

    async def drop() -> None:
        reader, writer = await raw(fleet, body_of("LONG ab", max_tokens=500, stream=True))
        for _ in range(choices.randrange(4)):
            await reader.read(64)
        writer.transport.abort()

    await asyncio.gather(*(drop() for _ in range(50)))
    await fleet.idle()
    assert (await post(fleet.url, CHAT, body_of("still here"))).status_code == 200


async def test_a_client_that_does_not_read_is_cancelled(tmp_path: Path) -> None:
    async with fake_fleet(tmp_path, client_buffer_bytes_max=20_000) as fleet:
        reader, writer = await raw(fleet, body_of("LONG ab", max_tokens=4000, n=20, stream=True))
        other = await collect(fleet, body_of("another"))
        assert other[0] == "another"
        await eventually(lambda: not fleet.gateways[0].gateway.in_flight, 20)
        assert fleet.gateways[0].gateway.outcomes().get(Outcome.SLOW_CLIENT) == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                await reader.readexactly(1 << 20)
        writer.close()
        await fleet.idle()


async def test_keep_alive_comments_before_and_after_the_first_token(fleet: FakeFleet) -> None:
    fleet.workers[0].paused = True
    reader, writer = await raw(fleet, body_of("abc", stream=True))
    await reader.readuntil(b": keep-alive\n\n\r\n")
    await reader.readuntil(b": keep-alive\n\n\r\n")
    fleet.workers[0].paused = False
    rest = await reader.readuntil(b"data: [DONE]\n\n\r\n")
    assert b'"content":"a"' in rest and b'"finish_reason":"stop"' in rest
    writer.close()


async def test_a_broken_stream_is_reattached(fleet: FakeFleet) -> None:
    fleet.workers[0].pace_s = 0.005
    said = "0123456789" * 6
    task = asyncio.ensure_future(collect(fleet, body_of(said)))
    for number in range(1, 4):
        await sent_at_least(fleet, 10 * number)
        fleet.workers[0].break_streams()
        await resumed(fleet, number + 1)
    text, _, _ = await task
    assert text == said
    assert len(fleet.router.submits) == 1, "no retry was needed"
    assert sum(fleet.workers[0].resumes) >= 2


async def test_a_worker_that_dies_is_replaced(fleet: FakeFleet) -> None:
    fleet.workers[0].pace_s = 0.005
    said = "0123456789" * 6
    tasks = [asyncio.ensure_future(collect(fleet, body_of(said, seed=5, n=2))) for _ in range(4)]
    await sent_at_least(fleet, 10)
    fleet.workers[0].serving = False
    await fleet.servers[0].stop(0)
    fleet.workers[0].attempts.clear()
    for task in tasks:
        _, chunks, _ = await task
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == [said, f"-{said}"]
    start = fleet.workers[1].starts[0]
    assert start.attempt == 2 and start.seed == 5
    assert any(choice.output for choice in start.choices), "what was delivered goes along"
    assert fleet.router.submits[-1].dtype == "float32" and fleet.router.submits[-1].model.revision == "r1"
    assert list(fleet.router.submits[-1].avoid_workers) == ["decode-0"]


async def test_no_worker_left(fleet: FakeFleet) -> None:
    for worker in fleet.workers:
        worker.serving = False
    answer = await post(fleet.url, CHAT, body_of("x"))
    assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
    assert answer.json()["error"]["code"] == "no_worker"
    fleet.workers[0].serving = True
    assert (await post(fleet.url, CHAT, body_of("x"))).status_code == 200


async def test_no_worker_left_in_mid_stream(fleet: FakeFleet) -> None:
    fleet.workers[0].pace_s = 0.005
    fleet.workers[1].serving = False
    task = asyncio.ensure_future(collect(fleet, body_of("LONG ab", max_tokens=4000)))
    await sent_at_least(fleet, 3)
    fleet.workers[0].serving = False
    await fleet.servers[0].stop(0)
    fleet.workers[0].attempts.clear()
    text, chunks, whole = await task
    assert text.startswith("aba") and "event: error\n" in whole
    assert chunks[-1]["error"]["code"] == "no_worker" and chunks[-1]["error"]["message"]
    assert not any(c["choices"][0]["finish_reason"] for c in chunks[:-1])
    # Recovery: the worker comes back elsewhere, under its name.
    revived = FakeWorker("decode-0", fleet.workers[0].tokenizer)
    revived.incarnation = "decode-0-2"
    fleet.workers[0] = fleet.router.workers[0] = revived
    fleet.servers.append(await serve_worker(revived))
    assert (await collect(fleet, body_of("back")))[0] == "back"


async def test_a_restarted_router_is_told_what_runs(fleet: FakeFleet) -> None:
    fleet.workers[0].pace_s = 0.005
    task = asyncio.ensure_future(collect(fleet, body_of("0123456789" * 8)))
    await sent_at_least(fleet, 3)
    await fleet.servers[-1].stop(0)
    name = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
    service = Service(name, fleet.router, add_RouterServicer_to_server)
    fleet.servers.append(await make_server([service], fleet.router_address))
    await eventually(lambda: len(fleet.router.hellos) == 2)
    live = fleet.router.hellos[1].live
    assert [one.first_token_seen for one in live] == [True] and live[0].legs[0].instance.worker == "decode-0"
    assert (await task)[0] == "0123456789" * 8


async def test_bad_bodies(fleet: FakeFleet) -> None:
    for data, field in [
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"messages": 1}', "messages"),
        (b'{"messages": [{"role": "x"}]}', "messages[0].role"),
        (b"", "body"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "messages[0].content[0].type",
        ),
    ]:
        answer = await post(fleet.url, CHAT, data)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        assert field in answer.json()["error"]["message"]
    assert (await post(fleet.url, "/v1/nothing", {})).status_code == 404
    wrong = await post(fleet.url, "/v1/models", {})
    assert wrong.status_code == 405 and wrong.headers["allow"] == "GET"


async def test_nulls_unknown_fields_and_parts(fleet: FakeFleet) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "SAY ok"}], "name": None}
    names = ("temperature", "top_p", "stop", "n", "logprobs", "tools", "user", "seed", "stream", "max_tokens")
    body = {"model": None, "messages": [message], "unknown": {"a": 1}, **dict.fromkeys(names)}
    answer = await post(fleet.url, CHAT, body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit(tmp_path: Path, declared: bool) -> None:
    async with fake_fleet(tmp_path, body_bytes_max=100_000) as fleet:

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 10_000

        async with httpx.AsyncClient(base_url=fleet.url) as client:
            content: Any = b"x" * 200_000 if declared else parts()
            answer = await client.post(CHAT, content=content)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


async def test_a_long_prompt_delays_nobody(fleet: FakeFleet) -> None:
    long = asyncio.ensure_future(post(fleet.url, CHAT, body_of("long " * 600_000)))
    await asyncio.wait([long], timeout=0.3)
    assert not long.done()
    async with httpx.AsyncClient(base_url=fleet.url, timeout=30.0) as client:
        short = await asyncio.gather(*(client.post(CHAT, json=body_of(f"{n}")) for n in range(30)))
    assert [answer.status_code for answer in short] == [200] * 30
    assert not long.done(), "they did not wait for its tokens"
    answer = await long
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "prompt_too_long"


async def test_ids(fleet: FakeFleet) -> None:
    fleet.workers[0].paused = True
    first = asyncio.ensure_future(post(fleet.url, CHAT, body_of("x"), x_request_id="mine"))
    await eventually(lambda: fleet.workers[0].attempts)
    second = await post(fleet.url, CHAT, body_of("x"), x_request_id="mine")
    assert second.status_code == 409 and second.json()["error"]["code"] == "duplicate_request"
    fleet.workers[0].paused = False
    answer = await first
    assert answer.headers["x-request-id"] == "mine" and answer.json()["id"].startswith("chatcmpl-gateway-0-")
    again = await post(fleet.url, CHAT, body_of("x"), x_request_id="mine")
    assert again.status_code == 200, "an id is free once its request has ended"
    async with httpx.AsyncClient(base_url=fleet.url, timeout=30.0) as client:
        unnamed = await asyncio.gather(*(client.post(CHAT, json=body_of("x")) for _ in range(100)))
    ids = [answer.json()["id"] for answer in unnamed]
    assert len(dict.fromkeys(ids)) == 100
    assert [answer.headers["x-request-id"] for answer in unnamed] == ids
    assert (await post(fleet.url, CHAT, body_of("x"), x_request_id="x" * 129)).status_code == 400


async def test_cancel_here_and_on_another_gateway(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("".join(f'[[tenant]]\nname = "{name}"\nkey = "key-{name}"\n' for name in "ab"))
    async with fake_fleet(tmp_path / "model", tenants_file=str(tenants)) as fleet:
        await fleet.add_gateway(tenants_file=str(tenants))
        fleet.introduce()
        fleet.workers[0].paused = True
        mine = {"authorization": "Bearer key-a"}

        async def cancel(number: int, id: str, key: str) -> httpx.Response:
            url = fleet.url_of(number)
            return await post(url, f"/v1/requests/{id}/cancel", {}, authorization=f"Bearer {key}")

        for number, by_own_id in [(0, False), (0, True), (1, False), (1, True)]:
            task = asyncio.ensure_future(post(fleet.url, CHAT, body_of("x"), **mine, x_request_id="client-1"))
            await eventually(lambda: fleet.workers[0].attempts)
            (key,) = fleet.workers[0].attempts
            id = "client-1" if by_own_id else key[0]
            assert (await cancel(number, id, "key-b")).status_code == 404, "another tenant's"
            assert (await cancel(number, id, "wrong")).status_code == 401
            assert fleet.workers[0].attempts, "it runs on"
            assert (await cancel(number, id, "key-a")).json()["cancelled"] is True
            answer = await task
            assert answer.status_code == 499 and answer.json()["error"]["code"] == "cancelled"
            await fleet.idle()
            assert (await cancel(number, id, "key-a")).status_code == 404, "not live any more"


async def test_facts(fleet: FakeFleet) -> None:
    await post(fleet.url, CHAT, body_of("abc"))
    async with httpx.AsyncClient(base_url=fleet.url) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        page = (await client.get("/metrics")).text
        assert 'baton_gateway_requests_ended_total{outcome="completed"} 1.0' in page
        assert "vllm:generation_tokens_total 4.0" in page and "vllm:num_requests_running 0.0" in page
        shown = (await client.get("/fleet")).json()
        assert shown["gateways"][0]["id"] == "gateway-0" and shown["gateways"][0]["in_flight"] == 0
        assert shown["tenants"] == {}
        await fleet.servers[-1].stop(0)
        await eventually(lambda: not fleet.gateways[0].gateway.routers)
        answer = await client.get("/ready")
        assert answer.status_code == 503 and "retry-after" in answer.headers
