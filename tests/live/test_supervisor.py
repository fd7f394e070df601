"""Children that do not end when told to, and children that are about to be started then."""

import asyncio
import os
import signal

import psutil
import pytest

from baton import up
from baton.fleet_plan import Planned
from baton.restarts import RestartConfig, RestartPolicy
from baton.supervisor import Child, Supervisor

SERVES = ("sh", "-c", "echo '{}'; exec sleep 600")
DEAF = ("sh", "-c", "trap '' TERM; echo '{}'; exec sleep 600")
AT_ONCE = RestartConfig(first_delay_us=0, delay_us_max=0)
READY_S = 20.0


def child(name: str, *command: str) -> Child:
    return Child(name, command, dict(os.environ), RestartPolicy(AT_ONCE))


def left() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]


async def test_who_does_not_end_is_killed_named_and_said() -> None:
    said: list[str] = []
    supervisor = Supervisor(said.append, stop_grace_s=0.2)
    supervisor.add(child("good", *SERVES))
    supervisor.add(child("deaf", *DEAF))
    await supervisor.all_ready(READY_S)
    assert await supervisor.stop(lambda _: 0) == ("deaf",)
    assert said == ["error: deaf did not stop within 0.2 s and was killed"]
    assert [one.process.returncode for one in supervisor.children if one.process] == [
        -signal.SIGTERM,
        -signal.SIGKILL,
    ]


async def test_a_launcher_that_had_to_kill_says_so_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = Supervisor(lambda _: None, stop_grace_s=0.2)
    monkeypatch.setattr(up, "Supervisor", lambda _: supervisor)
    planned = [Planned("gateway-0", "gateway", DEAF, dict(os.environ))]
    serving = asyncio.create_task(up._serve(planned, 0, 0, False, None))
    async with asyncio.timeout(READY_S):
        while not any(each.ready.is_set() for each in supervisor.children):
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    assert await serving == 1


async def test_a_stop_in_the_middle_of_a_restart_leaves_nobody() -> None:
    before = [p.pid for p in left()]
    for moments in range(40):
        supervisor = Supervisor(lambda _: None)
        supervisor.add(child("dies", *SERVES))
        await supervisor.all_ready(READY_S)
        (dies,) = supervisor.children
        assert dies.process is not None
        dies.process.kill()
        while dies.ready.is_set():
            await asyncio.sleep(0)
        for _ in range(moments):
            await asyncio.sleep(0)
        assert await supervisor.stop(lambda _: 0) == ()
        assert [p.pid for p in left()] == before, f"{moments} rounds of the loop after the death"
