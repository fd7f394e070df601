"""A closed loop of streams on an OpenAI endpoint, with client clocks: python -m bench.load URL MODEL."""

import argparse
import asyncio
import json
import random
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import aiohttp
import uvloop

from baton.progress import ProgressLine
from bench.load_result import Answer, LoadResult, summarize

WORDS = (
    "amber anchor autumn basket beacon branch candle canyon carpet cedar circle cloud copper corner dawn "
    "desert drawer ember falcon feather forest fountain garden glacier hammer harvest island kettle ladder "
    "lantern meadow mirror mountain needle orchard pebble pocket quarry ribbon saddle shelter silver "
    "summer tailor thunder timber valley velvet village voyage willow winter"
)
VOCABULARY = tuple(WORDS.split())
TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0
BODY_SHOWN = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """What the clients ask; two loads of one shape are the same to the byte."""

    concurrency: int = 16
    """Streams at any time: each client sends its next request when its last one has ended."""
    requests: int = 64
    words: int = 120
    """Of each prompt; a word is 1 to 2 tokens."""
    shared: int = 0
    """How many of the words, from the first on, are the same in every prompt."""
    max_tokens: int = 64
    seed: str = "1"

    def bodies(self, model: str) -> Iterator[dict[str, Any]]:
        """Greedy, to the last token: every server has the same work."""
        rng = random.Random(self.seed)
        head = [VOCABULARY[index % len(VOCABULARY)] for index in range(self.shared)]
        for _ in range(self.requests):
            words = [*head, *(rng.choice(VOCABULARY) for _ in range(self.words - self.shared))]
            content = f"{' '.join(words)}. Tell a story with these words."
            yield {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": self.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }


class LoadError(Exception):
    """One clear line about why no load can run."""


def measure(
    url: str, model: str, shape: LoadShape, *, key: str = "none", ended: Callable[[int], None] | None = None
) -> LoadResult:
    """Run one load to its end. `ended` is told how many requests have ended, each time one does."""
    return run_clients(_load(url, model, shape, key, ended or (lambda count: None)))


def served_model(url: str, key: str = "none") -> str:
    """The first model that the endpoint lists; LoadError where none answers."""
    return run_clients(_served_model(url, key))


def endpoint(url: str) -> str:
    """The base that clients of OpenAI use: with /v1 and without a slash at its end."""
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def run_clients(work: Coroutine[Any, Any, T]) -> T:
    """On an event loop of their own."""
    # The clients share the machine with what they measure, so they should cost little.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def _served_model(url: str, key: str) -> str:
    async with open_session(key) as session:
        try:
            async with session.get(f"{endpoint(url)}/models") as response:
                listed = await response.json()
                return str(listed["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise LoadError(f"{url}: {error or type(error).__name__}") from None
        except (LookupError, TypeError, ValueError):
            raise LoadError(f"{url}: lists no model") from None


async def _load(url: str, model: str, shape: LoadShape, key: str, ended: Callable[[int], None]) -> LoadResult:
    bodies = shape.bodies(model)
    answers: list[Answer] = []

    async def client(session: aiohttp.ClientSession) -> None:
        for body in bodies:
            answers.append(await ask(session, url, body))
            ended(len(answers))

    async with open_session(key) as session:
        begun_s = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(shape.concurrency)))
        return summarize(answers, time.perf_counter() - begun_s)


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], answer: Answer | None = None
) -> Answer:
    """One stream to its end. `answer`: a new one to fill, for who wants to look at it meanwhile."""
    answer = answer or Answer(time.perf_counter())
    try:
        async with session.post(f"{endpoint(url)}/chat/completions", json=body) as response:
            if response.status != 200:
                answer.bad = f"status {response.status}: {(await response.text())[:BODY_SHOWN]}"
                return answer
            async for line in response.content:
                answer.feed(line, time.perf_counter())
        answer.end()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        answer.bad = f"{type(error).__name__}: {error}"[:BODY_SHOWN]
    return answer


def open_session(key: str) -> aiohttp.ClientSession:
    """Connections without a bound on their number."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),
    )


def count(text: str) -> int:
    """A number above 0, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def natural(text: str) -> int:
    """0 or above, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Fresh prompts each time: a peer that runs for longer has those of earlier loads in its prefix cache."""
    parser.add_argument("--seed", default=secrets.token_hex(4), help="of the prompts (default: drawn)")


def add_shape(parser: argparse.ArgumentParser, shape: LoadShape) -> None:
    """The flags that every bench with clients has."""
    add = parser.add_argument
    add("--words", type=count, default=shape.words, help="of each prompt (%(default)s)")
    add("--shared", type=natural, default=shape.shared, help="words that all prompts share (%(default)s)")
    add("--max-tokens", type=count, default=shape.max_tokens, help="of each answer (%(default)s)")
    add_seed(parser)
    add("--key", default="none", help="API key (%(default)s)")
    add("--json", action="store_true", help="one JSON object as the last line")


def shape_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> LoadShape:
    """What add_shape's flags ask for."""
    if options.shared > options.words:
        parser.error(f"argument --shared: {options.shared} of {options.words} words cannot be shared")
    return LoadShape(
        words=options.words, shared=options.shared, max_tokens=options.max_tokens, seed=options.seed
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    default = LoadShape()
    parser.add_argument("url", help="of the server, with or without /v1")
    parser.add_argument("model", help="its name there")
    parser.add_argument("--concurrency", type=count, default=default.concurrency, help="(%(default)s)")
    parser.add_argument("--requests", type=count, default=default.requests, help="(%(default)s)")
    add_shape(parser, default)
    options = parser.parse_args(argv)
    shape = replace(shape_of(parser, options), concurrency=options.concurrency, requests=options.requests)
    with ProgressLine() as progress:
        result = measure(
            options.url,
            options.model,
            shape,
            key=options.key,
            ended=lambda ended: progress.show("requests", ended / shape.requests),
        )
    for name, value in asdict(result).items():
        print(f"{name:<22}{value}")
    if options.json:
        print(json.dumps({"bench": "load", "shape": asdict(shape), **asdict(result)}))
    return 1 if result.bad else 0


if __name__ == "__main__":
    sys.exit(main())
