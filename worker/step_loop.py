"""Where a worker's compute happens: one engine thread, fed from the event loop, never blocking it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from engine.plan import Backend, StepPlan, StepResult

Answer = TypeVar("Answer")


class StepLoop:
    """Runs steps and KV copies on the backend in the order asked, and posts what came of each to the loop.

    The order is the safety: a read or write asked before a step happens before it, so a block is never
    written while a step that was planned earlier reads it.
    """

    def __init__(
        self,
        backend: Backend,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException], None],
        *,
        paced: bool = False,
    ) -> None:
        """`paced`: the backend answers at once, and its steps' elapsed time is waited out here."""
        self._backend = backend
        self._loop = loop
        self._failed = failed
        self._paced = paced
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")

    def step(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        self._run(lambda: self._execute(plan), done)

    def read(self, table: tuple[int, ...], start: int, stop: int, done: Callable[[bytes], None]) -> None:
        self._run(lambda: self._backend.read_kv(table, start, stop), done)

    def write(
        self,
        table: tuple[int, ...],
        start: int,
        stop: int,
        payload: bytes | memoryview,
        done: Callable[[bool], None],
    ) -> None:
        """`done(False)` where the payload does not fit the range."""
        self._run(lambda: self._write(table, start, stop, payload), done)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._backend.close()

    def _execute(self, plan: StepPlan) -> StepResult:
        result = self._backend.execute(plan)
        if self._paced:
            time.sleep(result.elapsed_us / 1e6)
        return result

    def _write(self, table: tuple[int, ...], start: int, stop: int, payload: bytes | memoryview) -> bool:
        try:
            self._backend.write_kv(table, start, stop, payload)
        except ValueError:
            return False
        return True

    def _run(self, work: Callable[[], Answer], done: Callable[[Answer], None]) -> None:
        def post(future: Future[Answer]) -> None:
            if future.cancelled() or self._loop.is_closed():
                return
            error = future.exception()
            if error is not None:
                self._loop.call_soon_threadsafe(self._failed, error)
            else:
                self._loop.call_soon_threadsafe(done, future.result())

        self._thread.submit(work).add_done_callback(post)
