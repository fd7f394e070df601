"""baton.v1.Inference over real gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from proto import inference_pb2 as api
from proto.inference_pb2_grpc import InferenceStub
from tests.live.gateway_fleet import FakeFleet, eventually, fake_fleet


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FakeFleet]:
    async with fake_fleet(tmp_path) as fleet:
        yield fleet
        await fleet.idle()


def start_of(client_id: str, said: str, **options: Any) -> api.GenerateRequest:
    sampling = api.SamplingOptions(**options)
    chat = api.Chat(messages=[api.ChatMessage(role="user", content=f"SAY {said}")])
    start = api.StartGeneration(client_id=client_id, chat=chat, sampling=sampling)
    return api.GenerateRequest(start=start)


class Answers:
    """What came on one stream, by client id."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.kinds: dict[str, list[str]] = {}
        self.finished: dict[str, api.Finished] = {}
        self.errors: dict[str, api.Error] = {}

    def take(self, message: api.GenerateResponse) -> None:
        name, kind = message.client_id, message.WhichOneof("message")
        self.kinds.setdefault(name, []).append(str(kind))
        self.ids[name] = message.request_id
        if kind == "tokens":
            self.texts[name] = self.texts.get(name, "") + message.tokens.text
        elif kind == "finished":
            self.finished[name] = message.finished
        elif kind == "error":
            self.errors[name] = message.error

    async def read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self.take(message)


async def test_many_requests_on_one_stream_some_cancelled(tmp_path: Path) -> None:
    async with fake_fleet(tmp_path) as fleet:
        await fleet.add_gateway()
        fleet.introduce()
        fleet.workers[0].pace_s = 0.01
        answers = Answers()
        async with (
            grpc.aio.insecure_channel(fleet.grpc_of(0)) as channel,
            grpc.aio.insecure_channel(fleet.grpc_of(1)) as other,
        ):
            call = InferenceStub(channel).Generate()
            reading = asyncio.ensure_future(answers.read(call))
            for number in range(32):
                said = f"LONG {number} " if number < 16 else f"answer {number}"
                await call.write(start_of(f"r{number}", said, max_tokens=3000))
            await eventually(lambda: len(answers.ids) == 32)
            for number in range(8):
                cancel = api.CancelGeneration(client_id=f"r{number}")
                await call.write(api.GenerateRequest(cancel=cancel))
            for number in range(8, 16):
                request = api.CancelRequest(request_id=answers.ids[f"r{number}"])
                assert (await InferenceStub(other).Cancel(request)).found
            await call.done_writing()
            await reading
        for number in range(16):
            assert answers.errors[f"r{number}"].reason == "cancelled"
            assert answers.errors[f"r{number}"].code == grpc.StatusCode.CANCELLED.value[0]
        for number in range(16, 32):
            assert answers.texts[f"r{number}"] == f"answer {number}"
            kinds = answers.kinds[f"r{number}"]
            assert kinds[0] == "accepted" and kinds[-1] == "finished" and kinds.count("finished") == 1
        await fleet.idle()


async def test_usage_choices_and_logprobs(fleet: FakeFleet) -> None:
    answers = Answers()
    got = []
    async with grpc.aio.insecure_channel(fleet.grpc_of(0)) as channel:
        async for message in InferenceStub(channel).Generate(iter([start_of("a", "xy", n=2, logprobs=1)])):
            answers.take(message)
            got += list(message.tokens.logprobs)
    finished = answers.finished["a"]
    assert [(one.choice, one.reason) for one in finished.choices] == [(0, "stop"), (1, "stop")]
    assert finished.usage.completion_tokens == 3 + 4 and finished.usage.prompt_tokens > 3
    assert len(got) == 7 and got[0].logprob == -0.5 and len(got[0].top_ids) == 1


async def test_bad_requests_end_alone(fleet: FakeFleet) -> None:
    answers = Answers()
    wrong = [
        start_of("temperature", "x", temperature=9.0),
        start_of("max_tokens", "x", max_tokens=5000),
        api.GenerateRequest(start=api.StartGeneration(client_id="prompt")),
        api.GenerateRequest(start=api.StartGeneration(client_id="chat.messages", chat=api.Chat())),
        start_of("x" * 129, "x"),
    ]
    async with grpc.aio.insecure_channel(fleet.grpc_of(0)) as channel:
        async for message in InferenceStub(channel).Generate(iter([*wrong, start_of("good", "yes")])):
            answers.take(message)
    for name in ("temperature", "max_tokens", "prompt", "chat.messages"):
        assert answers.errors[name].field == name and answers.errors[name].reason == "invalid_argument"
    assert answers.errors["x" * 129].field == "client_id"
    assert answers.texts["good"] == "yes"


async def test_a_broken_stream_cancels_its_requests(fleet: FakeFleet) -> None:
    fleet.workers[0].pace_s = 0.01
    async with grpc.aio.insecure_channel(fleet.grpc_of(0)) as channel:
        call = InferenceStub(channel).Generate()
        for number in range(4):
            await call.write(start_of(f"r{number}", "LONG ab", max_tokens=3000))
        await eventually(lambda: len(fleet.workers[0].attempts) == 4)
        call.cancel()
        await fleet.idle()
    assert len(fleet.workers[0].cancels) == 4


async def test_a_leaving_gateway_ends_open_streams_once_they_run_nothing(tmp_path: Path) -> None:
    """Within its grace what runs comes whole; nothing new begins; idle streams hold nobody up."""
    async with fake_fleet(tmp_path) as fleet:
        leaving = await fleet.add_gateway(drain_grace_s=600.0)
        fleet.workers[0].pace_s = 0.01
        answers = Answers()
        async with grpc.aio.insecure_channel(fleet.grpc_of(1)) as channel:
            idle, call = InferenceStub(channel).Generate(), InferenceStub(channel).Generate()
            await asyncio.gather(idle.initial_metadata(), call.initial_metadata())
            reading = asyncio.ensure_future(answers.read(call))
            await call.write(start_of("running", "LONG ab", max_tokens=100))
            await eventually(lambda: answers.texts.get("running"))
            stopping = asyncio.ensure_future(leaving.stop())
            assert await idle.code() is grpc.StatusCode.UNAVAILABLE
            await call.write(start_of("late", "ok"))
            await eventually(lambda: answers.errors.get("late"))
            assert answers.errors["late"].reason == "draining"
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await reading
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert answers.texts["running"] == "ab" * 50 and answers.finished["running"]
            await stopping
        await fleet.idle()


async def test_keys_and_models(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[[tenant]]\nname = "a"\nkey = "key-a"\n')
    async with fake_fleet(tmp_path / "model", tenants_file=str(tenants)) as fleet:
        channel = grpc.aio.insecure_channel(fleet.grpc_of(0))
        async with channel:
            stub = InferenceStub(channel)
            for metadata in [(), (("authorization", "Bearer wrong"),)]:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ListModels(api.ListModelsRequest(), metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            for metadata in [(("authorization", "Bearer key-a"),), (("x-api-key", "key-a"),)]:
                found = await stub.ListModels(api.ListModelsRequest(), metadata=metadata)
                assert found.models[0].identity.name == "tiny" and found.models[0].max_positions == 4096
