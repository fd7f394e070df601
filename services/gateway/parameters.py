"""What a client's sampling fields mean for one model and one prompt; every range check names its field."""

from dataclasses import dataclass

from core.ends import End
from core.outcomes import Outcome
from core.sampling import SamplingParams
from services.gateway.bodies import SamplingFields
from services.gateway.refusal import Refusal, bad_field

CHOICES_MAX = 128
STOPS_MAX = 16
STOP_CHARACTERS_MAX = 1000
LOGPROBS_MAX = 20
LOGIT_BIAS_MAX = 1024
STOP_TOKEN_IDS_MAX = 128


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model allows."""

    max_positions: int
    """Prompt and output tokens together."""
    vocabulary: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Checked sampling fields."""

    params: SamplingParams
    stops: tuple[str, ...]
    choices: int
    seed: int | None
    """64-bit; None: any."""


def checked(
    fields: SamplingFields,
    limits: ModelLimits,
    prompt_tokens: int,
    *,
    logprobs: int | None,
    max_tokens: int | None,
    structured: bool = False,
    max_tokens_field: str = "max_tokens",
    logprobs_field: str = "logprobs",
    prompt_field: str = "prompt",
) -> Parameters:
    """`max_tokens` None: as far as the model's positions go. Raises Refusal naming the field.

    A `structured` answer ends where its grammar does, so the end tokens count whatever ignore_eos says.
    """
    if prompt_tokens == 0:
        raise bad_field(prompt_field, "must not be empty")
    limit = _output_limit(limits, prompt_tokens, max_tokens, max_tokens_field, prompt_field)
    params = SamplingParams(
        temperature=_between("temperature", fields.temperature, 1.0, 0.0, 2.0),
        top_k=_top_k(fields.top_k),
        top_p=_share("top_p", fields.top_p, 1.0),
        min_p=_between("min_p", fields.min_p, 0.0, 0.0, 1.0),
        repetition_penalty=_repetition_penalty(fields.repetition_penalty),
        frequency_penalty=_between("frequency_penalty", fields.frequency_penalty, 0.0, -2.0, 2.0),
        presence_penalty=_between("presence_penalty", fields.presence_penalty, 0.0, -2.0, 2.0),
        logit_bias=_logit_bias(fields.logit_bias, limits.vocabulary),
        stop_token_ids=_stop_token_ids(fields, limits, structured),
        max_tokens=limit,
        min_tokens=_min_tokens(fields.min_tokens, limit),
        logprobs=None if logprobs is None else _whole(logprobs_field, logprobs, 0, LOGPROBS_MAX),
    )
    choices = 1 if fields.n is None else _whole("n", fields.n, 1, CHOICES_MAX)
    seed = None if fields.seed is None else _whole("seed", fields.seed, -(1 << 63), (1 << 64) - 1)
    return Parameters(params, _stops(fields.stop), choices, None if seed is None else seed % (1 << 64))


def _output_limit(
    limits: ModelLimits, prompt_tokens: int, max_tokens: int | None, field: str, prompt_field: str
) -> int:
    room = limits.max_positions - prompt_tokens
    if room < 1:
        problem = f"has {prompt_tokens} tokens; the model has {limits.max_positions} positions"
        raise Refusal(
            End(Outcome.PROMPT_TOO_LONG, f"{prompt_field}: {problem}, one of them for output", prompt_field)
        )
    if max_tokens is None:
        return room
    if max_tokens < 1:
        raise bad_field(field, f"must be at least 1, not {max_tokens}")
    if max_tokens > room:
        problem = f"{max_tokens} and a prompt of {prompt_tokens} tokens exceed"
        raise bad_field(field, f"{problem} the model's {limits.max_positions} positions")
    return max_tokens


def _between(field: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    # NaN is between nothing.
    if not low <= value <= high:
        raise bad_field(field, f"must be between {low:g} and {high:g}, not {value:g}")
    return float(value)


def _share(field: str, value: float | None, default: float) -> float:
    if value is None:
        return default
    if not 0.0 < value <= 1.0:
        raise bad_field(field, f"must be above 0 and at most 1, not {value:g}")
    return float(value)


def _whole(field: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise bad_field(field, f"must be between {low} and {high}, not {value}")
    return value


def _top_k(value: int | None) -> int:
    """0 and -1 both keep every token, as in vLLM."""
    return 0 if value in (None, -1) else _whole("top_k", value or 0, 0, (1 << 31) - 1)


def _repetition_penalty(value: float | None) -> float:
    if value is None:
        return 1.0
    if not 0.0 < value <= 10.0:
        raise bad_field("repetition_penalty", f"must be above 0 and at most 10, not {value:g}")
    return float(value)


def _min_tokens(value: int | None, limit: int) -> int:
    if value is None:
        return 0
    if not 0 <= value <= limit:
        raise bad_field("min_tokens", f"must be between 0 and max_tokens ({limit}), not {value}")
    return value


def _logit_bias(bias: dict[str, float] | None, vocabulary: int) -> tuple[tuple[int, float], ...]:
    if not bias:
        return ()
    if len(bias) > LOGIT_BIAS_MAX:
        raise bad_field("logit_bias", f"at most {LOGIT_BIAS_MAX} tokens")
    found: dict[int, float] = {}
    for name, value in bias.items():
        token = int(name) if name.isascii() and name.isdecimal() else -1
        if not 0 <= token < vocabulary:
            raise bad_field("logit_bias", f"{name!r} is not a token id of this model")
        found[token] = _between(f"logit_bias.{token}", value, 0.0, -100.0, 100.0)
    return tuple(sorted(found.items()))


def _stop_token_ids(fields: SamplingFields, limits: ModelLimits, structured: bool) -> tuple[int, ...]:
    given = fields.stop_token_ids or []
    if len(given) > STOP_TOKEN_IDS_MAX:
        raise bad_field("stop_token_ids", f"at most {STOP_TOKEN_IDS_MAX} tokens")
    for position, token in enumerate(given):
        if not 0 <= token < limits.vocabulary:
            raise bad_field(f"stop_token_ids[{position}]", f"{token} is not a token id of this model")
    ends = () if fields.ignore_eos and not structured else limits.eos_token_ids
    return tuple(dict.fromkeys([*ends, *given]))


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    given = [stop] if isinstance(stop, str) else stop
    if len(given) > STOPS_MAX:
        raise bad_field("stop", f"at most {STOPS_MAX} stop strings, not {len(given)}")
    for position, text in enumerate(given):
        if not 0 < len(text) <= STOP_CHARACTERS_MAX:
            raise bad_field(f"stop[{position}]", f"must have 1 to {STOP_CHARACTERS_MAX} characters")
    return tuple(given)
