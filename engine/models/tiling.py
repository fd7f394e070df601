"""Which fixed-shape pieces a step's arithmetic is cut into, and which thread runs each.

Matrix libraries choose their order of summation by the shape of the call, the number of threads and
the alignment of the data. So every operation here has one shape whatever the batch, runs on one
thread, and only its place in the list changes: a token's bits cannot depend on its company.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Task = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The fixed shapes; two engines agree bit for bit only if these agree."""

    linear_rows: int
    """Tokens per matrix product; a smaller batch is padded."""
    linear_columns: int
    """Output features per matrix product, about."""
    attention_rows: int
    """Tokens of one sequence that attend together."""
    attention_units: int
    """Groups of attention_rows per batched product; sequences mix here."""
    attention_keys: int
    """Keys per softmax tile."""


CPU_TILING = Tiling(
    linear_rows=16, linear_columns=512, attention_rows=4, attention_units=4, attention_keys=64
)
CUDA_TILING = Tiling(
    linear_rows=256, linear_columns=1 << 20, attention_rows=8, attention_units=64, attention_keys=256
)


class Workers:
    """Runs the tasks of one stage on a fixed number of threads and waits for all of them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "tile", _one_thread_inside) if threads > 1 else None

    def run(self, tasks: Sequence[Task]) -> None:
        """Which thread runs a task never changes what the task computes."""
        if self._pool is None or len(tasks) == 1:
            return _run_all(tasks)
        shares = [tasks[first :: self._threads] for first in range(min(self._threads, len(tasks)))]
        futures = [self._pool.submit(_run_all, share) for share in shares[1:]]
        _run_all(shares[0])
        for future in futures:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


@contextmanager
def one_thread_inside() -> Iterator[None]:
    """Within, torch and its libraries use one thread per call; afterwards as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(threads)


def _one_thread_inside() -> None:
    torch.set_num_threads(1)


def _run_all(tasks: Sequence[Task]) -> None:
    with torch.inference_mode():
        for task in tasks:
            task()


def split_columns(columns: int, tiling: Tiling) -> list[tuple[int, int]]:
    """Equal pieces [first, last) of an output dimension, a function of its size alone."""
    pieces = -(-columns // tiling.linear_columns)
    width = -(-columns // pieces // 16) * 16
    return [(first, min(first + width, columns)) for first in range(0, columns, width)]
