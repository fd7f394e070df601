"""What SIGINT and SIGTERM mean to a launcher: drain, leave at once, or nothing new."""

from enum import Enum, auto

SAME_WITHIN_US = 500_000
"""Signals closer than this are one: a terminal and make, or a time-out and its shell, both forward it."""


class Reaction(Enum):
    DRAIN = auto()
    LEAVE = auto()
    NONE = auto()


class StopSignals:
    """The first signal drains, a second one leaves at once."""

    def __init__(self) -> None:
        self._last_us: int | None = None

    def heard(self, now_us: int) -> Reaction:
        last_us, self._last_us = self._last_us, now_us
        if last_us is None:
            return Reaction.DRAIN
        return Reaction.LEAVE if now_us - last_us >= SAME_WITHIN_US else Reaction.NONE
