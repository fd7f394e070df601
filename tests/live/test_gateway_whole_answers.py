"""Answers that are not streamed and take long: what proxies, clients and people see meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from services.gateway.gateway import GatewayPolicy
from services.gateway.openai_format import ChatFormat
from tests.live.gateway_fleet import FakeFleet, eventually, fake_fleet, post
from tests.live.test_gateway_faults import CHAT, body_of, raw

LONG: list[ChatCompletionMessageParam] = [{"role": "user", "content": "SAY LONG ab"}]
SAID = "0123456789" * 6
END = b"0\r\n\r\n"
"""Of a body in chunks that is whole."""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FakeFleet]:
    policy = GatewayPolicy(no_worker_wait_us=100_000)
    async with fake_fleet(tmp_path, policy=policy, keep_alive_s=0.05) as fleet:
        fleet.workers[0].pace_s = 0.01
        yield fleet
        await fleet.idle()


async def test_blank_lines_come_before_the_answer_is_whole(fleet: FakeFleet) -> None:
    reader, writer = await raw(fleet, body_of(SAID))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert head.startswith(b"HTTP/1.1 200") and b"application/json" in head
    assert fleet.workers[0].running == 1, "it is not whole yet"
    assert await reader.readuntil(b"\r\n\n\r\n") == b"1\r\n\n\r\n"
    assert await reader.readuntil(b"\r\n\n\r\n") == b"1\r\n\n\r\n", "and again"
    writer.close()


async def test_the_openai_client_reads_it(fleet: FakeFleet) -> None:
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": f"SAY {SAID}"}]
        )
    assert answer.choices[0].message.content == SAID and answer.usage is not None


async def test_before_the_first_token_a_refusal_has_its_status_however_late(fleet: FakeFleet) -> None:
    fleet.workers[0].paused = True
    task = asyncio.ensure_future(post(fleet.url, CHAT, body_of(SAID), x_request_id="mine"))
    await eventually(lambda: fleet.workers[0].attempts)
    await asyncio.wait([task], timeout=0.2)  # four times as long as silence may last after a token
    assert not task.done()
    await post(fleet.url, "/v1/requests/mine/cancel", {})
    assert (await task).status_code == 499


async def begun(fleet: FakeFleet) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An answer without an end whose status is sent."""
    reader, writer = await raw(fleet, body_of("LONG ab", max_tokens=4000))
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    rest = b""
    with contextlib.suppress(ConnectionError):
        while not rest.endswith(END) and (chunk := await asyncio.wait_for(reader.read(1 << 16), 20)):
            rest += chunk
    return rest


async def test_a_failure_after_that_is_told_in_the_body_and_never_looks_whole(fleet: FakeFleet) -> None:
    reader, writer = await begun(fleet)
    fleet.workers[0].serving = False
    fleet.workers[0].attempts.clear()
    fleet.workers[0].break_streams()
    rest = await rest_of(reader)
    assert b'"worker_lost"' in rest or b'"no_worker"' in rest, rest
    assert not rest.endswith(END), "the connection is broken: clients ask again"
    writer.close()
    fleet.workers[0].serving = True


async def test_a_bug_after_that_breaks_the_connection_too(
    fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(format: ChatFormat) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ChatFormat, "whole", broken)
    reader, writer = await raw(fleet, body_of(SAID))
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    rest = await rest_of(reader)
    assert b'"code":"internal"' in rest and b"event:" not in rest
    assert not rest.endswith(END)
    writer.close()


async def test_the_openai_client_raises_for_what_it_may_ask_again(fleet: FakeFleet) -> None:
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as client:
        asking = asyncio.ensure_future(
            client.chat.completions.create(model="tiny", messages=LONG, max_tokens=4000)
        )
        await eventually(lambda: fleet.workers[0].running)
        await asyncio.wait([asking], timeout=0.2)  # four times as long as silence may last after a token
        fleet.workers[0].serving = False
        fleet.workers[0].attempts.clear()
        fleet.workers[0].break_streams()
        with pytest.raises(openai.APIError):
            await asking
    fleet.workers[0].serving = True


async def test_the_openai_client_gives_the_reason_of_what_was_cancelled_and_no_choices(
    fleet: FakeFleet,
) -> None:
    """It raises only where it would ask again, which would compute anew what somebody has cancelled."""
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none") as client:
        ask = client.chat.completions.with_streaming_response.create
        async with ask(
            model="tiny", messages=LONG, max_tokens=4000, extra_headers={"x-request-id": "mine"}
        ) as response:
            await post(fleet.url, "/v1/requests/mine/cancel", {})
            answer = await response.parse()
    assert not answer.choices
    assert answer.model_extra is not None and answer.model_extra["error"]["code"] == "cancelled"


async def test_what_was_cancelled_is_not_asked_again(fleet: FakeFleet) -> None:
    """A broken connection would have clients retry what somebody has cancelled."""
    reader, writer = await begun(fleet)
    ((request, _),) = fleet.workers[0].attempts
    await post(fleet.url, f"/v1/requests/{request}/cancel", {})
    rest = await rest_of(reader)
    assert b'"code":"cancelled"' in rest and rest.endswith(END)
    writer.close()
