"""Whether every finished answer is what its schema allows, on a real model, greedy and sampled."""

import json

import jsonschema
import pytest

from core.outcomes import FinishReason
from tests.model.structured_engine import job, structured_engine
from tests.reference.random_schemas import random_schema
from text.grammar import json_schema_grammar

TOGETHER = 25


def test_answers_to_random_schemas_are_valid() -> None:
    check(TOGETHER)


@pytest.mark.soak
def test_answers_to_200_random_schemas_are_valid() -> None:
    check(200)


def check(schemas_count: int) -> None:
    finished = 0
    with structured_engine() as runner:
        for first in range(0, schemas_count, TOGETHER):
            numbers = range(first, first + TOGETHER)
            schemas = [random_schema(number) for number in numbers]
            jobs = [
                job(
                    runner.prompt(f"Invent one example of this, as JSON: {json.dumps(schema)[:400]}"),
                    json_schema_grammar(schema, strict=True),
                    name=str(number),
                    seed=number,
                    temperature=(0.0, 0.7, 1.3)[number % 3],
                    max_tokens=160,
                )
                for number, schema in zip(numbers, schemas, strict=True)
            ]
            for schema, (answer,) in zip(schemas, runner.run(jobs), strict=True):
                if answer.finish is FinishReason.STOP:
                    finished += 1
                    jsonschema.validate(json.loads(runner.text(answer)), schema)
        assert not runner.failed
        cost = runner.mask_cost
        print(
            f"{finished} of {schemas_count} finished; {cost.masks} masks in {runner.steps} steps, "
            f"{cost.compute_us / cost.masks:.0f} us each, {cost.compile_us / 1e3:.0f} ms of compiling, "
            f"{cost.waited_us / cost.masks:.0f} us of it waited; "
            f"{cost.waited_us / runner.step_us:.1%} of {runner.step_us / 1e6:.1f} s of steps"
        )
    assert finished >= 0.9 * schemas_count, "too few answers ended for the test to mean anything"
