"""Structured answers of a whole fleet, disaggregated, asked for by the real `openai` client and by gRPC."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from proto import inference_pb2 as api
from tests.e2e.grpc_client import Conversation
from tests.e2e.live_fleet import MODEL, LiveFleet
from tests.reference import references

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 50_000_000},
        "size": {"enum": ["small", "large"]},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["city", "population", "size", "rivers"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
MESSAGES: Any = [{"role": "user", "content": "Describe Paris as JSON."}]


@pytest.fixture(scope="module")
def client(exact_fleet: LiveFleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=exact_fleet.openai, api_key="none", max_retries=0) as found:
        yield found


def ask(client: openai.OpenAI, response_format: Any = FORMAT, **params: Any) -> Any:
    params = {"temperature": 0, "max_tokens": 120, **params}
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format=response_format, **params
    )


def test_json_schema_greedy_sampled_and_several(client: openai.OpenAI) -> None:
    for params in ({}, {"temperature": 1.0, "seed": 3, "n": 2}):
        answer = ask(client, **params)
        assert len(answer.choices) == params.get("n", 1)
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_streamed_it_is_the_same(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    parts = [part.choices[0].delta.content or "" for part in ask(client, stream=True) if part.choices]
    assert "".join(parts) == whole


def test_json_object(client: openai.OpenAI) -> None:
    choice = ask(client, {"type": "json_object"}).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.startswith("{")


def test_stop_strings_and_logprobs_beside_it(client: openai.OpenAI) -> None:
    full = ask(client).choices[0].message.content
    cut = ask(client, stop=['"population"']).choices[0]
    assert (cut.message.content, cut.finish_reason) == (full[: full.index('"population"')], "stop")
    told = ask(client, logprobs=True, top_logprobs=2, max_tokens=6).choices[0]
    assert len(told.logprobs.content) == 6
    # Logprobs are of what the model wanted, which need not be what the schema allowed.
    assert all(one.logprob <= one.top_logprobs[0].logprob for one in told.logprobs.content)


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"guided_choice": ["Paris", "London"]}, r"^(Paris|London)$"),
        ({"guided_regex": r"[A-Z][a-z]{3,8}, \d{4}"}, r"^[A-Z][a-z]{3,8}, \d{4}$"),
        ({"structured_outputs": {"grammar": 'start: "<" /[a-z]{2,5}/ ">"'}}, r"^<[a-z]{2,5}>$"),
    ],
)
def test_vllms_ways_on_both_apis(client: openai.OpenAI, asked: dict[str, Any], pattern: str) -> None:
    chat = ask(client, openai.omit, extra_body=asked).choices[0]
    jsonschema.validate(chat.message.content, {"pattern": pattern})
    text = client.completions.create(
        model=MODEL, prompt="The capital is", temperature=0, max_tokens=40, extra_body=asked
    ).choices[0]
    jsonschema.validate(text.text, {"pattern": pattern})
    assert (chat.finish_reason, text.finish_reason) == ("stop", "stop")


def test_the_end_comes_though_the_end_token_is_ignored(client: openai.OpenAI) -> None:
    asked = {"guided_choice": ["Paris"], "ignore_eos": True, "min_tokens": 10}
    choice = ask(client, openai.omit, extra_body=asked).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Paris", "stop")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "strng"}, "response_format.json_schema.schema"),
        ({"not": {"type": "null"}}, "response_format.json_schema.schema: .*not"),
    ],
)
def test_a_bad_schema_is_refused_naming_the_field(client: openai.OpenAI, schema: Any, says: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        ask(client, wanted)
    assert caught.value.param == "response_format.json_schema.schema"
    with pytest.raises(openai.BadRequestError, match="guided_regex"):
        ask(client, openai.omit, extra_body={"guided_regex": "[a"})


def test_grpc(exact_fleet: LiveFleet) -> None:
    prompt = references.own()[0]["prompt_tokens"]

    async def talk() -> None:
        async with Conversation(exact_fleet.grpc) as talk:
            held = api.Structure(json_schema=json.dumps(SCHEMA))
            good = await talk.start("good", prompt, structure=held, max_tokens=120)
            bad = await talk.start("bad", prompt, structure=api.Structure(regex="[a"))
            async with asyncio.timeout(60):
                await asyncio.gather(good.ended.wait(), bad.ended.wait())
            jsonschema.validate(json.loads(good.text), SCHEMA)
            assert bad.error is not None
            assert (bad.error.field, bad.error.reason) == ("sampling.structure.regex", "invalid_argument")

    asyncio.run(talk())
