"""What a client said, checked and in the shape chat templates expect."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from text.control_guard import ControlGuard

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_RESERVED = ("messages", "tools", "add_generation_prompt", "strftime_now")


class TemplateError(Exception):
    """A prompt cannot be made of a conversation; `field` is the request field at fault."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat request's share in its prompt; made by `of`."""

    messages: tuple[Mapping[str, object], ...]
    """Each with a role of system, user, assistant or tool, and content as one string."""
    tools: tuple[Mapping[str, object], ...] | None = None
    """Function schemas as OpenAI's API has them."""
    add_generation_prompt: bool = True
    """Whether the prompt ends with the opening of the assistant's turn."""
    variables: Mapping[str, object] | None = None
    """Further template variables (chat_template_kwargs)."""

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> "Conversation":
        """Checks and normalizes a request: role developer becomes system, content null becomes "", a list of
        text parts is joined by newlines, and the arguments of tool calls become objects.

        Raises TemplateError naming the field, for example messages[2].content.
        """
        if not messages:
            raise TemplateError("messages", "a conversation needs at least one message")
        for name in variables or {}:
            if name in _RESERVED:
                raise TemplateError(f"chat_template_kwargs.{name}", "this variable cannot be replaced")
        checked = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
        for field, value in (("messages", checked), ("tools", tools), ("chat_template_kwargs", variables)):
            _check_strings(value, field)
        return cls(checked, None if tools is None else tuple(tools), add_generation_prompt, variables)

    def touched_by(self, guard: ControlGuard) -> bool:
        """Whether a string of the client's holds, or could complete, a control string."""
        return guard.touches([_without_roles(self.messages), self.tools, self.variables])

    def marked_by(self, guard: ControlGuard) -> "Conversation":
        """The same with the client's control strings marked; roles are a closed list and stay."""
        messages = tuple(
            {**cast(Mapping[str, object], guard.marked(message)), "role": message["role"]}
            for message in self.messages
        )
        tools = cast(Any, guard.marked(self.tools))
        variables = cast(Mapping[str, object] | None, guard.marked(self.variables))
        return replace(self, messages=messages, tools=tools and tuple(tools), variables=variables)


def _without_roles(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in message.items() if name != "role"} for message in messages]


def _message(message: object, field: str) -> Mapping[str, object]:
    if not isinstance(message, Mapping):
        raise TemplateError(field, "a message must be an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise TemplateError(f"{field}.role", f"must be one of {', '.join(_ROLES)}, not {role!r}")
    checked = {
        **message,
        "role": _ROLES[role],
        "content": _content(message.get("content"), f"{field}.content"),
    }
    if message.get("tool_calls") is not None:
        checked["tool_calls"] = _tool_calls(message["tool_calls"], f"{field}.tool_calls")
    return checked


def _content(content: object, field: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TemplateError(field, "must be a string, a list of text parts or null")
    return "\n".join(_part(part, f"{field}[{index}]") for index, part in enumerate(content))


def _part(part: object, field: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise TemplateError(field, "a content part must be an object")
    if part.get("type") != "text":
        raise TemplateError(f"{field}.type", f"only text parts are supported, not {part.get('type')!r}")
    if not isinstance(text := part.get("text"), str):
        raise TemplateError(f"{field}.text", "must be a string")
    return text


def _tool_calls(calls: object, field: str) -> list[Mapping[str, object]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise TemplateError(field, "must be a list")
    return [_tool_call(call, f"{field}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, field: str) -> Mapping[str, object]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise TemplateError(f"{field}.function", "must be an object")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # The API carries arguments as JSON text; templates expect the object.
        arguments = _parsed(arguments, f"{field}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str, field: str) -> object:
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise TemplateError(field, f"not JSON: {error}") from error


def _check_strings(value: object, field: str, depth: int = 0) -> None:
    """Raises TemplateError for what no template can write or no tokenizer encode."""
    if depth > 100:
        raise TemplateError(field.partition(".")[0], "nested more than 100 levels deep")
    if isinstance(value, str):
        _check_encodable(value, field)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_encodable(str(name), field)
            _check_strings(item, f"{field}.{name}", depth + 1)
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            _check_strings(item, f"{field}[{index}]", depth + 1)


def _check_encodable(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"character {error.start} is a lone surrogate, which is no Unicode text"
        raise TemplateError(field.encode("ascii", "backslashreplace").decode(), reason) from error
