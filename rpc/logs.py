"""What is said about an event, once, at the edge: one structured line on stderr."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TextIO

import orjson

from rpc.clock import wall_us
from rpc.errors import ServiceError


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_LEVELS = {level.name.lower(): level for level in Level}


def level_of(word: str) -> Level:
    """Raises ServiceError for a word that is no level."""
    if word.lower() not in _LEVELS:
        raise ServiceError(f"log level: {word!r} is none of {', '.join(_LEVELS)}")
    return _LEVELS[word.lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: Level = Level.INFO
    as_json: bool = True
    """False: `level event key=value ...`, for people."""


class Log:
    """A process's log. `fields` given here are part of every line, e.g. role and id."""

    def __init__(
        self,
        settings: LogSettings,
        *,
        out: TextIO | None = None,
        clock: Callable[[], int] = wall_us,
        **fields: object,
    ) -> None:
        self._settings = settings
        self._out = out or sys.stderr
        self._clock = clock
        self._fields = fields

    def bind(self, **fields: object) -> "Log":
        """The same log with more fields on every line."""
        return Log(self._settings, out=self._out, clock=self._clock, **{**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        self._write(Level.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(Level.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(Level.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(Level.ERROR, event, fields)

    def _write(self, level: Level, event: str, fields: dict[str, object]) -> None:
        if level < self._settings.level:
            return
        line = {
            "time_us": self._clock(),
            "level": level.name.lower(),
            "event": event,
            **self._fields,
            **fields,
        }
        self._out.write((_as_json(line) if self._settings.as_json else _as_text(line)) + "\n")
        self._out.flush()


def _as_json(line: dict[str, object]) -> str:
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _as_text(line: dict[str, object]) -> str:
    pairs = [f"{key}={value}" for key, value in line.items() if key not in ("time_us", "level", "event")]
    # One event is one line, whatever a value holds.
    return " ".join([f"{line['level']!s:7}", str(line["event"]), *pairs]).replace("\n", "\\n")
