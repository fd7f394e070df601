"""Whether and where a process's decisions are recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from core.recorder import recorded
from core.recording_file import RecordingFile
from rpc.errors import ServiceError

Plain = TypeVar("Plain")


def recorded_in(
    folder: str, name: str, incarnation: str, plain: Plain, config: tuple[object, ...]
) -> tuple[Plain, Callable[[], None]]:
    """(the object, what closes its recording); the object itself where the folder is "".

    `config` rebuilds the object. One file per process start, so that a restart never cuts what went
    before. Raises ServiceError where it cannot be written.
    """
    if not folder:
        return plain, lambda: None
    path = Path(folder) / f"{name}-{incarnation}.recording"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = RecordingFile(path)
    except OSError as error:
        raise ServiceError(f"{path}: cannot be written: {error.strerror}") from error
    return recorded(plain, name, file.write, config), file.close
