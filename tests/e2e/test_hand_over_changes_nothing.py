"""The fleet as it starts by itself: its sample answer; and 200 prompts that it hands over, and one without
prefill workers does not: the same first token, the same text, whatever runs beside each."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.grpc_client import Answer, Conversation
from tests.e2e.live_fleet import ROOMY, LiveFleet, eventually, running
from tests.reference import references

PROMPTS = 200
BLOCK = 16


@pytest.fixture(scope="module")
def default_fleet() -> Iterator[LiveFleet]:
    """No flags: bfloat16, disaggregated, pools of the size that each worker chooses."""
    with running() as fleet:
        yield fleet


def test_the_sample_answer_says_paris(default_fleet: LiveFleet) -> None:
    eventually(lambda: any("Paris" in line for line in list(default_fleet.lines)), 30, "the sample answer")


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    """Above 0 the seed is the prompt's number."""


def asked() -> list[Asked]:
    """Pieces of the references' texts of 1 to 90 tokens, a third of them after a beginning they share."""
    chance = random.Random(16)
    text = [token for case in references.own() for token in case["prompt_tokens"] + case["output_tokens"]]
    shared = [text[:40], text[300:350]]
    found = []
    for number in range(PROMPTS):
        start, length = chance.randrange(len(text) - 60), chance.randint(1, 50)
        before = chance.choice(shared) if number % 3 == 0 else []
        prompt = tuple(before + text[start : start + length])
        found.append(Asked(prompt, chance.randint(8, 12), 0.8 if number % 4 == 0 else 0.0))
    return found


async def answers(fleet: LiveFleet, order: list[int]) -> list[Answer]:
    """All at once, begun in this order; by number."""
    cases, got = asked(), {}
    async with Conversation(fleet.grpc) as talk:
        for number in order:
            one = cases[number]
            got[number] = await talk.start(
                str(number),
                one.prompt,
                max_tokens=one.max_tokens,
                temperature=one.temperature,
                seed=number,
                ignore_eos=True,
            )
        async with asyncio.timeout(120):
            await asyncio.gather(*(answer.ended.wait() for answer in got.values()))
    return [got[number] for number in range(PROMPTS)]


def prefilled_elsewhere(fleet: LiveFleet) -> int:
    """Blocks of prompts that the prefill workers keep for later."""
    return sum(int(worker["blocks_cached"]) for worker in fleet.workers("prefill"))


def whole_blocks() -> int:
    """Different ones, of all prompts."""
    prompts = [one.prompt for one in asked()]
    beginnings = [prompt[:end] for prompt in prompts for end in range(BLOCK, len(prompt) + 1, BLOCK)]
    return len(dict.fromkeys(beginnings))


def test_200_prompts_handed_over_and_colocated(default_fleet: LiveFleet) -> None:
    numbers = list(range(PROMPTS))
    before = prefilled_elsewhere(default_fleet)
    handed_over = asyncio.run(answers(default_fleet, numbers))
    assert prefilled_elsewhere(default_fleet) - before > whole_blocks() / 2, "most were handed over"
    with running(*ROOMY, "--no-sample", "--colocated") as fleet:
        colocated = asyncio.run(answers(fleet, random.Random(2).sample(numbers, PROMPTS)))
    for number, (there, here) in enumerate(zip(handed_over, colocated, strict=True)):
        assert there.error is None and here.error is None
        assert len(here.tokens) == asked()[number].max_tokens
        assert there.tokens[0] == here.tokens[0], number
        assert (there.tokens, there.text) == (here.tokens, here.text), number
