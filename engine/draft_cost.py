"""What verifying drafts adds to a step here, learned from the steps that did.

A step with drafts takes longer by an entry and by so much per draft. The entry differs from one number
of rows to the next, as kernels compute rows in tiles: the first draft beside a full tile opens another,
those after it are nearly free. Both are moved by a normalised least mean squares update, as in
engine/step_prediction.py.
"""

from core.cost_model import StepCost

LEARNING_RATE = 0.25
FACTOR_AT_FIRST, FACTOR_MIN, FACTOR_MAX = 2.0, 0.25, 16.0
"""Of the declared cost of a token, which is that of one in a long chunk, without its draw."""
ENTRY_SHARE = 0.1
"""Of a step's time: as far as that an entry is expected to go. Decides who learns more of an error."""
FORGET = 0.98
"""What is kept of an entry per step without drafts: what once was too dear is tried again, rarely."""


class DraftCost:
    """One factor for the drafts of all steps, and an entry for each number of rows."""

    __slots__ = ("_cost", "_entries_ns", "_factor")

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._factor = FACTOR_AT_FIRST
        self._entries_ns: dict[int, float] = {}
        """By rows of the step; where nothing is known yet, nothing."""

    def entry_ns(self, rows: int) -> float:
        """Of a step of `rows` decode rows, once, if there are any drafts."""
        return self._entries_ns.get(rows, 0.0)

    def draft_ns(self, stop: int) -> float:
        """Of one draft that attends to `stop` positions."""
        return self._factor * self._declared_ns(stop)

    def added_ns(self, rows: int, stops: list[int]) -> float:
        """Of all drafts of a step, each attending to so many positions."""
        return self.entry_ns(rows) + sum(map(self.draft_ns, stops)) if stops else 0.0

    def forgo(self, rows: int) -> None:
        """A step of so many rows went without drafts."""
        if rows in self._entries_ns:
            self._entries_ns[rows] *= FORGET

    def measured(self, rows: int, stops: list[int], added_ns: float, step_ns: int) -> None:
        """A step took longer by added_ns than the step_ns expected without its drafts."""
        limit_ns = float(step_ns)
        # A stall beside one step teaches no more than a step twice as long would.
        error_ns = min(limit_ns, max(-limit_ns, added_ns - self.added_ns(rows, stops)))
        entry_unit, drafts_unit = ENTRY_SHARE * step_ns, float(sum(map(self._declared_ns, stops)))
        moved = LEARNING_RATE * error_ns / (entry_unit**2 + drafts_unit**2)
        entry_ns = self.entry_ns(rows) + moved * entry_unit**2
        self._entries_ns[rows] = min(limit_ns, max(0.0, entry_ns))
        self._factor = min(FACTOR_MAX, max(FACTOR_MIN, self._factor + moved * drafts_unit))

    def _declared_ns(self, stop: int) -> int:
        """Never nothing, or drafts would seem free."""
        return max(1, self._cost.token_ns + stop * self._cost.context_ns)
