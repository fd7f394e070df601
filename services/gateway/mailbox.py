"""What of an answer its client has not read yet."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from core.outcomes import FinishReason
from services.gateway.actions import Deliver, Ended
from services.gateway.choice_text import ChoiceText, Piece

_PIECE_BYTES = 160
_TOKEN_BYTES = 32
_LOGPROB_BYTES = 96


@dataclass(frozen=True, slots=True)
class Started:
    """A decode worker was asked to start: the request is admitted and placed."""


Item = Piece | Started | Ended


class Mailbox:
    """Pieces and ends on their way to one client, bounded in bytes; several answers may share one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.on_overflow: Callable[[], None] | None = None
        """Called once, when the client is given up; whoever waits for it to read can stop waiting."""
        self._items: deque[tuple[int, Item]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    def put(self, answer: int, item: Item) -> bool:
        """False: the client does not read, and this no longer fits."""
        if isinstance(item, Piece):
            size = _size(item)
            if self._items and self._bytes + size > self._bytes_max:
                return False
            self._bytes += size
        self._items.append((answer, item))
        self._changed.set()
        return True

    def give_up(self) -> None:
        """What waits will not be read; what comes now is the end."""
        self._items.clear()
        self._bytes = 0
        if self.on_overflow is not None:
            self.on_overflow()
            self.on_overflow = None

    async def take(self, timeout_s: float | None) -> list[tuple[int, Item]]:
        """Everything that waits, in order; empty after `timeout_s` of nothing."""
        if not self._items:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return []
        items = list(self._items)
        self._items.clear()
        self._bytes = 0
        return items


class Answer:
    """One request's text on its way into a mailbox."""

    def __init__(
        self, texts: list[ChoiceText], mailbox: Mailbox, number: int = 0, *, confirms: bool = False
    ) -> None:
        """`number` tells several answers in one mailbox apart; `confirms`: there are stop strings."""
        self._confirms = confirms
        self._texts = texts
        self._mailbox = mailbox
        self._number = number
        self.slow = False
        """The mailbox overflowed."""
        self._started = False

    def start(self) -> None:
        """An attempt was handed to a decode worker; clients hear of the first."""
        if not self._started:
            self._started = True
            self._mailbox.put(self._number, Started())

    def deliver(self, deliver: Deliver) -> tuple[int, FinishReason] | None:
        """(output tokens that count, why) where the gateway must hear that the choice ends with this."""
        text = self._texts[deliver.choice]
        piece = text.push(deliver.first_index, deliver.tokens, deliver.logprobs, deliver.finish)
        if piece is None:
            return None
        if not self.slow and not self._mailbox.put(self._number, piece):
            self.slow = True
        if piece.finish is None or not self._confirms:
            return None
        return piece.first_index + len(piece.tokens), piece.finish

    def end(self, ended: Ended) -> None:
        if self.slow:
            self._mailbox.give_up()
        self._mailbox.put(self._number, ended)


def _size(piece: Piece) -> int:
    size = _PIECE_BYTES + 4 * len(piece.text) + _TOKEN_BYTES * len(piece.tokens)
    if piece.logprobs:
        size += _LOGPROB_BYTES * sum(1 + len(logprobs.top) for logprobs in piece.logprobs)
    return size
