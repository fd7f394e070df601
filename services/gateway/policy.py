"""How long and how often the gateway tries."""

from dataclasses import dataclass, field

from services.gateway.retry_budget import RetryBudgetConfig


@dataclass(frozen=True, slots=True)
class GatewayPolicy:
    """Waits, retries and the spread over routers."""

    reattach_window_us: int = 2_000_000
    """A broken stream to a decode worker may come back for so long; the worker buffers as long."""
    no_worker_wait_us: int = 5_000_000
    """A request that nothing can serve waits for so long before 503."""
    backoff_first_us: int = 50_000
    """Wait before the second try to place such a request; doubles up to backoff_max_us."""
    backoff_max_us: int = 1_000_000
    retries_max: int = 16
    """Lost attempts of one request at most."""
    splits: int = 1
    """Over how many home routers one tenant's requests are spread."""
    retry_budget: RetryBudgetConfig = field(default_factory=RetryBudgetConfig)

    def __post_init__(self) -> None:
        waits = ("reattach_window_us", "no_worker_wait_us", "backoff_first_us", "backoff_max_us")
        for name in (*waits, "splits"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.{name}: must be at least 1")

    def pause_us(self, pauses: int) -> int:
        """How long to wait before the next try, after so many pauses."""
        return min(self.backoff_first_us << min(pauses, 20), self.backoff_max_us)
