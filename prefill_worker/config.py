"""How a prefill worker takes in prompts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    ahead_tokens: int = 1_024
    """Blocks are asked of a home only for prompts with fewer tokens than this to be computed before them:
    earlier would leave its memory idle, later would leave this worker idle."""
    lease_us: int = 10_000_000
    """A hand-off without a sign of life from its home for this long has failed."""
    live_max: int = 4_096
    """Prompts here at once; more are refused as WORKER_FULL."""

    def __post_init__(self) -> None:
        for name in ("ahead_tokens", "lease_us", "live_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
