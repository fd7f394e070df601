"""Every connection inside the fleet breaks at once: all come back, and every answer is the exact one."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

from core.sampling import SamplingParams
from engine.fake_kv import expected_tokens
from tests.e2e.grpc_client import Answer, Conversation, until
from tests.e2e.live_fleet import LiveFleet, eventually, start
from tests.live.cut_proxy import CutProxy

LISTEN, ADVERTISE = "127.0.0.3", "127.0.0.2"
"""Loopback addresses nothing else uses: at the first a process listens, at the second a proxy before it."""
TIMING = "timed_step_us = 5000\ntimed_token_us = 100\n"
ROUNDS, REQUESTS, TOKENS = 2, 16, 100


@contextlib.asynccontextmanager
async def fleet_of_proxied_processes(folder: Path) -> AsyncIterator[tuple[LiveFleet, list[CutProxy]]]:
    """Gateway to router and home, home to prefill worker, workers to router: nothing goes past a proxy."""
    proxies, tables = [], ""
    for role, more in (("router", ""), ("decode", TIMING), ("prefill", TIMING)):
        proxy = CutProxy((LISTEN, 0))
        port = int((await proxy.open(ADVERTISE)).rpartition(":")[2])
        proxy.target = (LISTEN, port)
        proxies.append(proxy)
        tables += f'[{role}]\naddress = "{LISTEN}:{port}"\nadvertise_host = "{ADVERTISE}"\n{more}'
    config = folder / "baton.toml"
    config.write_text(tables)
    flags = ("--no-sample", "--timed", "--check-laws", "--config", str(config))
    fleet = await asyncio.to_thread(start, *flags)
    try:
        yield fleet, proxies
    finally:
        code = await asyncio.to_thread(fleet.stop)
        for proxy in proxies:
            await proxy.close()
    assert code == 0, fleet.said()
    assert "law_broken" not in fleet.said() and "stray_error" not in fleet.said(), fleet.said()


async def asked(talk: Conversation, name: str, prompt: list[int]) -> Answer:
    return await talk.start(name, prompt, max_tokens=TOKENS, ignore_eos=True)


def right(prompt: list[int]) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    return expected_tokens(tuple(prompt), params, 0, 0, TOKENS)


def unended(fleet: LiveFleet, answers: list[Answer]) -> str:
    """Which answers never ended, and where the fleet has them."""
    names = [(answer.request_id, len(answer.tokens)) for answer in answers if not answer.ended.is_set()]
    return f"{names} in {fleet.fleet()}; it said: {fleet.said()}"


async def test_all_connections_cut_in_mid_answer(tmp_path: Path) -> None:
    chance = random.Random(31)
    async with fleet_of_proxied_processes(tmp_path) as (fleet, proxies), Conversation(fleet.grpc) as talk:
        for turn in range(ROUNDS):
            # Some long, so that at any moment some are computed, some handed over and some decoding.
            prompts = [
                [chance.randrange(3, 30_000) for _ in range(chance.choice((40, 400, 2_000)))]
                for _ in range(REQUESTS)
            ]
            answers = [await asked(talk, f"{turn}.{n}", prompt) for n, prompt in enumerate(prompts)]
            await until(lambda: sum(a.began.is_set() for a in answers) >= 4, 60, "some decode")  # noqa: B023
            assert all(proxy.cut() > 0 for proxy in proxies), "each carried connections"
            prompts.append([chance.randrange(3, 30_000) for _ in range(300)])
            answers.append(await asked(talk, f"{turn}.next", prompts[-1]))
            waits = [asyncio.ensure_future(answer.ended.wait()) for answer in answers]
            _, late = await asyncio.wait(waits, timeout=60)
            assert not late, await asyncio.to_thread(unended, fleet, answers)
            assert [answer.error for answer in answers] == [None] * len(answers)
            assert [answer.tokens for answer in answers] == [right(prompt) for prompt in prompts]

        def nothing_held() -> bool:
            return fleet.nothing_held() and len(fleet.workers("decode") + fleet.workers("prefill")) == 2

        await asyncio.to_thread(eventually, nothing_held, 10.0, "nothing is held")
