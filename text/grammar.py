"""Which answers a client's format allows, as one string that every worker reads alike."""

from collections.abc import Mapping, Sequence

import msgspec
from llguidance import LLMatcher

JSON_OBJECT: Mapping[str, object] = {"type": "object"}
WHITESPACE = r"\x20|\n\x20{0,16}"
"""Between JSON tokens: a space, or a line break with its indent. Bounded: every token makes progress."""
GRAMMAR_CHARACTERS_MAX = 256 << 10


class GrammarError(Exception):
    """A format that no answer can be held to, or whose limits an answer exceeded; says why in one line."""


def json_schema_grammar(schema: Mapping[str, object], *, strict: bool) -> str:
    """Answers are JSON text that the schema allows, its properties in the order it names them.

    Strict: a keyword that cannot be enforced is an error when the grammar is compiled; otherwise it is
    ignored. Raises GrammarError.
    """
    options = {"whitespace_pattern": WHITESPACE, "lenient": not strict}
    try:
        text = msgspec.json.encode({**schema, "x-guidance": options}).decode()
        return _sized(LLMatcher.grammar_from_json_schema(text))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise GrammarError(one_line(str(error))) from error


def regex_grammar(pattern: str) -> str:
    """Answers match the whole pattern (Rust's regex syntax: no look-around, no back-references)."""
    return _sized(LLMatcher.grammar_from_regex(pattern))


def lark_grammar(grammar: str) -> str:
    """Answers are sentences of a Lark grammar with the rule `start`."""
    return _sized(LLMatcher.grammar_from_lark(grammar))


def choice_grammar(choices: Sequence[str]) -> str:
    """Answers are one of these texts, exactly. Raises GrammarError where one is empty or there is none."""
    if not choices or not all(choices):
        raise GrammarError("needs at least one choice, none of them empty")
    # A JSON string is a Lark string too: the same quotes and escapes.
    quoted = [msgspec.json.encode(choice).decode() for choice in choices]
    return lark_grammar("start: " + " | ".join(quoted))


def one_line(message: str) -> str:
    """A library's error on one line, of bearable length."""
    return " ".join(message.split())[:400]


def _sized(grammar: str) -> str:
    if len(grammar) > GRAMMAR_CHARACTERS_MAX:
        raise GrammarError(f"has {len(grammar)} characters, at most {GRAMMAR_CHARACTERS_MAX} are allowed")
    return grammar
