"""How the nouns of `core` travel: core types to proto/common messages and back, every number checked."""

import itertools
import math

from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.request import Choice, InstanceKey, Leg, ModelIdentity, Role, TenantClass
from core.sampling import SamplingParams
from proto import common_pb2 as wire
from rpc.errors import FieldError

_ROLES = {role.value: role for role in Role}
_TENANT_CLASSES = {int(tenant_class): tenant_class for tenant_class in TenantClass}
_FINISHES = {finish.value: finish for finish in FinishReason}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def model_to_wire(model: ModelIdentity) -> wire.Model:
    return wire.Model(name=model.name, revision=model.revision, adapter=model.adapter)


def model_from_wire(message: wire.Model, field: str = "model") -> ModelIdentity:
    """Raises FieldError where the name is empty."""
    _check(bool(message.name), f"{field}.name", "must not be empty")
    return ModelIdentity(message.name, message.revision, message.adapter)


def sampling_to_wire(params: SamplingParams) -> wire.Sampling:
    return wire.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        bias_tokens=[token for token, _ in params.logit_bias],
        bias_values=[value for _, value in params.logit_bias],
        stop_token_ids=params.stop_token_ids,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        logprobs=params.logprobs,
    )


def sampling_from_wire(message: wire.Sampling, field: str = "sampling") -> SamplingParams:
    """Raises FieldError naming the first number that no sampler could use."""
    _check_sampling(message, field)
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        logit_bias=tuple(zip(message.bias_tokens, message.bias_values, strict=True)),
        stop_token_ids=tuple(message.stop_token_ids),
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )


def _check_sampling(message: wire.Sampling, field: str) -> None:
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
    ):
        _check(math.isfinite(getattr(message, name)), f"{field}.{name}", "must be a finite number")
    _check(message.temperature >= 0, f"{field}.temperature", "must be at least 0")
    _check(0 < message.top_p <= 1, f"{field}.top_p", "must be above 0 and at most 1")
    _check(0 <= message.min_p <= 1, f"{field}.min_p", "must be between 0 and 1")
    _check(message.repetition_penalty > 0, f"{field}.repetition_penalty", "must be above 0")
    _check(message.max_tokens >= 1, f"{field}.max_tokens", "must be at least 1")
    tokens, values = message.bias_tokens, message.bias_values
    _check(len(tokens) == len(values), f"{field}.bias_values", "must be as many as bias_tokens")
    _check(all(map(math.isfinite, values)), f"{field}.bias_values", "must be finite numbers")
    ascending = all(before < after for before, after in itertools.pairwise(tokens))
    _check(ascending, f"{field}.bias_tokens", "must ascend")


def choice_to_wire(choice: Choice) -> wire.Choice:
    return wire.Choice(index=choice.index, output=choice.output)


def choice_from_wire(message: wire.Choice) -> Choice:
    return Choice(message.index, tuple(message.output))


def instance_to_wire(key: InstanceKey) -> wire.Instance:
    return wire.Instance(worker=key.worker, incarnation=key.incarnation, model=model_to_wire(key.model))


def instance_from_wire(message: wire.Instance, field: str = "instance") -> InstanceKey:
    """Raises FieldError where the worker, its incarnation or the model is not named."""
    _check(bool(message.worker), f"{field}.worker", "must not be empty")
    _check(bool(message.incarnation), f"{field}.incarnation", "must not be empty")
    return InstanceKey(message.worker, message.incarnation, model_from_wire(message.model, f"{field}.model"))


def leg_to_wire(leg: Leg) -> wire.Leg:
    return wire.Leg(
        role=leg.role.value,
        instance=instance_to_wire(leg.instance),
        address=leg.address,
        reservation=leg.reservation,
        dtype=leg.dtype,
    )


def leg_from_wire(message: wire.Leg, field: str = "leg") -> Leg:
    """Raises FieldError where a leg could not be walked."""
    _check(bool(message.address), f"{field}.address", "must not be empty")
    return Leg(
        role=role_from_wire(message.role, f"{field}.role"),
        instance=instance_from_wire(message.instance, f"{field}.instance"),
        address=message.address,
        reservation=message.reservation,
        dtype=message.dtype,
    )


def role_from_wire(word: str, field: str = "role") -> Role:
    _check(word in _ROLES, field, f"{word!r} is none of {', '.join(_ROLES)}")
    return _ROLES[word]


def tenant_class_from_wire(number: int, field: str = "tenant_class") -> TenantClass:
    _check(number in _TENANT_CLASSES, field, f"{number} is none of 0 interactive, 1 standard, 2 batch")
    return _TENANT_CLASSES[number]


def weight_from_wire(weight: float, field: str = "tenant_weight") -> float:
    """0 is what a peer sends that does not know of weights."""
    _check(0 <= weight < float("inf"), field, f"{weight} is not a positive number")
    return weight or 1.0


def finish_to_wire(finish: FinishReason | None) -> str:
    return "" if finish is None else finish.value


def finish_from_wire(word: str, field: str = "finish_reason") -> FinishReason | None:
    _check(word == "" or word in _FINISHES, field, f"{word!r} is none of {', '.join(_FINISHES)}")
    return _FINISHES[word] if word else None


def outcome_from_wire(word: str) -> Outcome:
    """A newer peer may know a word we do not: to us that is INTERNAL."""
    return _OUTCOMES.get(word, Outcome.INTERNAL)


def end_to_wire(end: End) -> wire.End:
    return wire.End(
        outcome=end.outcome.value, message=end.message, field=end.field, retry_after_us=end.retry_after_us
    )


def end_from_wire(message: wire.End) -> End:
    return End(outcome_from_wire(message.outcome), message.message, message.field, message.retry_after_us)


def _check(holds: bool, field: str, problem: str) -> None:
    if not holds:
        raise FieldError(field, problem)
