"""What clients may ask, field by field."""

from typing import Any

import pytest

from core.outcomes import Outcome
from services.gateway.bodies import (
    ChatBody,
    CompletionBody,
    SamplingFields,
    parsed,
    prompts,
    refuse_unsupported,
)
from services.gateway.parameters import ModelLimits, Parameters, checked
from services.gateway.refusal import Refusal

LIMITS = ModelLimits(max_positions=100, vocabulary=1000, eos_token_ids=(2, 3))


def check(prompt_tokens: int = 10, logprobs: int | None = None, **given: Any) -> Parameters:
    fields = SamplingFields(**given)
    return checked(fields, LIMITS, prompt_tokens, logprobs=logprobs, max_tokens=fields.max_tokens)


def test_defaults() -> None:
    found = check()
    assert found.params.max_tokens == 90, "as far as the positions go"
    assert found.params.stop_token_ids == (2, 3)
    assert (found.params.temperature, found.params.top_p, found.params.top_k) == (1.0, 1.0, 0)
    assert (found.choices, found.seed, found.stops, found.params.logprobs) == (1, None, (), None)


def test_nulls_are_absent() -> None:
    nulls: dict[str, Any] = dict.fromkeys(SamplingFields.__struct_fields__)
    assert check(**nulls) == check()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {"1000": 1.0}}, "logit_bias"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"logit_bias": {"7": 101.0}}, "logit_bias.7"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": "x" * 1001}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [1, 1000]}, "stop_token_ids[1]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 91}, "max_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 1 << 64}, "seed"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_tokens": 0}, "prompt"),
        ({"prompt_tokens": 100}, "prompt"),
    ],
)
def test_out_of_range_names_the_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as caught:
        check(**given)
    end = caught.value.end
    assert end.field == field and end.message.startswith(f"{field}: ")
    too_long = given.get("prompt_tokens") == 100
    assert end.outcome is (Outcome.PROMPT_TOO_LONG if too_long else Outcome.INVALID_ARGUMENT)


def test_what_is_kept() -> None:
    found = check(
        top_k=-1,
        stop="a",
        stop_token_ids=[7, 2],
        ignore_eos=True,
        logit_bias={"9": -100, "3": 5},
        seed=-1,
        max_tokens=90,
        logprobs=0,
    )
    assert found.params.top_k == 0 and found.stops == ("a",)
    assert found.params.stop_token_ids == (7, 2), "as the client said, although 2 is also an end"
    assert found.params.logit_bias == ((3, 5.0), (9, -100.0))
    assert found.seed == (1 << 64) - 1 and found.params.logprobs == 0


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"max_tokens": "x"}', "max_tokens"),
        (b'{"n": 1.5}', "n"),
        (b'{"stop": [1]}', "stop[0]"),
        (b'{"logit_bias": {"5": "a"}}', "logit_bias"),
        (b'{"stream_options": {"include_usage": 3}}', "stream_options.include_usage"),
        (b'{"messages": "x"}', "messages"),
        (b"[]", "body"),
        (b"nope", "body"),
        (b"", "body"),
        (b"\xff", "body"),
        (b"[" * 100_000, "body"),
    ],
)
def test_wrong_types_name_the_field(data: bytes, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        parsed(ChatBody, data)
    assert caught.value.end.field == field


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        (ChatBody, b'{"tool_choice": {"type": "function"}}', "tool_choice"),
        (ChatBody, b'{"functions": [{}]}', "functions"),
        (ChatBody, b'{"audio": {}, "modalities": ["audio"]}', "modalities"),
        (ChatBody, b'{"top_logprobs": 2}', "top_logprobs"),
        (ChatBody, b'{"stream_options": {}}', "stream_options"),
        (CompletionBody, b'{"echo": true}', "echo"),
        (CompletionBody, b'{"suffix": "x"}', "suffix"),
        (CompletionBody, b'{"best_of": 3, "n": 2}', "best_of"),
    ],
)
def test_what_is_not_served_is_refused_by_name(kind: Any, data: bytes, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        refuse_unsupported(parsed(kind, data))
    assert caught.value.end.field == field


def test_what_asks_for_nothing_is_served() -> None:
    refuse_unsupported(parsed(ChatBody, b'{"response_format": {"type": "text"}, "tool_choice": "auto"}'))
    refuse_unsupported(parsed(CompletionBody, b'{"echo": false, "suffix": "", "best_of": 2, "n": 2}'))


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [""]),
    ],
)
def test_the_four_shapes_of_a_prompt(prompt: Any, found: Any) -> None:
    assert prompts(prompt, 2) == found


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (None, "prompt"),
        ([], "prompt"),
        (3, "prompt"),
        ([1, "a"], "prompt[1]"),
        ([True], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([[1], [None]], "prompt[1][0]"),
        (["a", "b", "c"], "prompt"),
    ],
)
def test_other_shapes_are_refused(prompt: Any, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        prompts(prompt, 2)
    assert caught.value.end.field == field
