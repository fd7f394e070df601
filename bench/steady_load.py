"""Streams that decode while something disturbs them: their inter-token latencies, with client clocks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import aiohttp

from bench.load import LoadError, LoadShape, ask, open_session, run_clients
from bench.load_result import Answer
from bench.percentiles import percentile

WARM_CHUNKS = 20
"""Of text, that every stream has got before the window begins."""
WARM_TIMEOUT_S = 120.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyShape:
    """Streams, and the prompts that arrive one after another while they decode."""

    streams: int = 8
    stream_words: int = 120
    stream_tokens: int = 4_000
    """Enough to outlast the window; a stream that ends is followed by another."""
    prompts: int = 10
    words: int = 1_890
    """Of each of the prompts: 2,000 tokens of the default model."""
    prompt_answer_tokens: int = 2
    seed: str = "1"

    def streams_shape(self) -> LoadShape:
        return LoadShape(
            requests=1_000_000,
            words=self.stream_words,
            max_tokens=self.stream_tokens,
            seed=f"{self.seed}/streams",
        )

    def prompts_shape(self) -> LoadShape:
        return LoadShape(
            requests=self.prompts,
            words=self.words,
            max_tokens=self.prompt_answer_tokens,
            seed=f"{self.seed}/prompts",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyResult:
    """What the streams saw in one window."""

    window_s: float
    prompts: int
    """That were answered in the window."""
    prompt_tokens: float | None
    """Of one, on average; None where the server does not say."""
    itls: int
    """Gaps between chunks of text that began in the window."""
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_max_ms: float | None
    bad: int
    bad_sample: tuple[str, ...]


Window = Callable[[aiohttp.ClientSession], Awaitable[list[Answer]]]
"""What happens while the streams are watched; the answers to what it asked."""


def with_prompts(url: str, model: str, shape: SteadyShape, key: str = "none") -> SteadyResult:
    """The prompts arrive, each when the one before is answered."""

    async def prompts(session: aiohttp.ClientSession) -> list[Answer]:
        return [await ask(session, url, body) for body in shape.prompts_shape().bodies(model)]

    return run_clients(_measure(url, model, shape, key, prompts))


def without_prompts(
    url: str, model: str, shape: SteadyShape, window_s: float, key: str = "none"
) -> SteadyResult:
    """The streams alone, for as long."""

    async def quiet(session: aiohttp.ClientSession) -> list[Answer]:
        await asyncio.sleep(window_s)
        return []

    return run_clients(_measure(url, model, shape, key, quiet))


async def _measure(url: str, model: str, shape: SteadyShape, key: str, window: Window) -> SteadyResult:
    streams: list[Answer] = []
    bodies = shape.streams_shape().bodies(model)

    async def stream(session: aiohttp.ClientSession) -> None:
        for body in bodies:
            answer = Answer(time.perf_counter())
            streams.append(answer)
            await ask(session, url, body, answer)

    async with open_session(key) as session:
        clients = [asyncio.create_task(stream(session)) for _ in range(shape.streams)]
        try:
            await _warm(streams, shape.streams)
            begun_s = time.perf_counter()
            asked = await window(session)
            ended_s = time.perf_counter()
        finally:
            for client in clients:
                client.cancel()
            for client in clients:
                with suppress(asyncio.CancelledError):
                    await client
    return _summarize(streams, asked, begun_s, ended_s)


async def _warm(streams: Sequence[Answer], count: int) -> None:
    """LoadError where the streams do not come."""
    deadline_s = time.perf_counter() + WARM_TIMEOUT_S
    while sum(len(answer.arrivals_s) >= WARM_CHUNKS for answer in streams) < count:
        if reasons := [answer.bad for answer in streams if answer.bad]:
            raise LoadError(reasons[0])
        if time.perf_counter() > deadline_s:
            raise LoadError(f"{count} streams did not decode within {WARM_TIMEOUT_S:.0f} s")
        await asyncio.sleep(POLL_S)


def _summarize(
    streams: Sequence[Answer], asked: Sequence[Answer], begun_s: float, ended_s: float
) -> SteadyResult:
    """A gap counts where it began; one that the window's end cut off has no end, and does not."""
    gaps_ms = [
        (after - before) * 1e3
        for answer in streams
        for before, after in pairwise(answer.arrivals_s)
        if begun_s <= before <= ended_s
    ]
    reasons = [answer.bad for answer in (*streams, *asked) if answer.bad]
    tokens = [answer.prompt_tokens for answer in asked if answer.prompt_tokens]
    return SteadyResult(
        window_s=round(ended_s - begun_s, 3),
        prompts=sum(not answer.bad for answer in asked),
        prompt_tokens=round(fmean(tokens), 1) if tokens else None,
        itls=len(gaps_ms),
        itl_p50_ms=_rounded(percentile(gaps_ms, 50)),
        itl_p95_ms=_rounded(percentile(gaps_ms, 95)),
        itl_max_ms=_rounded(max(gaps_ms, default=None)),
        bad=len(reasons),
        bad_sample=tuple(dict.fromkeys(reasons))[:3],
    )


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)
