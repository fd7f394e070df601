"""Which prompt a conversation becomes."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import exceptions, ext, nodes, parser, runtime, sandbox

from text.conversation import Conversation, TemplateError
from text.tokenizer import Tokenizer

RENDERED_CHARACTERS_MAX = 16_000_000
"""Default bound on a rendered prompt, about 4 million tokens."""
_REPEATED_ITEMS_MAX = 1_000_000
_POWER_MAX = 64
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """One model's chat template, compiled in a sandbox; immutable, so threads share it."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        rendered_characters_max: int = RENDERED_CHARACTERS_MAX,
    ) -> None:
        """`sources` holds the Jinja source "default", and "tool_use" if tools have a template of their own.

        `special_tokens` maps bos_token, eos_token, ... to their strings. Raises TemplateError.
        """
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        self._templates = {name: _compiled(environment, name, text) for name, text in sources.items()}
        self._special_tokens = dict(special_tokens or {})
        self._rendered_characters_max = rendered_characters_max

    @classmethod
    def open(cls, folder: Path, *, rendered_characters_max: int = RENDERED_CHARACTERS_MAX) -> "ChatTemplate":
        """The template of a model folder: chat_template.jinja, else chat_template in tokenizer_config.json.

        Raises TemplateError if there is none, as for a base model, or if it cannot be compiled.
        """
        config = _read_config(folder / "tokenizer_config.json")
        sources = _sources(config.get("chat_template"))
        if (path := folder / "chat_template.jinja").exists():
            sources["default"] = _read(path)
        if "default" not in sources:
            raise TemplateError("model", f"{folder.name} has no chat template")
        tokens = {name: _token_content(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
        return cls(sources, tokens, rendered_characters_max=rendered_characters_max)

    def render(self, conversation: Conversation, now: datetime) -> str:
        """The prompt as text, for people to read; `encode` is not the encoding of this text, see there.

        `now` is what strftime_now tells the template. Raises TemplateError with the template's own words if
        it refuses the conversation, or if the prompt exceeds the bound.
        """
        name = "tool_use" if conversation.tools and "tool_use" in self._templates else "default"
        variables = {
            **self._special_tokens,
            **(conversation.variables or {}),
            "messages": list(conversation.messages),
            "tools": None if conversation.tools is None else list(conversation.tools),
            "documents": None,
            "add_generation_prompt": conversation.add_generation_prompt,
            "strftime_now": now.strftime,
        }
        try:
            return self._bounded(self._templates[name], variables)
        except (TemplateError, MemoryError):
            raise
        except Exception as error:  # a template is a program: anything can go wrong in it
            raise TemplateError("messages", f"the model's chat template failed: {error}") from error

    def encode(self, tokenizer: Tokenizer, conversation: Conversation, now: datetime) -> list[int]:
        """The prompt's token ids, in which only the template's control strings are control tokens.

        Where no string of the client's touches a control string this is the encoding of the rendered text as
        a whole; otherwise control_guard.py tells how. Raises TemplateError.
        """
        guard = tokenizer.control_guard
        if not conversation.touched_by(guard):
            return tokenizer.encode(self.render(conversation, now), special=False)
        return tokenizer.encode_guarded(self.render(conversation.marked_by(guard), now))

    def _bounded(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        pieces: list[str] = []
        characters = 0
        for piece in template.generate(variables):
            characters += len(piece)
            if characters > self._rendered_characters_max:
                reason = f"the prompt exceeds {self._rendered_characters_max} characters"
                raise TemplateError("messages", reason)
            pieces.append(piece)
        return "".join(pieces)


class _Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Also refuses the operators that make much memory out of a short template."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and max(abs(left), abs(right)) > _POWER_MAX:
            raise exceptions.SecurityError("power too large")
        if operator == "*" and _repeated_items(left, right) > _REPEATED_ITEMS_MAX:
            raise exceptions.SecurityError("repetition too long")
        return super().call_binop(context, operator, left, right)


def _repeated_items(left: Any, right: Any) -> int:
    for items, times in ((left, right), (right, left)):
        if hasattr(items, "__len__") and isinstance(times, int):
            return len(items) * times
    return 0


class _GenerationTag(ext.Extension):
    """`{% generation %}` marks assistant text for training; a prompt just contains it."""

    tags = {"generation"}  # noqa: RUF012  (the type that jinja2 declares)

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError("messages", message)


def _compiled(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        reason = f"template {name!r} does not compile: line {error.lineno}: {error.message}"
        raise TemplateError("chat_template", reason) from error


def _sources(found: object) -> dict[str, str]:
    """The named templates of a tokenizer_config.json: one string, or a list of {name, template}."""
    if isinstance(found, str):
        return {"default": found}
    entries = found if isinstance(found, list) else []
    return {str(entry["name"]): str(entry["template"]) for entry in entries}


def _token_content(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError("chat_template", f"{path} cannot be read: {error}") from error


def _read_config(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        config = json.loads(_read(path))
    except ValueError as error:
        raise TemplateError("chat_template", f"{path} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}
