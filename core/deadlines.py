"""When the next of many deadlines is, and which have passed."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """A heap with one deadline per key; setting a key again moves it, ties go by the order of setting."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._current: dict[Key, int] = {}
        """The number of the key's valid heap entry; others are stale."""
        self._number = 0

    def set(self, key: Key, at_us: int) -> None:
        self._number += 1
        self._current[key] = self._number
        heapq.heappush(self._heap, (at_us, self._number, key))
        if len(self._heap) > 64 + 4 * len(self._current):
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def clear(self, key: Key) -> None:
        """Idempotent."""
        self._current.pop(key, None)

    def due(self, now_us: int) -> list[Key]:
        """Takes out the keys whose time has come, earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now_us:
            _, number, key = heapq.heappop(self._heap)
            if self._current.get(key) == number:
                del self._current[key]
                found.append(key)
        return found

    @property
    def next_us(self) -> int | None:
        while self._heap and self._current.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._current)
