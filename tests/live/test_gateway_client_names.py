"""Clients' own names for their requests: on one stream, on several, on several gateways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from proto import inference_pb2 as api
from proto.inference_pb2_grpc import InferenceStub
from tests.live.gateway_fleet import FakeFleet, eventually, fake_fleet, post
from tests.live.test_gateway_grpc import Answers, start_of

CHAT = "/v1/chat/completions"
SLOW = {"model": "tiny", "messages": [{"role": "user", "content": "SAY LONG ab"}], "max_tokens": 3000}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[FakeFleet]:
    """Two gateways that know each other, and a worker that takes its time."""
    async with fake_fleet(tmp_path) as fleet:
        await fleet.add_gateway()
        fleet.introduce()
        fleet.workers[0].pace_s = 0.01
        yield fleet
        await fleet.idle()


class Talk:
    """One stream and what came on it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.answers = Answers()

    async def start(self, name: str, said: str, max_tokens: int = 3000) -> None:
        await self._call.write(start_of(name, said, max_tokens=max_tokens))

    async def cancel(self, **which: str) -> None:
        await self._call.write(api.GenerateRequest(cancel=api.CancelGeneration(**which)))


@contextlib.asynccontextmanager
async def talking(address: str) -> AsyncIterator[Talk]:
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = InferenceStub(channel).Generate()
        talk = Talk(call)
        reading = asyncio.ensure_future(talk.answers.read(call))
        yield talk
        await call.done_writing()
        await reading


async def test_streams_count_their_requests_alike_and_cancel_only_their_own(pair: FakeFleet) -> None:
    """Two programs of one tenant, on one gateway and on another."""
    async with (
        talking(pair.grpc_of(0)) as first,
        talking(pair.grpc_of(0)) as second,
        talking(pair.grpc_of(1)) as third,
    ):
        for talk in (first, second, third):
            await talk.start("1", "LONG ab")
        await eventually(lambda: len(pair.workers[0].attempts) == 3)
        await first.cancel(client_id="1")
        await eventually(lambda: "1" in first.answers.errors)
        assert first.answers.errors["1"].reason == "cancelled"
        assert len(pair.workers[0].attempts) == 2, "the others run on"
        async with grpc.aio.insecure_channel(pair.grpc_of(1)) as channel:
            assert (await InferenceStub(channel).Cancel(api.CancelRequest(request_id="1"))).found
        await eventually(lambda: "1" in second.answers.errors and "1" in third.answers.errors)
        assert second.answers.errors["1"].reason == third.answers.errors["1"].reason == "cancelled"


async def test_a_streams_name_keeps_no_call_out_whoever_comes_first(pair: FakeFleet) -> None:
    async with talking(pair.grpc_of(0)) as early, talking(pair.grpc_of(0)) as late:
        await early.start("1", "LONG ab")
        await eventually(lambda: len(pair.workers[0].attempts) == 1)
        call = asyncio.ensure_future(post(pair.url_of(0), CHAT, SLOW, x_request_id="1"))
        await eventually(lambda: len(pair.workers[0].attempts) == 2 or call.done())
        assert not call.done(), "a stream's name is its own"
        await late.start("1", "LONG ab")
        await eventually(lambda: len(pair.workers[0].attempts) == 3 or late.answers.errors)
        assert not late.answers.errors
        again = await post(pair.url_of(0), CHAT, SLOW, x_request_id="1")
        assert again.status_code == 409, "a call's is not"
        assert (await post(pair.url_of(0), "/v1/requests/1/cancel", {})).status_code == 200
        assert (await call).status_code == 499


async def test_a_name_that_looks_like_ours_is_refused(pair: FakeFleet) -> None:
    refused = await post(pair.url_of(0), CHAT, SLOW, x_request_id="chatcmpl-gateway-1-00ff")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "x-request-id"
    assert "must not look like an id of this service" in refused.json()["error"]["message"]


async def test_a_name_that_the_stream_has_live_is_refused_and_the_first_runs_on(pair: FakeFleet) -> None:
    async with talking(pair.grpc_of(0)) as talk:
        await talk.start("1", "hello")
        await talk.start("1", "something else")
    assert talk.answers.errors["1"].reason == "duplicate_request"
    assert talk.answers.errors["1"].field == "client_id"
    assert talk.answers.texts["1"] == "hello" and "1" in talk.answers.finished


async def test_a_cancel_right_behind_its_start_is_not_lost(pair: FakeFleet) -> None:
    """The prompt is long: it is still being tokenized when the cancel comes."""
    async with talking(pair.grpc_of(0)) as talk:
        await talk.start("1", "LONG " + "ab " * 1_000, max_tokens=500)
        await talk.cancel(client_id="1")
    assert talk.answers.errors["1"].reason == "cancelled"


async def test_one_cancel_ends_what_has_the_name_on_every_gateway(pair: FakeFleet) -> None:
    running = [
        asyncio.ensure_future(post(pair.url_of(number), CHAT, SLOW, x_request_id="mine")) for number in (0, 1)
    ]
    await eventually(lambda: len(pair.workers[0].attempts) == 2)
    again = await post(pair.url_of(1), CHAT, SLOW, x_request_id="mine")
    assert again.status_code == 409, "a gateway has one at a time"
    other = asyncio.ensure_future(post(pair.url_of(0), CHAT, SLOW, x_request_id="another"))
    await eventually(lambda: len(pair.workers[0].attempts) == 3)
    assert (await post(pair.url_of(0), "/v1/requests/mine/cancel", {})).status_code == 200
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [499, 499]
    assert len(pair.workers[0].attempts) == 1, "another runs on"
    assert (await post(pair.url_of(1), "/v1/requests/another/cancel", {})).status_code == 200
    assert (await other).status_code == 499
    assert (await post(pair.url_of(1), "/v1/requests/mine/cancel", {})).status_code == 404
