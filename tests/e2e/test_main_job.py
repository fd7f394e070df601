"""The main job: a real model through disaggregated prefill and decode, token for token."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.grpc_client import Conversation
from tests.e2e.live_fleet import ROOMY, LiveFleet, running
from tests.reference import references

References = Callable[[], list[dict[str, Any]]]
BOTH = pytest.mark.parametrize("load", [references.own, references.beside], ids=["own", "beside"])


async def answer_all(address: str, cases: list[dict[str, Any]], *, at_once: bool) -> list[list[int]]:
    async with Conversation(address) as talk:
        answers = []
        for number, case in enumerate(cases):
            answer = await talk.start(
                str(number), case["prompt_tokens"], max_tokens=len(case["output_tokens"])
            )
            answers.append(answer)
            if not at_once:
                await asyncio.wait_for(answer.ended.wait(), 60)
        for answer in answers:
            await asyncio.wait_for(answer.ended.wait(), 120)
            assert answer.error is None
        return [answer.tokens for answer in answers]


@BOTH
@pytest.mark.parametrize("at_once", [False, True], ids=["alone", "together"])
async def test_disaggregated_equals_transformers(
    exact_fleet: LiveFleet, load: References, at_once: bool
) -> None:
    cases = load()
    assert await answer_all(exact_fleet.grpc, cases, at_once=at_once) == [c["output_tokens"] for c in cases]


def test_colocated_equals_transformers() -> None:
    with running(*ROOMY, "--no-sample", "--dtype", "float32", "--colocated", "--check-laws") as fleet:
        for load in (references.own, references.beside):
            cases = load()
            expected = [case["output_tokens"] for case in cases]
            for at_once in (False, True):
                assert asyncio.run(answer_all(fleet.grpc, cases, at_once=at_once)) == expected
