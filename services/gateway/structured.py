"""Which grammar a client's request holds its answers to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from services.gateway.bodies import SamplingFields
from services.gateway.refusal import bad_field
from text.grammar import (
    JSON_OBJECT,
    GrammarError,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from text.grammar_matcher import check_grammar
from text.grammar_vocabulary import byte_vocabulary
from text.tokenizer import Tokenizer

CHECKED_MAX = 256
"""Grammars that were found good, remembered per model."""
CHOICES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Structure:
    """One demand on the form of an answer."""

    field: str
    """The client's name for it."""
    make: Callable[[], str]
    """The grammar; raises GrammarError."""


class Grammars:
    """Compiles what clients ask of one model, before anything is queued for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._can_end = bool(tokenizer.eos_token_ids)
        special = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]
        control = [tokenizer.token_text(token) for token in (*tokenizer.eos_token_ids[:1], *special)]
        vocabulary = byte_vocabulary(list(dict.fromkeys(control)) or ["<end>"])
        # Errors are not remembered, so a lie about one grammar costs only whoever tells it.
        self._check = lru_cache(CHECKED_MAX)(lambda grammar: check_grammar(grammar, vocabulary))

    def compiled(self, structure: Structure) -> str:
        """The grammar as workers take it; takes milliseconds. Raises Refusal naming the field."""
        if not self._can_end:
            raise bad_field(structure.field, "the model names no end token, so no answer could end")
        try:
            grammar = structure.make()
            self._check(grammar)
        except GrammarError as error:
            raise bad_field(structure.field, str(error)) from error
        return grammar


def structure_of(fields: SamplingFields, response_format: Any = None) -> Structure | None:
    """What a body asks for, in OpenAI's way or in vLLM's two; None: nothing. Raises Refusal naming the field.

    At most one may be asked for.
    """
    found = [
        _response_format(response_format),
        *(_guided(fields, kind, f"guided_{kind}") for kind in _MAKERS if kind != "json_object"),
        _structured_outputs(fields.structured_outputs),
    ]
    asked = [structure for structure in found if structure is not None]
    if len(asked) > 1:
        raise bad_field(asked[1].field, f"cannot be combined with {asked[0].field}")
    return asked[0] if asked else None


def structure(kind: str, value: Any, field: str, *, strict: bool = True) -> Structure:
    """`kind` is json, json_object, regex, choice or grammar. Raises Refusal naming the field."""
    return Structure(field, _MAKERS[kind](value, field, strict))


def _response_format(wanted: Any) -> Structure | None:
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping):
        raise bad_field("response_format", "must be an object")
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return structure("json_object", True, "response_format")
        case "json_schema":
            return _json_schema(wanted.get("json_schema"), "response_format.json_schema")
    raise bad_field("response_format.type", 'must be "text", "json_object" or "json_schema"')


def _json_schema(wanted: Any, field: str) -> Structure:
    if not isinstance(wanted, Mapping):
        raise bad_field(field, "must be an object with name and schema")
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if not isinstance(wanted.get(name), kind | None):
            raise bad_field(f"{field}.{name}", f"must be a {'string' if kind is str else 'boolean'}")
    return structure("json", wanted.get("schema"), f"{field}.schema", strict=bool(wanted.get("strict")))


def _guided(fields: SamplingFields, kind: str, name: str) -> Structure | None:
    value = getattr(fields, name)
    return None if value is None else structure(kind, value, name)


def _structured_outputs(wanted: Any) -> Structure | None:
    if wanted is None:
        return None
    field = "structured_outputs"
    if not isinstance(wanted, Mapping):
        raise bad_field(field, "must be an object")
    asked = [kind for kind, value in wanted.items() if value is not None and value is not False]
    for kind in asked:
        if kind not in _MAKERS:
            raise bad_field(f"{field}.{kind}", f"is not supported; {', '.join(_MAKERS)} are")
    if len(asked) != 1:
        raise bad_field(field, f"must have exactly one of {', '.join(_MAKERS)}")
    return structure(asked[0], wanted[asked[0]], f"{field}.{asked[0]}")


def _json(value: Any, field: str, strict: bool) -> Callable[[], str]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_field(field, f"not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise bad_field(field, "is missing" if value is None else "must be a JSON schema object")
    return lambda: json_schema_grammar(value, strict=strict)


def _json_object(value: Any, field: str, strict: bool) -> Callable[[], str]:
    if value is not True:
        raise bad_field(field, "must be true")
    return lambda: json_schema_grammar(JSON_OBJECT, strict=strict)


def _regex(value: Any, field: str, strict: bool) -> Callable[[], str]:
    pattern = _text(value, field)
    return lambda: regex_grammar(pattern)


def _lark(value: Any, field: str, strict: bool) -> Callable[[], str]:
    grammar = _text(value, field)
    return lambda: lark_grammar(grammar)


def _choice(value: Any, field: str, strict: bool) -> Callable[[], str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise bad_field(field, "must be a list of strings")
    if len(value) > CHOICES_MAX:
        raise bad_field(field, f"at most {CHOICES_MAX} choices")
    return lambda: choice_grammar(value)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise bad_field(field, "must be a string that is not empty")
    return value


_MAKERS: dict[str, Callable[[Any, str, bool], Callable[[], str]]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
