"""A service's process: ready line, drain, exit codes, and an end together with its launcher."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SERVICE = """
import asyncio, subprocess, sys
from rpc.errors import ServiceError
from rpc.service_main import run_service

def load():
    child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    print(child.pid, child.stdout.readline(), flush=True)
    child.wait()

async def main(process):
    mode = sys.argv[1]
    if mode == "config":
        raise ServiceError("router.queue_max: must be above 0")
    if mode == "bug":
        raise AssertionError("a law is broken")
    if mode == "load":
        await process.prepare(load)
    process.ready("router", "r1", "127.0.0.1:1", http="127.0.0.1:2")
    await process.draining.wait()
    if mode == "stubborn":
        print("draining", flush=True)
        await asyncio.Event().wait()

sys.exit(run_service(main))
"""

LAUNCHER = """
import subprocess, sys, time
from core.parent_death import child_environment
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "drain"], env=child_environment())
print(child.pid, flush=True)
time.sleep(600)
"""


def start(mode: str, program: str = SERVICE) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "BATON_PARENT_PID": str(os.getpid())},
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_launcher_is_told_why_on_stdout() -> None:
    """So that it says so itself, once, with the name it gave the process."""
    told = subprocess.run(
        [sys.executable, "-c", SERVICE, "config"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "BATON_PARENT_PID": str(os.getpid()), "BATON_LAUNCHED": "1"},
    )
    assert json.loads(told.stdout) == {"failed": "router.queue_max: must be above 0"}
    assert (told.stderr, told.returncode) == ("", 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_then_drained_then_done(number: signal.Signals) -> None:
    process = start("drain")
    assert json.loads(line(process)) == {
        "ready": "router",
        "id": "r1",
        "address": "127.0.0.1:1",
        "pid": process.pid,
        "http": "127.0.0.1:2",
    }
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    (entry,) = [json.loads(entry) for entry in errors.splitlines()]
    assert (entry["event"], entry["signal"], entry["level"]) == ("drain_asked", number.name, "info")


def test_a_second_signal_ends_at_once() -> None:
    process = start("stubborn")
    assert json.loads(line(process))["ready"] == "router"
    process.terminate()
    assert line(process) == "draining"
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_signal_while_it_loads_ends_it_and_all_that_it_started() -> None:
    process = start("load")
    handles = [os.pidfd_open(int(pid)) for pid in line(process).split()]
    assert len(handles) == 2
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
    for handle in handles:
        assert select.select([handle], [], [], 30)[0], "a child outlived the service"
        os.close(handle)


def test_a_wrong_config_is_one_line_and_exit_code_2() -> None:
    output, errors = start("config").communicate(timeout=30)
    assert (output, errors) == ("", "error: router.queue_max: must be above 0\n")
    process = start("config")
    process.communicate(timeout=30)
    assert process.returncode == 2


def test_a_bug_shows_its_trace_and_exit_code_1() -> None:
    process = start("bug")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" in errors and "a law is broken" in errors


def test_a_service_dies_with_its_launcher() -> None:
    launcher = start(SERVICE, LAUNCHER)
    handle = os.pidfd_open(int(line(launcher)))
    assert json.loads(line(launcher))["ready"] == "router"
    launcher.kill()
    ended = bool(select.select([handle], [], [], 30)[0])
    os.close(handle)
    launcher.communicate()
    assert ended, "the service outlived its launcher"


def test_a_service_whose_launcher_is_gone_already_does_not_start() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, "drain"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "BATON_PARENT_PID": "999999999"},
    )
    output, _ = process.communicate(timeout=30)
    assert output == b"" and process.returncode == -signal.SIGKILL
