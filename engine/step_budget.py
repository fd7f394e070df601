"""How much one step may still take on."""


class StepBudget:
    """Tokens left in the step being planned.

    The one place that turns "how long may a step be" into chunk sizes: a budget in predicted
    milliseconds replaces this class, not the scheduler.
    """

    __slots__ = ("_left",)

    def __init__(self, max_step_tokens: int) -> None:
        self._left = max_step_tokens

    @property
    def spent(self) -> bool:
        return self._left == 0

    def take(self, wanted: int) -> int:
        """Tokens granted to a row, 0..wanted."""
        granted = min(wanted, self._left)
        self._left -= granted
        return granted
