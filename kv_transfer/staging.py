"""Which part of a lane's preallocated staging memory a chunk may occupy."""

from bisect import insort


class Staging:
    """First fit over one arena of fixed size; ranges come back in any order and join their neighbours.

    Not thread-safe: the lane that owns it holds a lock.
    """

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise ValueError(f"staging_bytes: {size_bytes}, must be at least 1")
        self.size_bytes = size_bytes
        self._free: list[tuple[int, int]] = [(0, size_bytes)]
        """(start, stop), sorted, never adjacent."""
        self._taken: dict[int, int] = {}
        """start → stop."""

    def take(self, length_bytes: int) -> int | None:
        """Offset of so many bytes in a row, or None: not now."""
        assert length_bytes > 0
        for at, (start, stop) in enumerate(self._free):
            if stop - start >= length_bytes:
                rest = [(start + length_bytes, stop)] if stop - start > length_bytes else []
                self._free[at : at + 1] = rest
                self._taken[start] = start + length_bytes
                return start
        return None

    def give_back(self, start: int) -> None:
        """The range that take() answered with `start`; exactly once."""
        insort(self._free, (start, self._taken.pop(start)))
        joined: list[tuple[int, int]] = []
        for span in self._free:
            if joined and joined[-1][1] == span[0]:
                joined[-1] = (joined[-1][0], span[1])
            else:
                joined.append(span)
        self._free = joined

    @property
    def taken_bytes(self) -> int:
        return sum(stop - start for start, stop in self._taken.items())

    def check(self) -> None:
        spans = sorted([*self._free, *self._taken.items()])
        assert [start for start, _ in spans] == [0, *(stop for _, stop in spans)][: len(spans)]
        assert spans[-1][1] == self.size_bytes
