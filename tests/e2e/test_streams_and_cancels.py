"""Many requests on one stream, cancels in every way a client has, sockets dropped at any moment."""

import asyncio
import contextlib
import json
import random
import socket
from typing import Any
from urllib.parse import urlsplit

from proto import inference_pb2 as api
from tests.e2e.grpc_client import Answer, Conversation, until
from tests.e2e.live_fleet import MODEL, LiveFleet, eventually
from tests.reference import references

STREAMS = 32
DROPS = 100


async def test_a_stream_of_32_requests_of_which_half_are_cancelled(exact_fleet: LiveFleet) -> None:
    cases = references.own()
    async with Conversation(exact_fleet.grpc) as talk:
        answers = [await begin(talk, number, cases) for number in range(STREAMS)]
        await until(lambda: all(a.request_id for a in answers), 60, "every request is accepted")
        in_stream, by_rpc = range(0, STREAMS, 4), range(1, STREAMS, 4)
        for number in in_stream:
            await talk.cancel_in_stream(str(number))
        await asyncio.gather(*(cancel_elsewhere(exact_fleet.grpc, answers[number]) for number in by_rpc))
        async with asyncio.timeout(120):
            await asyncio.gather(*(answer.ended.wait() for answer in answers))
        for number in (*in_stream, *by_rpc):
            error = answers[number].error
            assert error is not None and error.reason == "cancelled", (number, error)
        kept = [number for number in range(STREAMS) if number % 4 > 1]
        for number in kept:
            assert answers[number].tokens == cases[number % len(cases)]["output_tokens"], number
            assert answers[number].finished is not None
    await asyncio.to_thread(eventually, exact_fleet.nothing_held, 1.0, "nothing is held anywhere")


async def begin(talk: Conversation, number: int, cases: list[dict[str, Any]]) -> Answer:
    """Those to be cancelled would run for long, so that no cancel comes too late."""
    case = cases[number % len(cases)]
    if number % 4 < 2:
        return await talk.start(str(number), case["prompt_tokens"], max_tokens=2_000, ignore_eos=True)
    return await talk.start(str(number), case["prompt_tokens"])


async def cancel_elsewhere(address: str, answer: Answer) -> None:
    """Each Cancel has a connection of its own, so that most arrive at another gateway process."""
    async with Conversation(address) as other:
        found = await other.stub.Cancel(api.CancelRequest(request_id=answer.request_id))
        assert found.found
        again = await other.stub.Cancel(api.CancelRequest(request_id=answer.request_id))
        assert again.found in (True, False)  # idempotent: it may be over by now


async def test_cancel_of_nothing_is_not_found(exact_fleet: LiveFleet) -> None:
    async with Conversation(exact_fleet.grpc) as talk:
        assert not (await talk.stub.Cancel(api.CancelRequest(request_id="nobody"))).found


def test_100_streams_dropped_at_random_moments(exact_fleet: LiveFleet) -> None:
    """Some before the first token (queued, prefilling, handing off), some in mid-answer."""
    chance = random.Random(7)
    open_sockets = []
    for number in range(DROPS):
        open_sockets.append(post_stream(exact_fleet.http, f"{number} " + "a long story about the sea " * 30))
        if len(open_sockets) > 8:
            drop(open_sockets.pop(chance.randrange(len(open_sockets))), chance)
    for client in open_sockets:
        drop(client, chance)
    eventually(exact_fleet.nothing_held, 2.0, "nothing is held after the drops")
    case = references.own()[0]
    answer = ask(exact_fleet.http, case["prompt"], len(case["output_tokens"]))
    assert answer["choices"][0]["message"]["content"] == case["text"]


def drop(client: socket.socket, chance: random.Random) -> None:
    """After nothing, after the headers, or after some tokens; in half the cases without a goodbye."""
    client.settimeout(chance.choice([0.001, 0.05, 0.3]))
    with contextlib.suppress(TimeoutError):
        client.recv(chance.choice([1, 400, 4_000]))
    if chance.random() < 0.5:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    client.close()


def post_stream(url: str, content: str) -> socket.socket:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "stream": True,
        "max_tokens": 1_000,
    }
    return post(url, body | {"temperature": 0, "ignore_eos": True})


def ask(url: str, content: str, max_tokens: int) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    client = post(url, body | {"temperature": 0})
    client.settimeout(60)
    received = b""
    with client:
        while part := client.recv(65_536):
            received += part
    head, _, content_bytes = received.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], received
    found: dict[str, Any] = json.loads(content_bytes)
    return found


def post(url: str, body: dict[str, object]) -> socket.socket:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port), timeout=10)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    client.sendall(head.encode() + content)
    return client
