"""Which of one stream's requests a client's own name means."""

from collections.abc import Callable
from dataclasses import dataclass

from core.ends import End
from core.outcomes import Outcome
from services.gateway.refusal import Refusal


@dataclass(slots=True)
class Asked:
    """One request, from its start message to its end; a cancel may come before its prompt is tokenized."""

    is_cancelled: bool = False
    _end: Callable[[], None] | None = None

    def began(self, end: Callable[[], None]) -> None:
        """It runs now; `end` cancels it and is idempotent."""
        self._end = end
        if self.is_cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Idempotent."""
        self.is_cancelled = True
        if self._end is not None:
            self._end()


class StreamNames:
    """Live requests of one stream by the client's name. Other streams, of the tenant too, have their own."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}

    def claim(self, name: str) -> Asked:
        """Raises Refusal where the stream has a live one of that name: their answers would be mixed up."""
        if name in self._asked:
            problem = f"the request {name!r} of this stream is live already"
            raise Refusal(End(Outcome.DUPLICATE_REQUEST, problem, "client_id"))
        asked = Asked()
        if name:
            self._asked[name] = asked
        return asked

    def release(self, name: str, asked: Asked) -> None:
        if self._asked.get(name) is asked:
            del self._asked[name]

    def cancel(self, name: str) -> None:
        if (asked := self._asked.get(name)) is not None:
            asked.cancel()
