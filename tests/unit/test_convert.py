"""Core types survive the wire, and a malformed number is refused by its name."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.request import Choice, InstanceKey, Leg, ModelIdentity, Role, TenantClass
from core.sampling import SamplingParams
from proto import common_pb2
from rpc import convert
from rpc.errors import FieldError

tokens = st.integers(0, 2**32 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=20)
names = st.text(min_size=1, max_size=20)
models = st.builds(ModelIdentity, names, words, words)
sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=tokens,
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 10, exclude_min=True),
    frequency_penalty=finite,
    presence_penalty=finite,
    logit_bias=st.dictionaries(tokens, finite, max_size=5).map(lambda bias: tuple(sorted(bias.items()))),
    stop_token_ids=st.lists(tokens, max_size=5).map(tuple),
    max_tokens=st.integers(1, 2**32 - 1),
    min_tokens=tokens,
    logprobs=st.none() | st.integers(0, 20),
)
instances = st.builds(InstanceKey, names, names, models)
legs = st.builds(Leg, st.sampled_from(Role), instances, names, st.integers(0, 2**64 - 1), words)
ends = st.builds(End, st.sampled_from(Outcome), words, words, st.integers(0, 2**64 - 1))
choices = st.builds(Choice, tokens, st.lists(tokens, max_size=5).map(tuple))


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@given(models, sampling, legs, ends, choices)
def test_everything_survives_the_wire(
    model: ModelIdentity, params: SamplingParams, leg: Leg, end: End, choice: Choice
) -> None:
    assert convert.model_from_wire(over_the_wire(convert.model_to_wire(model))) == model
    assert convert.sampling_from_wire(over_the_wire(convert.sampling_to_wire(params))) == params
    assert convert.leg_from_wire(over_the_wire(convert.leg_to_wire(leg))) == leg
    assert convert.end_from_wire(over_the_wire(convert.end_to_wire(end))) == end
    assert convert.choice_from_wire(over_the_wire(convert.choice_to_wire(choice))) == choice


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.5),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("max_tokens", 0),
        ("bias_values", [1.0]),
    ],
)
def test_a_malformed_number_is_refused_by_its_name(field: str, value: Any) -> None:
    message = convert.sampling_to_wire(SamplingParams())
    if isinstance(value, list):
        getattr(message, field).extend(value)
    else:
        setattr(message, field, value)
    with pytest.raises(FieldError) as refusal:
        convert.sampling_from_wire(message, "start.sampling")
    assert refusal.value.field == f"start.sampling.{field}"
    assert str(refusal.value).startswith(f"start.sampling.{field}: ")


@pytest.mark.parametrize("bias", [((5, 1.0), (5, 2.0)), ((6, 1.0), (5, 1.0)), ((5, math.nan),)])
def test_a_bias_ascends_and_is_finite(bias: tuple[tuple[int, float], ...]) -> None:
    message = convert.sampling_to_wire(SamplingParams(logit_bias=bias))
    with pytest.raises(FieldError, match=r"sampling\.bias_"):
        convert.sampling_from_wire(message)


def test_missing_names_are_named() -> None:
    with pytest.raises(FieldError, match=r"^leg\.address: "):
        convert.leg_from_wire(common_pb2.Leg(role="decode"))
    with pytest.raises(FieldError, match=r"^leg\.role: 'cook' is none of prefill, decode"):
        convert.leg_from_wire(common_pb2.Leg(role="cook", address="h:1"))
    with pytest.raises(FieldError, match=r"^leg\.instance\.worker: "):
        convert.leg_from_wire(common_pb2.Leg(role="decode", address="h:1"))
    with pytest.raises(FieldError, match=r"^model\.name: "):
        convert.model_from_wire(common_pb2.Model())


def test_words_and_numbers_of_enums() -> None:
    assert convert.finish_from_wire("") is None and convert.finish_to_wire(None) == ""
    assert convert.finish_from_wire(convert.finish_to_wire(FinishReason.LENGTH)) is FinishReason.LENGTH
    assert convert.tenant_class_from_wire(2) is TenantClass.BATCH
    assert convert.outcome_from_wire("a later version's word") is Outcome.INTERNAL
    with pytest.raises(FieldError, match=r"^finish_reason: "):
        convert.finish_from_wire("tired")
    with pytest.raises(FieldError, match=r"^tenant_class: "):
        convert.tenant_class_from_wire(3)
