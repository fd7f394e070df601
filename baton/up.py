"""Runs a whole fleet on one machine until told to stop."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from baton.chat import ChatError, print_answer
from baton.fleet_plan import STOP_ORDER, Planned, ServedModel, UpOptions, plan_fleet
from baton.ports import PortBusy, SharedPort
from baton.progress import ProgressLine
from baton.stop_signals import Reaction, StopSignals
from baton.supervisor import Child, StartFailed, Supervisor
from capacity.embedded import EmbeddedServer, EmbeddedServerError, check_store, start_embedded
from engine.models.config import ModelConfig
from rpc.clock import now_us

HOST = "127.0.0.1"
READY_TIMEOUT_S = 180.0
SAMPLE_QUESTION = "What is the capital of France?"


class UpError(Exception):
    """One clear line about why the fleet cannot run."""


def say(line: str) -> None:
    print(f"baton: {line}", file=sys.stderr, flush=True)


def up(
    options: UpOptions,
    *,
    http_port: int,
    grpc_port: int,
    redis_url: str,
    sample: bool,
    sample_key: str = "none",
) -> int:
    """Start everything, print READY, serve until SIGINT or SIGTERM.

    Answers the exit code: 1 where it could not start, or where something did not drain and was killed.
    """
    ports: list[SharedPort] = []
    store: EmbeddedServer | None = None
    try:
        ports += [SharedPort(HOST, http_port), SharedPort(HOST, grpc_port)]
        model = prepare(options)
        if redis_url:
            check_store(redis_url)
        else:
            store = start_embedded()
        planned = plan_fleet(
            options,
            model,
            http_port=ports[0].port,
            grpc_port=ports[1].port,
            redis_url=redis_url or (store.url if store else ""),
        )
        leave = store.stop if store is not None else None
        return asyncio.run(_serve(planned, ports[0].port, ports[1].port, sample, leave))
    except (PortBusy, EmbeddedServerError, UpError, StartFailed) as error:
        say(f"error: {error}")
        return 1
    finally:
        if store is not None:
            store.stop()
        for port in ports:
            port.close()


def prepare(options: UpOptions) -> ServedModel:
    """Find the model, convert it and build the kernels where that was not done yet, with progress shown."""
    from engine.models.checkpoint import load_config
    from engine.models.errors import ModelError
    from engine.models.store import resolve

    if options.tenants and not Path(options.tenants).is_file():
        raise UpError(f"tenants: {options.tenants}: no such file")
    try:
        with ProgressLine() as progress:
            folder = resolve(options.model, progress.show)
        shape = load_config(folder.path)
    except ModelError as error:
        raise UpError(str(error)) from None
    if options.device == "cpu" and options.backend == "model":
        _build_kernels(options, shape)
    revision = folder.revision if options.backend == "model" else "timed"
    positions = [shape.max_position_embeddings]
    if options.kv_blocks:
        # What no pool could ever hold is not promised: an answer without max_tokens ends there.
        positions.append(options.kv_blocks * options.block_size)
    if options.backend == "timed":
        positions.append(8_192)
    return ServedModel(
        name=folder.name,
        revision=revision,
        folder=str(folder.path),
        max_positions=min(positions),
    )


def _build_kernels(options: UpOptions, shape: ModelConfig) -> None:
    """Once, here, rather than in every worker at the same time; where they do not run, that is said here too.

    int8 has no torch to fall back to: its workers refuse it.
    """
    from engine.kernels.support import say_torch_runs, why_not

    reason = why_not(shape, options.dtype, options.block_size, say)
    if reason is not None and options.dtype != "int8":
        say_torch_runs(reason, say)


async def _serve(
    planned: list[Planned], http_port: int, grpc_port: int, sample: bool, leave: Callable[[], None] | None
) -> int:
    """`leave` removes what would outlast an exit without a drain."""
    stopping = asyncio.Event()
    supervisor = Supervisor(say)
    signals = StopSignals()

    def stop() -> None:
        match signals.heard(now_us()):
            case Reaction.DRAIN:
                stopping.set()
            case Reaction.LEAVE:
                supervisor.kill()
                if leave is not None:
                    leave()
                os._exit(130)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    for process in planned:
        supervisor.add(Child(process.name, process.command, process.environment))
    asking: list[asyncio.Task[None]] = []
    killed: tuple[str, ...] = ()
    try:
        if await _ready(supervisor, http_port, stopping, [process.name for process in planned]):
            print(f"READY http://{HOST}:{http_port} grpc://{HOST}:{grpc_port}", flush=True)
            if sample:
                # Beside us: a sample that does not come must not hold up Ctrl-C.
                asking.append(asyncio.create_task(asyncio.to_thread(_sample, f"http://{HOST}:{http_port}")))
            await stopping.wait()
    finally:
        stopping.set()
        say("draining")
        roles = {process.name: process.role for process in planned}
        killed = await supervisor.stop(lambda child: STOP_ORDER.index(roles[child.name]))
        await asyncio.gather(*asking)
    return 1 if killed else 0


async def _ready(supervisor: Supervisor, http_port: int, stopping: asyncio.Event, names: list[str]) -> bool:
    """Every process says so, and then a gateway sees them all: whoever reads READY may count on each."""

    async def everyone() -> None:
        await supervisor.all_ready(READY_TIMEOUT_S)
        while not await asyncio.to_thread(_sees_all, http_port, names):
            await asyncio.sleep(0.05)

    starting = asyncio.create_task(everyone())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED, timeout=READY_TIMEOUT_S)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        if not stopping.is_set():
            raise StartFailed(f"not ready after {READY_TIMEOUT_S:.0f} s")
        return False
    starting.result()
    return True


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The environment's proxies know nothing of this machine's own ports."""


def _sees_all(http_port: int, names: list[str]) -> bool:
    try:
        with _DIRECT.open(f"http://{HOST}:{http_port}/ready", timeout=2):
            pass
        with _DIRECT.open(f"http://{HOST}:{http_port}/fleet", timeout=5) as response:
            shown = json.load(response)
    except (OSError, ValueError):
        return False
    seen = [one["id"] for kind in ("workers", "routers", "gateways") for one in shown[kind]]
    return all(name in seen for name in names)


def _sample(url: str) -> None:
    try:
        print_answer(url, SAMPLE_QUESTION, max_tokens=64)
        print('Serving until Ctrl-C. Ask more:  .venv/bin/baton chat "..."', flush=True)
    except ChatError as error:
        say(f"the sample question failed: {error}")
