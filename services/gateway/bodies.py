"""What clients may send as JSON, in OpenAI's names and vLLM's."""

import re
from typing import Any, TypeVar

import msgspec

from services.gateway.refusal import bad_field

_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What every API may say about drawing tokens. None is absent: null and nothing are the same."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: Any = None


class _Body(SamplingFields, kw_only=True):
    model: str | None = None
    """Absent: the first model served."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    best_of: int | None = None
    user: str | None = None
    response_format: Any = None


class CompletionBody(_Body, kw_only=True):
    """POST /v1/completions."""

    prompt: Any = None
    """str, [str], [int] or [[int]]; checked by `prompts`."""
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


class ChatBody(_Body, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Any] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


Body = TypeVar("Body", CompletionBody, ChatBody)
_DECODERS: dict[type, Any] = {
    CompletionBody: msgspec.json.Decoder(CompletionBody),
    ChatBody: msgspec.json.Decoder(ChatBody),
}


def parsed(kind: type[Body], data: bytes) -> Body:
    """Raises Refusal naming the field, or `body` where it is no JSON object at all."""
    try:
        body: Body = _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        problem = _PLACE.sub("", str(error)).replace("`", "")
        # A table's value is placed at `[...]`: which key it was, msgspec does not say.
        raise bad_field((place[1] if place else "").removesuffix("[...]") or "body", problem) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_field("body", f"not JSON: {error}") from error
    return body


def prompts(prompt: Any, count_max: int) -> list[str | list[int]]:
    """Each prompt of a completion's `prompt` field, text or token ids. Raises Refusal."""
    if prompt is None:
        raise bad_field("prompt", "is missing")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise bad_field("prompt", "must be a string, a list of strings, token ids, or lists of token ids")
    if isinstance(prompt[0], int) and not isinstance(prompt[0], bool):
        return [_token_ids(prompt, "prompt")]
    if len(prompt) > count_max:
        raise bad_field("prompt", f"at most {count_max} prompts in one request, not {len(prompt)}")
    return [_one_prompt(item, f"prompt[{position}]") for position, item in enumerate(prompt)]


def _one_prompt(item: Any, field: str) -> str | list[int]:
    if isinstance(item, str):
        return item
    if isinstance(item, list):
        return _token_ids(item, field)
    raise bad_field(field, "must be a string or a list of token ids")


def _token_ids(items: list[Any], field: str) -> list[int]:
    for position, item in enumerate(items):
        if not isinstance(item, int) or isinstance(item, bool):
            raise bad_field(f"{field}[{position}]", "must be a token id")
    return items


def refuse_unsupported(body: CompletionBody | ChatBody) -> None:
    """Raises Refusal naming the first field that asks for what is not served."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_field("best_of", "must be absent or equal to n")
    if body.stream_options is not None and not body.stream:
        raise bad_field("stream_options", "only allowed with stream")
    if isinstance(body, CompletionBody):
        _refuse(body.echo, "echo")
        _refuse(body.suffix, "suffix")
    else:
        _refuse_in_chat(body)


def _refuse_in_chat(body: ChatBody) -> None:
    _refuse(body.functions, "functions")
    _refuse(body.function_call, "function_call")
    _refuse(body.audio, "audio")
    if body.modalities not in (None, [], ["text"]):
        raise bad_field("modalities", 'only ["text"] is supported')
    if body.tool_choice not in (None, "none", "auto"):
        raise bad_field("tool_choice", 'only "none" and "auto" are supported')
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_field("top_logprobs", "only allowed with logprobs")


def _refuse(value: object, field: str) -> None:
    if value:
        raise bad_field(field, "is not supported")
