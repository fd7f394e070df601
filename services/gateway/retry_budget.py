"""Whether one more retry may be spent."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryBudgetConfig:
    """How many retries the fleet bears on top of its first attempts."""

    per_request: float = 0.2
    """Retries that each new request earns."""
    per_second: float = 10.0
    """Retries earned by time alone, so that a quiet gateway can retry too."""
    burst: float = 256.0
    """Retries saved up at most; what one worker's death may cost at once."""

    def __post_init__(self) -> None:
        for name in ("per_request", "per_second", "burst"):
            if getattr(self, name) < 0:
                raise ValueError(f"retry_budget.{name}: must not be negative")


class RetryBudget:
    """A token bucket; starts full."""

    def __init__(self, config: RetryBudgetConfig) -> None:
        self._config = config
        self._tokens = config.burst
        self._filled_us: int | None = None

    def earn(self, now_us: int) -> None:
        """A new request came."""
        self._fill(now_us)
        self._tokens = min(self._config.burst, self._tokens + self._config.per_request)

    def take(self, now_us: int) -> bool:
        """Spends one retry if there is one."""
        self._fill(now_us)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self, now_us: int) -> None:
        elapsed_us = 0 if self._filled_us is None else max(0, now_us - self._filled_us)
        self._tokens = min(self._config.burst, self._tokens + self._config.per_second * elapsed_us / 1e6)
        self._filled_us = now_us
