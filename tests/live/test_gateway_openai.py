"""The real OpenAI client against the gateway."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from core.ends import End
from core.outcomes import Outcome
from tests.live.gateway_fleet import FakeFleet, fake_fleet

TENANTS = """
[[tenant]]
name = "a"
key = "key-a"
class = "interactive"
concurrency = 1
[[tenant]]
name = "b"
key = "key-b"
weight = 2.5
admin = true
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FakeFleet]:
    async with fake_fleet(tmp_path) as fleet:
        yield fleet
        await fleet.idle()


def client_of(fleet: FakeFleet, key: str = "any", retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=key, max_retries=retries)


def say(text: str) -> Any:
    return [{"role": "user", "content": f"SAY {text}"}]


async def test_chat_whole(fleet: FakeFleet) -> None:
    fleet.workers[0].cached_tokens = 16
    async with client_of(fleet) as client:
        answer = await client.chat.completions.create(model="tiny", messages=say("Hi 🦊 狐!"))
    assert answer.choices[0].message.content == "Hi 🦊 狐!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-gateway-0-") and answer.object == "chat.completion"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens == len("Hi 🦊 狐!".encode()) + 1  # and the stop token
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 16
    start = fleet.workers[0].starts[0]
    assert len(start.prompt) == answer.usage.prompt_tokens and len(start.hash_root) == 8


