"""A worker or a router is killed in mid-stream: the text goes on exactly; with nobody left, a clear error."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psutil
import pytest

from proto import inference_pb2 as api
from tests.e2e.grpc_client import Answer, Conversation, until
from tests.e2e.live_fleet import ROOMY, LiveFleet, eventually, running
from tests.reference import references

LONG = 160
HELD = api.Structure(regex="([a-z]{1,9} ){200}")
HELD_CASES = (4, 5)
"""Of long_cases, those whose answers follow HELD, which cannot end within LONG tokens."""


@pytest.fixture(scope="module")
def pair_fleet() -> Iterator[LiveFleet]:
    """Two decode workers, one prefill worker, one router."""
    with running(*ROOMY, "--no-sample", "--dtype", "float32", "--decode", "2", "--check-laws") as fleet:
        yield fleet


@pytest.fixture(scope="module")
def expected(pair_fleet: LiveFleet) -> list[list[int]]:
    """What the answers are when nobody dies."""
    return asyncio.run(undisturbed(pair_fleet))


def long_cases() -> list[dict[str, Any]]:
    return references.own()[:6]


async def undisturbed(fleet: LiveFleet) -> list[list[int]]:
    """The reference's tokens, and what follows them."""
    async with long_streams(fleet) as answers:
        await all_ended(answers)
        for number, (case, answer) in enumerate(zip(long_cases(), answers, strict=True)):
            reference = case["output_tokens"]
            assert answer.error is None, answer.error
            if number in HELD_CASES:
                assert re.fullmatch("[a-z ]+", answer.text), answer.text
                continue
            shared = min(len(reference), LONG)
            assert answer.tokens[:shared] == reference[:shared]
        return [answer.tokens for answer in answers]


@contextlib.asynccontextmanager
async def long_streams(fleet: LiveFleet) -> AsyncIterator[list[Answer]]:
    async with Conversation(fleet.grpc) as talk:
        answers = [
            await talk.start(
                str(n),
                case["prompt_tokens"],
                max_tokens=LONG,
                ignore_eos=True,
                structure=HELD if n in HELD_CASES else None,
            )
            for n, case in enumerate(long_cases())
        ]
        yield answers


async def all_ended(answers: list[Answer]) -> None:
    async with asyncio.timeout(300):
        await asyncio.gather(*(answer.ended.wait() for answer in answers))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def busiest(fleet: LiveFleet, role: str) -> int:
    workers = sorted(fleet.workers(role), key=lambda w: (-(w["running"] + w["transferring"]), w["id"]))
    return int(workers[0]["pid"])


def pid_of_router(fleet: LiveFleet) -> int:
    """The launcher's child that runs the router."""
    children = psutil.Process(fleet.process.pid).children()
    return next(child.pid for child in children if "router" in child.cmdline())


VICTIMS: dict[str, Callable[[LiveFleet], int]] = {
    "decode": lambda fleet: busiest(fleet, "decode"),
    "prefill": lambda fleet: busiest(fleet, "prefill"),
    "router": pid_of_router,
}


@pytest.mark.parametrize("victim", list(VICTIMS))
async def test_every_stream_continues_with_the_exact_text(
    pair_fleet: LiveFleet, expected: list[list[int]], victim: str
) -> None:
    await asyncio.to_thread(whole_again, pair_fleet)
    async with long_streams(pair_fleet) as answers:
        if victim != "prefill":  # a prefill worker is of use only before the first token
            await until(lambda: sum(len(a.tokens) > 8 for a in answers) > 3, 60, "streams are under way")
        kill(await asyncio.to_thread(VICTIMS[victim], pair_fleet))
        await all_ended(answers)
        assert [answer.error for answer in answers] == [None] * len(answers)
        assert [answer.tokens for answer in answers] == expected
    await asyncio.to_thread(eventually, pair_fleet.nothing_held, 10.0, "nothing is held")


def whole_again(fleet: LiveFleet) -> None:
    """The supervisor has restarted whoever died before."""
    eventually(
        lambda: len(fleet.fleet()["workers"]) == 3 and fleet.nothing_held(), 120, "three workers again"
    )


async def test_with_no_decode_worker_left_errors_are_clear_and_service_returns(pair_fleet: LiveFleet) -> None:
    await asyncio.to_thread(whole_again, pair_fleet)
    async with long_streams(pair_fleet) as answers:
        await until(lambda: all(len(a.tokens) > 4 for a in answers), 60, "streams are under way")
        for worker in pair_fleet.workers("decode"):
            kill(worker["pid"])
        await all_ended(answers)
    for answer in answers:
        # Either the restarted workers finished it, or it says that it ended and may be retried.
        if answer.error is not None:
            assert answer.error.reason in ("worker_lost", "no_worker"), answer.error
            assert answer.error.retry_after_ms > 0
            assert answer.error.code == 14
        else:
            assert len(answer.tokens) == LONG
    await asyncio.to_thread(whole_again, pair_fleet)
    case = references.own()[0]
    async with Conversation(pair_fleet.grpc) as talk:
        answer = await talk.start("after", case["prompt_tokens"])
        await asyncio.wait_for(answer.ended.wait(), 60)
        assert answer.tokens == case["output_tokens"]
        assert isinstance(answer.finished, api.Finished)
