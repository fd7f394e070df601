"""How a service's process begins and ends: its loop, its signals, its ready line and its exit code."""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
import uvloop

from core.parent_death import die_with_parent, kill_descendants
from rpc.errors import ServiceError
from rpc.logs import Log, LogSettings
from rpc.one_arena import use_one_arena

LAUNCHED_KEY = "BATON_LAUNCHED"
"""Environment variable of a launcher that reads our stdout: why we cannot serve goes there, for it to say."""
EXIT_OK = 0
EXIT_BUG = 1

Prepared = TypeVar("Prepared")


class Process:
    """What a service's main is handed: when to drain, where to log, how to say it is ready."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.draining = asyncio.Event()
        """Set by the first SIGINT or SIGTERM: finish what runs, then return."""

    def ready(self, role: str, id: str, address: str, **more: object) -> None:
        """Prints the ready line: one JSON object on stdout, flushed."""
        line = {"ready": role, "id": id, "address": address, "pid": os.getpid(), **more}
        sys.stdout.write(orjson.dumps(line).decode() + "\n")
        sys.stdout.flush()

    def drain(self) -> None:
        self.draining.set()

    async def prepare(self, work: Callable[[], Prepared]) -> Prepared:
        """What `work` makes, in a thread, before the first promise to anyone.

        A drain asked for meanwhile ends the process at once: the work may take minutes, and nobody needs it.
        """
        loop = asyncio.get_running_loop()
        working, draining = loop.create_task(asyncio.to_thread(work)), loop.create_task(self.draining.wait())
        await asyncio.wait([working, draining], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            kill_descendants()
            os._exit(EXIT_OK)
        draining.cancel()
        return await working


Main = Callable[[Process], Awaitable[None]]


def run_service(main: Main, *, logs: LogSettings | None = None, with_parent: bool = True) -> int:
    """Runs a service to its end and answers its exit code: 0 well, 1 a bug (with its trace), else the
    ServiceError's own, with one line on stderr. `with_parent` ties the process to its launcher's life.
    """
    if with_parent:
        die_with_parent()
    use_one_arena()
    log = Log(logs or LogSettings())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(main, log))
    except ServiceError as error:
        tell_failure(str(error), "error: ")
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return EXIT_BUG
    return EXIT_OK


def tell_failure(message: str, prefix: str) -> None:
    """Why this process cannot serve: one line on stderr, or the launcher's to say where there is one."""
    if os.environ.get(LAUNCHED_KEY):
        print(orjson.dumps({"failed": message}).decode(), flush=True)
    else:
        print(f"{prefix}{message}", file=sys.stderr, flush=True)


async def _run(main: Main, log: Log) -> None:
    process = Process(log)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _log_stray(log, context))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _drain_or_leave, process, number)
    await main(process)


def _drain_or_leave(process: Process, number: signal.Signals) -> None:
    if process.draining.is_set():
        # Who signals twice does not want to wait.
        os._exit(128 + number)
    process.log.info("drain_asked", signal=number.name)
    process.drain()


def _log_stray(log: Log, context: dict[str, Any]) -> None:
    """An error nobody awaited: a callback's or a forgotten task's."""
    error = context.get("exception")
    trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
    log.error("stray_error", message=context.get("message", ""), error=repr(error), trace=trace)
