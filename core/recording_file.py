"""When recorded frames reach the disk: a shell with its own thread, so that no decision waits for one."""

import threading
from pathlib import Path

FLUSH_SECONDS = 0.2
PENDING_BYTES_MAX = 8 << 20


class RecordingFile:
    """Writes frames to a file in the order they came; `write` is what a `Recorded` is handed.

    At most FLUSH_SECONDS of records are lost to a crash. Beyond PENDING_BYTES_MAX the caller writes
    them itself, so that a slow disk costs time and never memory. A disk that refuses ends the
    recording, never the service: `error` then says why.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be created."""
        self._file = path.open("wb", buffering=0)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_lock = threading.Lock()
        """Held for an append or a swap, never while the disk is busy."""
        self._file_lock = threading.Lock()
        self._closing = threading.Event()
        self.error: str | None = None
        self._thread = threading.Thread(target=self._flush_until_closed, name="recording", daemon=True)
        self._thread.start()

    def write(self, frame: bytes) -> None:
        with self._pending_lock:
            self._pending.append(frame)
            self._pending_bytes += len(frame)
        if self._pending_bytes > PENDING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        with self._file_lock:
            with self._pending_lock:
                frames, self._pending = self._pending, []
                self._pending_bytes = 0
            if frames and self.error is None:
                self._store(b"".join(frames))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.flush()
        self._file.close()

    def _flush_until_closed(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            self.flush()

    def _store(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.error = str(error)
