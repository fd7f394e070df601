"""More work than memory: everything finishes, and the laws hold at every step."""

import asyncio

from tests.e2e.grpc_client import Conversation
from tests.e2e.live_fleet import eventually, running
from tests.reference import references

REQUESTS, TOKENS = 64, 200


async def flood(address: str) -> list[list[int]]:
    cases = references.own()
    async with Conversation(address) as talk:
        answers = [
            await talk.start(
                str(number), cases[number % len(cases)]["prompt_tokens"], max_tokens=TOKENS, ignore_eos=True
            )
            for number in range(REQUESTS)
        ]
        async with asyncio.timeout(400):
            await asyncio.gather(*(answer.ended.wait() for answer in answers))
        assert [answer.error for answer in answers] == [None] * REQUESTS
        return [answer.tokens for answer in answers]


def test_64_requests_of_200_tokens_in_64_blocks() -> None:
    with running("--no-sample", "--kv-blocks", "64", "--check-laws") as fleet:
        answers = asyncio.run(flood(fleet.grpc))
        eventually(fleet.nothing_held, 5, "nothing is held")
    assert [len(tokens) for tokens in answers] == [TOKENS] * REQUESTS
    cases = len(references.own())
    # The same prompt, whoever was preempted when: the same answer.
    assert all(answers[number] == answers[number % cases] for number in range(REQUESTS))