async def test_chat_streamed_with_usage(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=say("né🦊"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "né🦊"
    assert not any("\ufffd" in (c.choices[0].delta.content or "") for c in chunks[:-1])
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_no_usage_chunk_unasked(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        stream = await client.chat.completions.create(model="tiny", messages=say("x"), stream=True)
        chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_two_choices(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        whole = await client.chat.completions.create(model="tiny", messages=say("ab"), n=2)
        assert [(c.index, c.message.content) for c in whole.choices] == [(0, "ab"), (1, "-ab")]
        stream = await client.chat.completions.create(model="tiny", messages=say("ab"), n=2, stream=True)
        texts, finishes = ["", ""], ["", ""]
        async for chunk in stream:
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    assert texts == ["ab", "-ab"] and finishes == ["stop", "stop"]
    assert whole.usage is not None and whole.usage.completion_tokens == 3 + 4


async def test_completion_with_several_prompts(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        answer = await client.completions.create(model="tiny", prompt=["SAY one", "SAY two"], n=2)
        assert [(c.index, c.text) for c in answer.choices] == [
            (0, "one"),
            (1, "-one"),
            (2, "two"),
            (3, "-two"),
        ]
        tokens = fleet.workers[0].tokenizer.encode_literal("SAY ids")
        assert (await client.completions.create(model="tiny", prompt=tokens)).choices[0].text == "ids"
        both = await client.completions.create(model="tiny", prompt=[tokens, tokens])
        assert [choice.text for choice in both.choices] == ["ids", "ids"]


@pytest.mark.parametrize(
    ("said", "asked", "text", "tokens", "reason"),
    [
        ("abc", {}, "abc", 4, "stop"),
        ("abc", {"max_tokens": None}, "abc", 4, "stop"),
        ("abc", {"max_tokens": 1}, "a", 1, "length"),
        ("abc", {"max_tokens": 2}, "ab", 2, "length"),
        ("abc", {"max_completion_tokens": 2}, "ab", 2, "length"),
        ("abc", {"max_tokens": 3}, "abc", 3, "length"),
        ("", {}, "", 1, "stop"),
        ("abc", {"stop": "a"}, "", 1, "stop"),
        ("abcabc", {"stop": ["ca"]}, "ab", 4, "stop"),
        ("🦊狐x", {"stop": "狐"}, "🦊", 7, "stop"),
        ("abc", {"stop": "cd"}, "abc", 4, "stop"),
        ("abc", {"stop": "c", "max_tokens": 3}, "ab", 3, "stop"),
        ("abc", {"extra_body": {"stop_token_ids": [65]}}, "ab", 3, "stop"),
    ],
)
async def test_counts_and_reasons(
    fleet: FakeFleet, said: str, asked: dict[str, Any], text: str, tokens: int, reason: str
) -> None:
    if "extra_body" in asked:
        letter = fleet.workers[0].tokenizer.encode_literal("c")
        asked = {"extra_body": {"stop_token_ids": letter, "ignore_eos": True}, "max_tokens": 3}
    async with client_of(fleet) as client:
        answer = await client.chat.completions.create(model="tiny", messages=say(said), **asked)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == reason
    assert answer.usage is not None and answer.usage.completion_tokens == tokens
    await fleet.idle()
    settle = fleet.router.settles[-1]
    assert (settle.output_tokens, settle.final) == (tokens, True)


async def test_a_stop_string_cancels_the_compute(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        await client.chat.completions.create(model="tiny", messages=say("LONG abcdef"), stop="fa")
    await fleet.idle()
    assert len(fleet.workers[0].cancels) == 1


async def test_chat_logprobs(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=say("é"), logprobs=True, top_logprobs=2
        )
        stream = await client.chat.completions.create(
            model="tiny", messages=say("é"), logprobs=True, stream=True
        )
        streamed = [chunk.choices[0].logprobs async for chunk in stream]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [token.bytes for token in logprobs.content] == [[0xC3], [0xA9]]
    assert [len(token.top_logprobs) for token in logprobs.content] == [2, 2]
    assert logprobs.content[0].logprob == -0.5
    content = [token for one in streamed if one is not None for token in one.content or []]
    assert [token.bytes for token in content] == [[0xC3], [0xA9]]


async def test_completion_logprobs(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        answer = await client.completions.create(model="tiny", prompt="SAY abc", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens == ["a", "b", "c"]
    assert logprobs.text_offset == [0, 1, 2] and logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None and len(logprobs.top_logprobs[0]) == 2


async def test_seed_and_bias_reach_the_worker(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        await client.chat.completions.create(
            model="tiny", messages=say("a"), seed=7, logit_bias={"65": 2}, temperature=0, user="u"
        )
        await client.chat.completions.create(model="tiny", messages=say("a"))
    first, second = fleet.workers[0].starts
    assert first.seed == 7 and list(first.sampling.bias_tokens) == [65] and first.sampling.temperature == 0
    assert second.seed != 7 and second.sampling.temperature == 1.0


async def test_models(fleet: FakeFleet) -> None:
    async with client_of(fleet) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "baton"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


@pytest.mark.parametrize(
    ("asked", "kind", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 5000}, openai.BadRequestError, "max_tokens"),
        ({"messages": say("x" * 5000)}, openai.BadRequestError, "messages"),
        ({"response_format": {"type": "yaml"}}, openai.BadRequestError, "response_format.type"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
    ],
)
async def test_errors_as_exceptions(fleet: FakeFleet, asked: Any, kind: Any, param: str) -> None:
    async with client_of(fleet) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**{"model": "tiny", "messages": say("x"), **asked})
    assert caught.value.param == param and caught.value.code
    assert not fleet.workers[0].starts


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.RATE_LIMITED, openai.RateLimitError),
        (Outcome.QUEUE_FULL, openai.RateLimitError),
        (Outcome.PROMPT_TOO_LONG, openai.BadRequestError),
    ],
)
async def test_refusals_as_exceptions(fleet: FakeFleet, outcome: Outcome, kind: Any) -> None:
    fleet.router.refuse = End(outcome, "refused by the test", "", 2_500_000)
    async with client_of(fleet) as client:
        for streamed in (False, True):
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(model="tiny", messages=say("x"), stream=streamed)
            assert caught.value.code == outcome.value
            waits = caught.value.response.headers.get("retry-after")
            assert waits == ("3" if kind is openai.RateLimitError else None)


async def test_an_error_in_mid_stream_raises(tmp_path: Path) -> None:
    async with fake_fleet(tmp_path) as fleet, client_of(fleet) as client:
        fleet.workers[0].pace_s = 0.01
        stream = await client.chat.completions.create(
            model="tiny", messages=say("LONG ab"), stream=True, max_tokens=4000
        )
        with pytest.raises(openai.APIError, match="cancelled by the test") as caught:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    fleet.gateways[0].driver.cancel(chunk.id, Outcome.CANCELLED, "cancelled by the test")
        assert caught.value.code == "cancelled"


async def test_tenants(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(TENANTS)
    async with fake_fleet(tmp_path / "model", tenants_file=str(tenants)) as fleet:
        for key in ("wrong", "key-c"):
            async with client_of(fleet, key) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(model="tiny", messages=say("x"))
        roots = []
        for key in ("key-a", "key-b"):
            async with client_of(fleet, key) as client:
                await client.chat.completions.create(model="tiny", messages=say("x"))
            roots.append(fleet.workers[0].starts[-1].hash_root)
        assert roots[0] != roots[1], "two tenants may not share KV"
        submit = fleet.router.submits[-1]
        assert (submit.tenant, submit.tenant_weight) == ("b", 2.5)


async def test_a_dropped_stream_frees_the_tenants_only_place(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(TENANTS)
    async with fake_fleet(tmp_path / "model", tenants_file=str(tenants)) as fleet:
        fleet.workers[0].pace_s = 0.01
        async with client_of(fleet, "key-a") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=say("LONG ab"), stream=True, max_tokens=4000
            )
            await anext(aiter(stream))
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="tiny", messages=say("x"))
            await stream.close()
            await fleet.idle()
            await client.chat.completions.create(model="tiny", messages=say("x"))
        await fleet.idle()
