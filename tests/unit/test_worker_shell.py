"""A worker whose plain object failed in an event never serves on."""

import asyncio
from typing import Any

import pytest

from decode_worker.config import DecodeConfig
from decode_worker.decode_worker import DecodeWorker, build
from decode_worker.service import DecodeShell
from engine.plan import StepResult
from rpc.logs import Log, LogSettings
from rpc.service_main import Process
from worker.config import WorkerConfig
from worker.instance import host


class Exited(BaseException):
    """What stands for the end of the process."""


class Shell(DecodeShell):
    """Ends a test instead of its process."""

    def _exit(self) -> None:
        raise Exited


def made_shell(**told: Any) -> tuple[Shell, DecodeWorker]:
    config = WorkerConfig(id="home", backend="timed", model="fake", **told)
    hosted = host(config, "home", "a")
    worker = build(DecodeConfig(), hosted.key, hosted.engine, hosted.cost, 16)
    return Shell(config, hosted, worker, Process(Log(LogSettings()))), worker


def test_a_law_that_breaks_within_an_event_ends_the_process() -> None:
    async def run() -> None:
        shell, worker = made_shell()
        try:
            with pytest.raises(Exited):  # no step is outstanding
                shell.tell(worker.step_done, StepResult(1, (), 1))
        finally:
            shell.steps.close()

    asyncio.run(run())
