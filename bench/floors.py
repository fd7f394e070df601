"""How near the engine alone comes to what the machine allows."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class FloorsError(Exception):
    """One clear line about why floors cannot be measured."""


@dataclass(frozen=True, slots=True)
class Floor:
    """One step of the engine, without fleet or network around it."""

    step: str
    floor_ms: float
    """Decode: weight bytes / measured read bandwidth. Prefill: FLOPs / measured peak."""
    measured_ms: float
    fraction: float
    """floor_ms / measured_ms."""


@dataclass(frozen=True, slots=True)
class Floors:
    """What `bench.kernels` measures, of which the first decode and prefill step are judged."""

    read_bytes_per_s: float
    flops: float
    steps: tuple[Floor, ...]
    decode_fraction: float
    """Of one sequence."""
    prefill_fraction: float
    """Of a prompt of 155 tokens."""

    @property
    def decode_floor_ms(self) -> float:
        return self.steps[0].floor_ms


def measure(model: str, dtype: str, say: Callable[[str], None]) -> Floors:
    """Runs `bench.kernels` in a process of its own, so that its memory is free again for the fleets."""
    command = [sys.executable, "-m", "bench.kernels", "--model", model, "--dtype", dtype, "--json"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            if last:
                say(last)
            last = line.rstrip("\n")
    if process.returncode:
        raise FloorsError(f"floors: {last}")
    return parse(json.loads(last))


def parse(found: dict[str, Any]) -> Floors:
    """From the object that `bench.kernels --json` prints last."""
    return Floors(
        read_bytes_per_s=found["roofs"]["read_bytes_per_s"],
        flops=found["roofs"]["flops"],
        steps=tuple(
            Floor(step["name"], step["floor_milliseconds"], step["milliseconds"], step["fraction"])
            for step in found["steps"]
        ),
        decode_fraction=found["decode_fraction_of_memory_floor"],
        prefill_fraction=found["prefill_155_fraction_of_peak_flops"],
    )
