"""The same structured answer, whatever happens around it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from core.outcomes import FinishReason
from engine.job import Job
from tests.model.structured_engine import Answer, StructuredEngine, job, structured_engine
from text.grammar import choice_grammar, json_schema_grammar, regex_grammar

TEXT = {"type": "string", "minLength": 40, "maxLength": 60}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]},
    {"type": "array", "items": {"type": "integer", "minimum": 1000}, "minItems": 9, "maxItems": 12},
]
"""Long enough for two answers to outgrow a small pool."""
DRAWS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95}]
"""Of each of SCHEMAS."""
TOKENS = 56


@pytest.fixture(scope="module")
def runner() -> Iterator[StructuredEngine]:
    with structured_engine() as found:
        yield found


def asked(runner: StructuredEngine, schema: dict[str, Any], **params: Any) -> Job:
    prompt = runner.prompt(f"One example, as JSON: {json.dumps(schema)[:300]}")
    return job(prompt, json_schema_grammar(schema, strict=True), **{"max_tokens": TOKENS, **params})


def alone(runner: StructuredEngine, one: Job, **how: Any) -> Answer:
    ((answer,),) = runner.run([one], **how)
    return answer


def test_company_chunks_hand_off_preemption_and_retry_change_nothing(runner: StructuredEngine) -> None:
    jobs = [
        asked(runner, schema, name=str(schema), **draw) for schema, draw in zip(SCHEMAS, DRAWS, strict=True)
    ]
    expected = [alone(runner, one) for one in jobs]
    assert [answers[0] for answers in runner.run(jobs, max_step_tokens=40)] == expected, "company, chunks"
    assert [runner.handed_off(one)[0] for one in jobs] == expected, "hand-off"
    before = runner.preemptions
    blocks = sum(-(-len(one.prompt) // 16) for one in jobs) + 3
    assert [answers[0] for answers in runner.run(jobs, blocks=blocks)] == expected, "preemption"
    assert runner.preemptions > before, "the pool was not small enough to show anything"
    for one, answer, draw in zip(jobs, expected, DRAWS, strict=True):
        delivered = answer.tokens[: len(answer.tokens) // 2]
        again = job(
            one.prompt, one.grammar, name="again", outputs=[delivered], **{"max_tokens": TOKENS, **draw}
        )
        assert alone(runner, again).tokens == answer.tokens, "retry"
    assert not runner.failed


def test_every_choice_follows_the_grammar_and_is_its_own(runner: StructuredEngine) -> None:
    two = asked(runner, SCHEMAS[0], outputs=[(), ()], temperature=1.2)
    (choices,) = runner.run([two])
    assert runner.handed_off(two) == choices
    assert choices[0].tokens != choices[1].tokens
    for answer in choices:
        if answer.finish is FinishReason.STOP:
            json.loads(runner.text(answer))
    one = asked(runner, SCHEMAS[0], temperature=1.2)
    assert alone(runner, one).tokens == choices[0].tokens


def test_the_answer_ends_where_its_grammar_does(runner: StructuredEngine) -> None:
    prompt = runner.prompt("Yes or no?")
    answer = alone(runner, job(prompt, choice_grammar(["maybe", "perhaps"])))
    assert runner.text(answer) in ("maybe", "perhaps")
    assert (answer.finish, answer.tokens[-1]) == (FinishReason.STOP, 2)


def test_min_and_max_tokens(runner: StructuredEngine) -> None:
    prompt = runner.prompt("Count.")
    letters = regex_grammar("[a-z ]*")
    long = alone(runner, job(prompt, letters, min_tokens=30, max_tokens=40))
    assert 30 < len(long.tokens) <= 40
    cut = alone(runner, job(prompt, letters, min_tokens=5, max_tokens=5))
    assert (len(cut.tokens), cut.finish) == (5, FinishReason.LENGTH)
    over = alone(runner, job(prompt, choice_grammar(["ok"]), min_tokens=30, max_tokens=40))
    assert (runner.text(over), over.finish) == ("ok", FinishReason.STOP), (
        "a complete answer ends all the same"
    )


def test_logprobs_are_of_the_distribution_before_the_mask(runner: StructuredEngine) -> None:
    prompt = runner.prompt("What is the capital of France?")
    free = alone(runner, job(prompt, "", max_tokens=1, logprobs=0))
    held = alone(runner, job(prompt, choice_grammar(["zzz"]), max_tokens=1, logprobs=0))
    assert free.logprobs[0] is not None and held.logprobs[0] is not None
    assert held.logprobs[0] < free.logprobs[0] < 0, "a forced token is unlikely, not certain"


def test_penalties_and_bias_choose_among_what_is_allowed(runner: StructuredEngine) -> None:
    prompt = runner.prompt("Say a or b.")
    (a,) = runner.tokenizer.encode_literal("a")
    (b,) = runner.tokenizer.encode_literal("b")
    (other,) = runner.tokenizer.encode_literal("c")
    grammar = regex_grammar("[ab]{20}")
    for wanted in (a, b):
        bias = tuple(sorted([(wanted, 100.0), (other, 100.0)]))
        answer = alone(runner, job(prompt, grammar, logit_bias=bias))
        assert answer.tokens == [wanted] * 20 + [2]
    varied = alone(runner, job(prompt, grammar, repetition_penalty=2.0, temperature=1.0))
    assert len(runner.text(varied)) == 20


def test_a_grammar_no_worker_can_follow_ends_its_job_and_no_other(runner: StructuredEngine) -> None:
    prompt = runner.prompt("Hello")
    good = job(prompt, choice_grammar(["hello"]), name="good")
    bad = job(prompt, "{", name="bad")
    stray = job(prompt, choice_grammar(["hello"]), name="stray", outputs=[list(prompt[:3])])
    free = job(prompt, "", name="free", max_tokens=2)
    runner.failed.clear()
    answers = runner.run([bad, good, stray, free])
    assert runner.text(answers[1][0]) == "hello"
    assert len(answers[3][0].tokens) == 2
    assert sorted(failed.key.request for failed in runner.failed) == ["bad", "stray"]
    assert all(failed.reason for failed in runner.failed)
    runner.failed.clear()
