"""Machines that are one: network namespaces joined by a cable of the kernel's own."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
NAMESPACES = "/run/netns"


@dataclass(frozen=True, slots=True)
class Machine:
    """A namespace and its address on the cable; nothing else leads into it."""

    namespace: str
    address: str

    def command(self, *words: str) -> tuple[str, ...]:
        """The same program, there; its process id is the one that is started."""
        return (shutil.which("ip") or "ip", "netns", "exec", self.namespace, *words)

    def run(self, question: Callable[[], T]) -> T:
        """Calls it in a thread whose new sockets are there."""
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.namespace,)) as pool:
            return pool.submit(question).result()

    def received_bytes(self) -> int:
        """Over the cable, since it was there."""
        line = _ip("netns", "exec", self.namespace, "cat", "/sys/class/net/cable/statistics/rx_bytes")
        return int(line)


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Skips, saying why, where there can be none; removed however the block ends."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need `ip` (iproute2)")
    _remove_abandoned()
    machines = [Machine(f"baton-{os.getpid()}-{n}", f"10.0.0.{n}") for n in (1, 2)]
    with contextlib.ExitStack() as cleanup:
        for machine in machines:
            try:
                _ip("netns", "add", machine.namespace)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
            cleanup.callback(_ip, "netns", "del", machine.namespace)
        first, second = (machine.namespace for machine in machines)
        # Removed with either namespace, and never on this machine's own list.
        _ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
        for machine in machines:
            _ip("-n", machine.namespace, "address", "add", f"{machine.address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", machine.namespace, "link", "set", device, "up")
        yield machines[0], machines[1]


def _remove_abandoned() -> None:
    """Of tests that were killed and could not."""
    for name in os.listdir(NAMESPACES) if os.path.isdir(NAMESPACES) else ():
        owner = name.removeprefix("baton-").partition("-")[0]
        if name.startswith("baton-") and not os.path.exists(f"/proc/{owner}"):
            _ip("netns", "del", name)


def _ip(*words: str) -> str:
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True, timeout=10).stdout


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"{NAMESPACES}/{namespace}") as entered:
        if libc.setns(entered.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({namespace})")
