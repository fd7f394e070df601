"""Which class and tenant pays for what a step computes."""

from collections.abc import Mapping

from core.cost_model import StepCost, attended
from core.request import TenantClass
from engine.class_shares import ClassShares
from engine.sequence import Sequence
from engine.tenant_turns import TenantTurns
from engine.waiting_line import WaitingLine

Rows = list[tuple[Sequence, int]]
"""(sequence, tokens to feed)."""


class Charges:
    """By reference cost: a row's own when it is planned, a step's base when all rows are."""

    def __init__(
        self, cost: StepCost, shares: ClassShares, turns: Mapping[TenantClass, TenantTurns], line: WaitingLine
    ) -> None:
        self._cost = cost
        self._shares = shares
        self._turns = turns
        self._line = line

    def row(self, sequence: Sequence, start: int, count: int) -> None:
        """This many tokens of it after `start`."""
        cost_ns = self._cost_ns(start, count)
        self._shares.spend(sequence.job.tenant_class, cost_ns)
        self._spend_turn(sequence, cost_ns)

    def settle(self, rows: Rows, running: list[Sequence]) -> None:
        """The step's base is shared by its rows; classes with work earn their part of the whole.

        Among tenants by what each row costs, as the accounts charge it; a class pays for each row alike.
        """
        if not rows:
            return
        costs_ns = [1 + self._cost_ns(sequence.computed, count) for sequence, count in rows]
        total_ns = sum(costs_ns)
        for (sequence, _), cost_ns in zip(rows, costs_ns, strict=True):
            self._spend_turn(sequence, self._cost.base_ns * cost_ns // total_ns)
            self._shares.spend(sequence.job.tenant_class, self._cost.base_ns // len(rows))
        step_ns = self._cost.base_ns + total_ns - len(rows)
        present = [*self._line.classes(), *(sequence.job.tenant_class for sequence in running)]
        self._shares.end_step(present, step_ns)
        self._forget(running)

    def _cost_ns(self, start: int, count: int) -> int:
        """Of this many tokens after `start`, a step's base left out."""
        return count * self._cost.token_ns + attended(start, start + count) * self._cost.context_ns

    def _spend_turn(self, sequence: Sequence, cost_ns: int) -> None:
        job = sequence.job
        self._turns[job.tenant_class].spend(job.tenant, job.tenant_weight, cost_ns)

    def _forget(self, running: list[Sequence]) -> None:
        for tenant_class, turns in self._turns.items():
            if turns.is_crowded:
                jobs = [sequence.job for sequence in running]
                here = [job.tenant for job in jobs if job.tenant_class is tenant_class]
                turns.forget([*self._line.tenants(tenant_class), *here])
