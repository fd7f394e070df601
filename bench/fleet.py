"""A fleet to measure: started with `baton up` on free ports, stopped by the id it was started with."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
SAID_LINES = 5


class FleetError(Exception):
    """One clear line about why a fleet does not serve."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One running `baton up`."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds that its processes have used so far."""
        total = 0.0
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextlib.contextmanager
def running(name: str, flags: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """A fleet for as long as the block; what it says goes to a file in results/, called after `name`.

    `environment`: more of it, for settings that `baton up` has no flag for.
    """
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / f"{name.replace(' ', '_')}_{os.getpid()}.log"
    command = [sys.executable, "-m", "baton.main", "up", "--http-port", "0", "--grpc-port", "0"]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, "--no-sample", *flags],
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield Fleet(_ready_url(process, log), process.pid)
    finally:
        _stop(process)


def _ready_url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        ended = process.poll() is not None
        lines = log.read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith("READY "):
                return line.split()[1]
        if ended:
            raise FleetError(f"the fleet ended with {process.returncode}: {' / '.join(lines[-SAID_LINES:])}")
        time.sleep(POLL_S)
    raise FleetError(f"the fleet was not ready after {START_TIMEOUT_S:.0f} s; see {log}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGINT drains; nothing of a fleet outlives its launcher, so a kill at last is enough."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
