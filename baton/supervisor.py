"""Keeps a set of child processes running until told to stop them, in order."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.restarts import RestartPolicy
from core.parent_death import PARENT_KEY
from rpc.clock import now_us
from rpc.service_main import LAUNCHED_KEY

STOP_GRACE_S = 40.0
"""Longer than any service takes to drain: the gateway gives its clients 30 s."""


@dataclass(slots=True)
class Child:
    """One supervised process; a JSON line on its standard output says that it serves, or why it cannot."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    process: asyncio.subprocess.Process | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while `process` is about to be another."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    announced: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    """Why it could not serve, in its own words."""


class StartFailed(Exception):
    """A child ended before it ever served, or none in time; one line that says why."""


class Supervisor:
    """Starts children, restarts the dead with back-off, and stops them in the order given."""

    def __init__(self, say: Callable[[str], None], stop_grace_s: float = STOP_GRACE_S) -> None:
        self._say = say
        self._stop_grace_s = stop_grace_s
        self._children: list[Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._failed: asyncio.Future[str] | None = None

    @property
    def children(self) -> tuple[Child, ...]:
        return tuple(self._children)

    def add(self, child: Child) -> None:
        """Start it and keep it running from now on."""
        self._children.append(child)
        self._tasks.append(asyncio.create_task(self._keep(child), name=child.name))

    async def all_ready(self, timeout_s: float) -> None:
        """Wait for every ready line. Raises StartFailed when one dies first or the time is over."""
        waiting = [asyncio.create_task(child.ready.wait()) for child in self._children]
        self._failed = asyncio.get_running_loop().create_future()
        everyone = asyncio.ensure_future(asyncio.gather(*waiting))
        try:
            both: list[asyncio.Future[Any]] = [everyone, self._failed]
            await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise StartFailed(self._failed.result())
            if not everyone.done():
                late = ", ".join(child.name for child in self._children if not child.ready.is_set())
                raise StartFailed(f"not serving after {timeout_s:.0f} s: {late}")
        finally:
            everyone.cancel()
            self._failed = None
            with contextlib.suppress(asyncio.CancelledError):
                await everyone

    async def stop(self, order: Callable[[Child], int]) -> tuple[str, ...]:
        """Drain: SIGTERM rank by rank, waiting for each rank to end before the next.

        Answers the names of those that did not end within their grace and were killed.
        """
        self._stopping = True
        killed: list[str] = []
        for rank in sorted({order(child) for child in self._children}):
            group = [child for child in self._children if order(child) == rank]
            ended = await asyncio.gather(*(self._end(child) for child in group))
            killed += [child.name for child, by_itself in zip(group, ended, strict=True) if not by_itself]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return tuple(killed)

    def kill(self) -> None:
        """End everything at once."""
        self._stopping = True
        for child in self._children:
            if child.process is not None and child.process.returncode is None:
                child.process.kill()

    async def _end(self, child: Child) -> bool:
        """Whether it ended by itself."""
        async with child.starting:
            process = child.process
        if process is None or process.returncode is not None:
            return True
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._stop_grace_s)
        except TimeoutError:
            self._say(f"error: {child.name} did not stop within {self._stop_grace_s:g} s and was killed")
            process.kill()
            await process.wait()
            return False
        return True

    async def _keep(self, child: Child) -> None:
        while await self._start(child):
            assert child.process is not None
            child.policy.started(now_us())
            child.failure = ""
            await self._read(child)
            code = await child.process.wait()
            if self._stopping:
                return
            died_ready = child.ready.is_set()
            child.ready.clear()
            await self._died(child, code, died_ready)

    async def _start(self, child: Child) -> bool:
        """False where all are being stopped: then there is none to start, or to overlook."""
        async with child.starting:
            if self._stopping:
                return False
            child.process = await asyncio.create_subprocess_exec(
                *child.command,
                stdout=asyncio.subprocess.PIPE,
                stdin=asyncio.subprocess.DEVNULL,
                env=dict(child.environment) | {PARENT_KEY: str(os.getpid()), LAUNCHED_KEY: "1"},
                # Ctrl-C in the terminal is for the launcher, which stops the rest in order.
                start_new_session=True,
            )
            return True

    async def _read(self, child: Child) -> None:
        """Follow the child's output to its end: JSON lines are for us, the rest goes to standard error."""
        assert child.process is not None
        assert child.process.stdout is not None
        async for line in child.process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                sys.stderr.buffer.write(line)
                continue
            if "failed" in told:
                child.failure = str(told["failed"])
                continue
            child.announced = told
            child.ready.set()

    async def _died(self, child: Child, code: int, was_ready: bool) -> None:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        if child.failure:
            how = f"{how}: {child.failure}"
        if not was_ready and self._failed is not None and not self._failed.done():
            why = child.failure or f"ended before it served ({how})"
            self._failed.set_result(f"{child.name}: {why}")
            return
        restart = child.policy.died(now_us())
        wait_s = max(0, restart.at_us - now_us()) / 1e6
        if restart.crash_loop:
            self._say(f"{child.name} is in a crash loop: {restart.deaths} deaths in a row, the last by {how}")
        elif restart.deaths == 1:
            self._say(f"{child.name} died ({how}); restarting in {wait_s:.1f} s")
        await asyncio.sleep(wait_s)
