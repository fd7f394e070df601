"""A prefill worker's compute and nothing else of it, on one core: python -m bench.stand_in.

It draws from memory what the prefill worker draws, because it runs the same kernels over the same number of
prompt tokens in the same chunks, as often per second: it computes a prompt, packs its KV as for a hand-off,
rests until the next is due. Nothing of it reaches the fleet, so what a decode worker on another core loses
beside it, it loses to the shared memory (and to whatever else the cores of this machine share), and not to
how Baton hands work over.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import count
from core.parent_death import child_environment, die_with_parent
from core.sampling import SamplingParams
from engine.plan import Row, SampleSpec, StepPlan
from worker.config import WorkerConfig

ROOT = Path(__file__).parent.parent
BEGUN = "begun"
START_TIMEOUT_S = 120.0


class StandInError(Exception):
    """One clear line about why there is no stand-in."""


@dataclass(slots=True)
class StandIn:
    """One that runs."""

    process: "subprocess.Popen[str]"
    begun: threading.Event = field(default_factory=threading.Event)
    prompts_s: list[float] = field(default_factory=list)
    """Seconds that each prompt took, in order."""
    last_line: str = ""

    def read(self) -> None:
        """Follow what it says to its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last_line = line.strip()
            if self.last_line == BEGUN:
                self.begun.set()
            elif self.begun.is_set():
                self.prompts_s.append(float(self.last_line))
        self.begun.set()


@contextlib.contextmanager
def running(core: int, model: str, dtype: str, tokens: int, interval_s: float) -> Iterator[StandIn]:
    """One for as long as the block; it computes already. `interval_s`: from one prompt to the next."""
    command = [
        sys.executable,
        "-m",
        "bench.stand_in",
        "--core",
        str(core),
        "--model",
        model,
        "--dtype",
        dtype,
    ]
    process = subprocess.Popen(
        [*command, "--tokens", str(tokens), "--interval", str(interval_s)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
    )
    found = StandIn(process)
    reader = threading.Thread(target=found.read, daemon=True)
    reader.start()
    try:
        found.begun.wait(START_TIMEOUT_S)
        if process.poll() is not None or not found.begun.is_set():
            raise StandInError(f"the stand-in does not run: {found.last_line}")
        yield found
    finally:
        process.terminate()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    die_with_parent()
    os.sched_setaffinity(0, {options.core})
    from worker.instance import host  # it counts the cores that it may use

    blocks = -(-options.tokens // WorkerConfig().block_size) + 1
    config = WorkerConfig(model=options.model, dtype=options.dtype, kv_blocks=blocks, host_kv_percent=0)
    backend = host(config, "stand-in", "1").backend
    plans = _chunks(options.tokens, blocks, config)
    print(BEGUN, flush=True)
    due_s = time.perf_counter()
    while True:
        begun_s = time.perf_counter()
        for plan in plans:
            backend.execute(plan)
            row = plan.rows[0]
            backend.read_kv(row.block_table, row.start, row.start + len(row.tokens))
        ended_s = time.perf_counter()
        print(f"{ended_s - begun_s:.4f}", flush=True)
        due_s = max(due_s + options.interval, ended_s)
        time.sleep(due_s - ended_s)


def _chunks(tokens: int, blocks: int, config: WorkerConfig) -> list[StepPlan]:
    """The last one draws the first token."""
    table = tuple(range(blocks))
    plans = []
    for start in range(0, tokens, config.max_step_tokens):
        stop = min(tokens, start + config.max_step_tokens)
        last = SampleSpec(0, SamplingParams(temperature=0.0), 1, stop, 0)
        fed = tuple(100 + position % 1_000 for position in range(start, stop))
        plans.append(
            StepPlan(0, (), (), (Row(0, fed, start, table, (last,) if stop == tokens else ()),)),
        )
    return plans


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.stand_in", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--core", type=int, required=True, help="the one it runs on")
    add("--model", default=WorkerConfig().model)
    add("--dtype", default="bfloat16")
    add("--tokens", type=count, default=2_000, help="of each prompt (%(default)s)")
    add("--interval", type=float, default=0.0, help="seconds from one prompt to the next; 0: no rest")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
