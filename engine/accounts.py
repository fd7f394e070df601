"""Whose each microsecond of a step was."""

from collections.abc import Iterable
from dataclasses import dataclass

from core.cost_model import StepCost, attended


@dataclass(frozen=True, slots=True)
class Share:
    """One row's part in a step."""

    tenant: str
    start: int
    stop: int
    recomputed_to: int
    """Tokens before this had been computed before."""
    cancelled: bool


class Accounts:
    """Splits each step's elapsed time by predicted cost; every sum only grows."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self.service_us: dict[str, int] = {}
        """Useful work per tenant: the fairness currency."""
        self.recompute_us = 0
        """Work done again after a preemption; the platform's loss, not the tenant's."""
        self.cancelled_us = 0
        """Rows whose request was cancelled while they ran."""
        self.busy_us = 0

    def charge(self, elapsed_us: int, shares: Iterable[Share]) -> None:
        """Give out all of elapsed_us, to the microsecond, by weight."""
        parts = [part for share in shares for part in self._parts(share)]
        total = sum(weight for _, _, weight in parts)
        self.busy_us += elapsed_us
        if not parts:
            # A step that only moved the KV of the preempted.
            self.recompute_us += elapsed_us
        passed = given = 0
        for account, tenant, weight in parts:
            passed += weight
            amount = elapsed_us * passed // total - given
            given += amount
            self._add(account, tenant, amount)

    def check(self) -> None:
        """L11, the engine's part of it."""
        assert sum(self.service_us.values()) + self.recompute_us + self.cancelled_us == self.busy_us

    def _parts(self, share: Share) -> list[tuple[str, str, int]]:
        """(account, tenant, weight): a row may be part recompute, part progress."""
        if share.cancelled:
            return [("cancelled", "", self._weight(share.start, share.stop))]
        border = min(max(share.start, share.recomputed_to), share.stop)
        parts = []
        if border > share.start:
            parts.append(("recompute", "", self._weight(share.start, border)))
        if share.stop > border:
            parts.append(("service", share.tenant, self._weight(border, share.stop)))
        return parts

    def _weight(self, start: int, stop: int) -> int:
        # One more, so that a cost model of zeros still has somebody to charge.
        return 1 + (stop - start) * self._cost.token_ns + attended(start, stop) * self._cost.context_ns

    def _add(self, account: str, tenant: str, amount_us: int) -> None:
        if account == "service":
            self.service_us[tenant] = self.service_us.get(tenant, 0) + amount_us
        elif account == "recompute":
            self.recompute_us += amount_us
        else:
            self.cancelled_us += amount_us
