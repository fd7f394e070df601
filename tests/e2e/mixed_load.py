"""Everything that makes an engine's life hard, at once: what budgets and ledgers are held against."""

import asyncio
import json
from typing import Any

from engine.models.store import resolve
from proto import inference_pb2 as api
from tests.e2e.grpc_client import Answer, Conversation, until
from tests.e2e.live_fleet import MODEL
from text.tokenizer import Tokenizer

KV_BLOCKS = 136
HOST_PERCENT = 5
"""Some of the preempted fit beside the pool, the others are computed again."""
BRIEF, BRIEF_TOKENS = 20, 2
"""These come first, and have the router expect short answers ..."""
GROWING, GROWN_TOKENS = 24, 120
"""... so that these are all let in, and outgrow KV_BLOCKS together."""
LONG_TOKENS = (2_000, 700)
OTHERS = 3
"""Of each kind; as many again are cancelled in mid-stream, twice."""
SEEN_TOKENS = 3
"""Of those that are cancelled, before they are: then they decode."""
ENDS_WITHIN_S = 120
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
LINES = "".join(f"line {number}: the quick brown fox jumps over the lazy dog\n" for number in range(12))


async def run(address: str) -> list[Answer]:
    """Every answer, ended."""
    tokenizer = Tokenizer.open(resolve(MODEL).path)
    words = tokenizer.encode_literal("Tell me a long story about a lighthouse, a storm and a cat.")
    copied = tokenizer.encode_literal(f"{LINES}Repeat these lines exactly:\n{LINES[:120]}")
    shape = api.Structure(json_schema=json.dumps(SCHEMA))
    async with Conversation(address) as talk, asyncio.timeout(ENDS_WITHIN_S):

        async def start(kind: str, number: int, prompt: list[int], **options: Any) -> None:
            # The first tokens differ, so that no prefix cache saves the work.
            head = [2_000 + number, 3_000 + len(kind)]
            await talk.start(f"{kind} {number}", head + prompt, **options)

        for number in range(BRIEF):
            await start("brief", number, words, max_tokens=BRIEF_TOKENS, ignore_eos=True)
        await asyncio.gather(*(answer.ended.wait() for answer in talk.answers.values()))
        for number in range(GROWING):
            await start("growing", number, words, max_tokens=GROWN_TOKENS, ignore_eos=True)
        await _cancelled(talk, words, "early")
        for number, length in enumerate(LONG_TOKENS):
            await start("long", number, (words * length)[:length], max_tokens=8, ignore_eos=True)
        for number in range(OTHERS):
            await start("copied", number, copied, max_tokens=80, ignore_eos=True)
            await start("choices", number, words, n=4, max_tokens=40, temperature=1.0, ignore_eos=True)
            await start("shaped", number, words, max_tokens=60, structure=shape)
            await start("probable", number, words, max_tokens=40, temperature=0.8, top_p=0.9, logprobs=5)
        await _cancelled(talk, words, "late")
        await asyncio.gather(*(answer.ended.wait() for answer in talk.answers.values()))
        return list(talk.answers.values())


async def _cancelled(talk: Conversation, prompt: list[int], when: str) -> None:
    names = [f"doomed {when} {number}" for number in range(OTHERS)]
    doomed = [await talk.start(name, prompt, max_tokens=400, ignore_eos=True) for name in names]
    for name, answer in zip(names, doomed, strict=True):
        await until(lambda answer=answer: len(answer.tokens) > SEEN_TOKENS, ENDS_WITHIN_S, name)  # type: ignore[misc]
        await talk.cancel_in_stream(name)
