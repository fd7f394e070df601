"""Where a choice's text must end because of a stop string, and what may be shown before that is known.

The stop that ends first in the stream wins; of several that end at the same character the longest, so
that no part of a stop is shown. This does not depend on how the text is split into pushes. The automaton is
that of Aho and Corasick (1975): one state per prefix of a stop, so its depth is how much text is in doubt.
"""

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Watches one choice's text; cost is constant per character, whatever the stops are."""

    __slots__ = ("_depth", "_ends", "_fallback", "_held", "_include_stop", "_next", "_state", "_stopped")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`include_stop` shows the stop string as well. Raises ValueError naming an empty stop."""
        self._include_stop = include_stop
        self._next: list[dict[str, int]] = [{}]
        self._depth: list[int] = [0]
        self._ends: list[str | None] = [None]
        for position, stop in enumerate(stops):
            if not stop:
                raise ValueError(f"stop[{position}]: a stop string cannot be empty")
            self._add(stop)
        self._fallback = self._link()
        self._state = 0
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(what may be shown now, the stop string that ended the choice or None).

        Withheld is only the longest suffix that may still become a stop. After a stop, further text is
        dropped.
        """
        if self._stopped is not None:
            return "", self._stopped
        if (end := self._advance(text)) is not None:
            return self._end(self._held + text[:end])
        shown = self._held + text
        doubt = 0 if self._include_stop else self._depth[self._state]
        self._held = shown[len(shown) - doubt :]
        return shown[: len(shown) - doubt], None

    def flush(self) -> str:
        """The withheld text, when the choice ended otherwise."""
        held, self._held = self._held, ""
        self._state = 0
        return held

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the choice."""
        return self._stopped

    def _advance(self, text: str) -> int | None:
        """Moves the automaton over `text`; where in it the first stop ends, if one does."""
        state, transitions, fallback, ends = self._state, self._next, self._fallback, self._ends
        for position, character in enumerate(text):
            while state and character not in transitions[state]:
                state = fallback[state]
            state = transitions[state].get(character, 0)
            if ends[state] is not None:
                self._state = state
                return position + 1
        self._state = state
        return None

    def _end(self, shown: str) -> tuple[str, str]:
        stop = self._ends[self._state]
        assert stop is not None
        self._stopped, self._held = stop, ""
        return (shown if self._include_stop else shown[: len(shown) - len(stop)]), stop

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._ends.append(None)
            state = self._next[state][character]
        self._ends[state] = stop

    def _link(self) -> list[int]:
        """For each state, that of its longest proper suffix; a state ends with the longest stop it can."""
        fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self._ends[state] = self._ends[state] or self._ends[fallback[state]]
            for character, child in self._next[state].items():
                suffix = fallback[state]
                while suffix and character not in self._next[suffix]:
                    suffix = fallback[suffix]
                fallback[child] = self._next[suffix].get(character, 0)
                queue.append(child)
        return fallback
