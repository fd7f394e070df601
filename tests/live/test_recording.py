"""A live fleet's decisions, recorded and made again."""

import asyncio
import random
from pathlib import Path
from typing import Any

from core.replay import replay
from sim.registry import FACTORIES
from tests.e2e.grpc_client import Conversation
from tests.e2e.live_fleet import eventually, running

REQUESTS = 200


async def mixed_requests(address: str) -> None:
    """Lengths, sampling, several choices, cancels; 40 at a time."""
    chance = random.Random(3)
    room = asyncio.Semaphore(40)

    async def one(talk: Conversation, number: int) -> None:
        async with room:
            prompt = [chance.randrange(3, 40_000) for _ in range(chance.choice([5, 40, 300]))]
            options: dict[str, Any] = chance.choice(
                [{}, {"temperature": 1.0, "seed": number}, {"n": 2, "temperature": 0.7}, {"logprobs": 2}]
            )
            name = str(number)
            answer = await talk.start(
                name, prompt, max_tokens=chance.choice([1, 2, 20, 60]), ignore_eos=True, **options
            )
            if chance.random() < 0.2:
                await talk.cancel_in_stream(name)
            await asyncio.wait_for(answer.ended.wait(), 120)

    async with Conversation(address) as talk:
        await asyncio.gather(*(one(talk, number) for number in range(REQUESTS)))


def test_200_mixed_requests_replay_to_identical_decisions(tmp_path: Path) -> None:
    with running("--no-sample", "--timed", "--kv-blocks", "256", "--record", str(tmp_path)) as fleet:
        asyncio.run(mixed_requests(fleet.grpc))
        eventually(fleet.nothing_held, 5, "nothing is held")
    files = sorted(tmp_path.glob("*.recording"))
    events: dict[str, int] = {}
    for file in files:
        found = replay(file.read_bytes(), FACTORIES)
        assert found.mismatches == (), f"{file.name}: {found.mismatches[:1]}"
        assert found.bytes_unread == 0
        events.update(dict.fromkeys(found.objects, found.events))
    for member in ("router-0", "prefill-0", "decode-0", "gateway-0"):
        assert events[member] > REQUESTS, events
