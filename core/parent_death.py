"""Whether this process outlives the one that started it: it does not."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PARENT_KEY = "BATON_PARENT_PID"
"""Environment variable by which a launcher names itself to its children; "0" lets a child live on."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int | None = None, kill: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel send `kill` to this process when the parent is gone.

    The kernel watches the *thread* that started us, so launchers start children from a thread that
    stays. A parent that died before the call is noticed by `parent_pid` (None: the environment's).
    """
    named = os.environ.get(PARENT_KEY, "")
    expected = parent_pid if parent_pid is not None else int(named) if named.isdecimal() else os.getppid()
    if expected == 0:
        return
    if _libc.prctl(_PR_SET_PDEATHSIG, int(kill), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected:
        os.kill(os.getpid(), kill)


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to start a child with, so that it can tell whether we died before it looked."""
    return {**(os.environ if environment is None else environment), PARENT_KEY: str(os.getpid())}


def kill_descendants() -> None:
    """Ends every process that this one started, and those that they started; none is waited for."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Deepest last; empty where the kernel does not tell."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in listed.read_text().split()]
    return [*found, *(below for child in found for below in _descendants(child))]


def tied(command: Sequence[str]) -> list[str]:
    """A command that becomes `command`, a program not ours, under the same process id, and dies with us.

    The tie is made after an exec and not between fork and exec: code of ours there hangs or aborts where
    a thread of this process, gRPC's for one, held a lock at the fork.
    """
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


_TIE = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{{sys.argv[2]}}: {{error.strerror}}")
"""
