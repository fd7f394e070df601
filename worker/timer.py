"""When a plain object's tick is due."""

import asyncio
from collections.abc import Callable

from rpc.clock import now_us


class Timer:
    """One loop timer, set again to an object's next deadline after each of its events."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._tick = tick
        self._at_us: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_us: int | None) -> None:
        if at_us == self._at_us:
            return
        self.cancel()
        if at_us is not None:
            self._at_us = at_us
            self._handle = self._loop.call_later(max(0, at_us - now_us()) / 1e6, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._at_us = self._handle = None

    def _fire(self) -> None:
        self._at_us = self._handle = None
        self._tick()
