"""How far something long has come, on one line of the terminal."""

import sys
from types import TracebackType

WIDTH = 30


class ProgressLine:
    """`show("converting", 0.4)`; on a terminal the line is redrawn, elsewhere each tenth is a line."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown: tuple[str, int] | None = None

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal and self._shown is not None:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def show(self, what: str, part: float) -> None:
        """`part` of it is done, 0 to 1."""
        step = int(max(0.0, min(1.0, part)) * (100 if self._terminal else 10))
        if (what, step) == self._shown:
            return
        self._shown = (what, step)
        percent = step if self._terminal else step * 10
        bar = "#" * (percent * WIDTH // 100)
        ends = ("\r", "\x1b[K") if self._terminal else ("", "\n")
        sys.stderr.write(f"{ends[0]}baton: {what} [{bar:<{WIDTH}}] {percent:3d} %{ends[1]}")
        sys.stderr.flush()
