"""How far prefill may take steps beyond the ITL target, and how often: a token bucket of time."""

STEP_TARGETS = 2.5
"""Beside decode rows, a step's prefill takes at most so many ITL targets."""


class PrefillBurst:
    """Time that steps shorter than the target have saved, for short prompts to be computed whole.

    Cutting a prompt of 80 ms to the 25 that each step leaves delays the same streams by the same 80 ms,
    three times as often, and its own first token with them. So a short prompt waits until it can be
    computed in one step, and all steps together keep the target on average; a burst of prompts may take
    what was saved, one prompt after another. Turner, "New directions in communications", 1986.
    """

    __slots__ = ("_capacity_ns", "_saved_ns", "step_ns")

    def __init__(self, burst_us: int, itl_target_us: int) -> None:
        """`burst_us` 0: nothing is ever saved, and every chunk is cut to what its step leaves."""
        self._capacity_ns = burst_us * 1000.0
        self._saved_ns = self._capacity_ns
        self.step_ns = min(self._capacity_ns, STEP_TARGETS * itl_target_us * 1000)
        """The most that one step's prefill may take."""

    def beyond(self, deposit_ns: float) -> float:
        """What a step may take beyond the `deposit_ns` that the target leaves it."""
        return max(0.0, min(self._saved_ns, self.step_ns - deposit_ns))

    def settle(self, deposit_ns: float, spent_ns: float) -> None:
        """A step left prefill deposit_ns, and it took spent_ns."""
        self._saved_ns = max(0.0, min(self._capacity_ns, self._saved_ns + deposit_ns - spent_ns))

    def refill(self) -> None:
        """Nothing decodes, so nobody's latency is owed anything."""
        self._saved_ns = self._capacity_ns
