"""How long until what waits has been placed: the truth behind Retry-After."""

from collections import deque

SAMPLES_MAX = 64
WINDOW_US = 10_000_000
RETRY_MIN_US, RETRY_MAX_US = 100_000, 60_000_000
DURATION_DEFAULT_US = 1_000_000
LEARNING_RATE = 0.2


class DrainEstimate:
    """Little's law on what was seen: attempts leave the queue at the rate they left it lately.

    Before any have left while others waited, the rate is (attempts running) / (mean time they run).
    """

    def __init__(self) -> None:
        self._left_us: deque[int] = deque(maxlen=SAMPLES_MAX)
        """When attempts that had waited were placed."""
        self._duration_us = float(DURATION_DEFAULT_US)

    def placed(self, waited: bool, now_us: int) -> None:
        if waited:
            self._left_us.append(now_us)

    def ended(self, duration_us: int) -> None:
        """A placed attempt ended after this long."""
        self._duration_us += LEARNING_RATE * (max(1, duration_us) - self._duration_us)

    def wait_us(self, waiting: int, running: int, now_us: int) -> int:
        """Until `waiting` attempts and one more have been placed; within RETRY_MIN_US..RETRY_MAX_US."""
        while self._left_us and self._left_us[0] < now_us - WINDOW_US:
            self._left_us.popleft()
        running_rate = max(1, running) / self._duration_us
        rate = running_rate
        if len(self._left_us) >= 8:
            rate = len(self._left_us) / max(1, now_us - self._left_us[0])
        estimate = (waiting + 1) / rate
        return max(RETRY_MIN_US, min(RETRY_MAX_US, round(estimate)))
