"""What a worker's engine thread does when: steps and KV copies, one after the other, in the order asked."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from core.cost_model import StepCost, attended
from engine.plan import StepPlan, StepResult
from engine.timed_backend import TimedBackend
from sim.node import Node

COPY_BASE_US = 20
COPY_BYTES_PER_US = 4_000


@dataclass(frozen=True, slots=True)
class Work:
    duration_us: int
    run: Callable[[], None]
    """The effect and its report; happens when the duration is over, so that a late write is late."""


class EngineThread:
    """`slowness` multiplies every duration from the next work on."""

    def __init__(
        self,
        node: Node,
        backend: TimedBackend,
        cost: StepCost,
        touch: Callable[[tuple[int, ...]], None],
    ) -> None:
        """`touch` is told which blocks a copy reads or writes, when it does."""
        self._node, self._backend, self._cost, self._touch = node, backend, cost, touch
        self._queue: deque[Work] = deque()
        self._busy = False
        self.slowness = 1

    def step(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        context = sum(attended(row.start, row.start + len(row.tokens)) for row in plan.rows)
        duration_us = self._cost.step_us(plan.tokens, context) * self.slowness

        def run() -> None:
            done(msgspec.structs.replace(self._backend.execute(plan), elapsed_us=duration_us))

        self._put(Work(duration_us, run))

    def read(self, table: tuple[int, ...], start: int, stop: int, done: Callable[[bytes], None]) -> None:
        def run() -> None:
            self._touch(self._blocks(table, start, stop))
            done(self._backend.read_kv(table, start, stop))

        self._put(Work(self._copy_us(stop - start), run))

    def write(
        self,
        table: tuple[int, ...],
        start: int,
        stop: int,
        payload: memoryview,
        done: Callable[[bool], None],
    ) -> None:
        def run() -> None:
            self._touch(self._blocks(table, start, stop))
            self._backend.write_kv(table, start, stop, payload)
            done(True)

        self._put(Work(self._copy_us(stop - start), run))

    def _blocks(self, table: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
        size = self._backend.layout.block_size
        return table[start // size : -(-stop // size)]

    def _copy_us(self, tokens: int) -> int:
        size = tokens * self._backend.layout.bytes_per_token
        return (COPY_BASE_US + size // COPY_BYTES_PER_US) * self.slowness

    def _put(self, work: Work) -> None:
        self._queue.append(work)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            work = self._queue.popleft()
            self._node.soon(lambda: self._finish(work), work.duration_us)

    def _finish(self, work: Work) -> None:
        work.run()
        self._next()
