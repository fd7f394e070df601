"""How a decode worker treats the requests it is home to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    reattach_us: int = 2_000_000
    """How long a gateway may be silent before its requests are cancelled, and an end be remembered for it."""
    tombstone_us: int = 30_000_000
    """How long a cancel that overtook its Start waits for it."""
    lease_us: int = 10_000_000
    """A hand-off without a sign of life from its prefill worker for this long has failed."""
    live_max: int = 4_096
    """Attempts at home at once; more are refused as WORKER_FULL."""

    def __post_init__(self) -> None:
        for name in ("reattach_us", "tombstone_us", "lease_us", "live_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
