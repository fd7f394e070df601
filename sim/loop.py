"""What happens next in virtual time."""

import heapq
from collections.abc import Callable

Call = Callable[[], None]


class Planned:
    """One thing to come; `cancel` takes it out."""

    __slots__ = ("at_us", "call")

    def __init__(self, at_us: int, call: Call) -> None:
        self.at_us = at_us
        self.call: Call | None = call

    def cancel(self) -> None:
        """Idempotent."""
        self.call = None


class Loop:
    """A clock that jumps from one planned call to the next; ties go by the order of planning."""

    def __init__(self) -> None:
        self.now_us = 0
        self.calls = 0
        """Made so far."""
        self._heap: list[tuple[int, int, Planned]] = []
        self._number = 0

    def at(self, at_us: int, call: Call) -> Planned:
        """Plan a call; a time that has passed means now, after what is planned for now already."""
        self._number += 1
        planned = Planned(max(at_us, self.now_us), call)
        heapq.heappush(self._heap, (planned.at_us, self._number, planned))
        return planned

    def after(self, delay_us: int, call: Call) -> Planned:
        return self.at(self.now_us + delay_us, call)

    def step(self) -> bool:
        """Make the next call; False where nothing is planned."""
        while self._heap:
            _, _, planned = heapq.heappop(self._heap)
            if planned.call is not None:
                call, planned.call = planned.call, None
                self.now_us = planned.at_us
                self.calls += 1
                call()
                return True
        return False

    def run_until(self, until_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Make every call up to a time, or until `done`; whether that was the reason to stop."""
        while self._heap and self._heap[0][0] <= until_us:
            if done is not None and done():
                return True
            self.step()
        self.now_us = max(self.now_us, until_us)
        return done is not None and done()
