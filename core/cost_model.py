"""How long a step is expected to take: the declared reference cost of a model on its hardware."""

from dataclasses import dataclass


def attended(start: int, stop: int) -> int:
    """(token, earlier-or-own position) pairs that tokens start..stop attend to: sum of p + 1."""
    return (stop * (stop + 1) - start * (start + 1)) // 2


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step takes base + tokens * token + context * context-cost; all in nanoseconds."""

    base_ns: int
    """Per step, whatever it computes: reading the weights, launching."""
    token_ns: int
    """Per token fed."""
    context_ns: int
    """Per attended pair, see attended()."""

    def __post_init__(self) -> None:
        for name in ("base_ns", "token_ns", "context_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")

    def step_us(self, tokens: int, context: int) -> int:
        """Microseconds of one step that feeds `tokens` and attends `context` pairs; at least 1."""
        return max(1, (self.base_ns + tokens * self.token_ns + context * self.context_ns) // 1000)

    def prefill_us(self, prompt: int, cached: int) -> int:
        """Microseconds to compute a prompt of which the first `cached` tokens are there, in one step."""
        return self.step_us(prompt - cached, attended(cached, prompt))
