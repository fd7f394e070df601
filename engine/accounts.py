"""Whose each microsecond of a step was."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.cost_model import StepCost, attended


class Account(StrEnum):
    """What became of a row's work."""

    WORK = "work"
    RECOMPUTE = "recompute"
    """Done again after a preemption; the platform's loss, not the tenant's."""
    REJECTED = "rejected"
    """Speculated tokens that were not taken."""
    CANCELLED = "cancelled"
    """Of a request that was cancelled while the row ran."""


@dataclass(frozen=True, slots=True)
class Share:
    """One row's part in a step."""

    tenant: str
    start: int
    stop: int
    recomputed_to: int
    """Tokens before this had been computed before."""
    cancelled: bool
    rejected_from: int | None = None
    """Tokens from here were speculated in vain."""


Part = tuple[Account, str, int]
"""(account, tenant, weight)."""


class Accounts:
    """Splits each step's elapsed time by predicted cost; every sum only grows."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self.service_us: dict[str, int] = {}
        """Useful work per tenant: the fairness currency."""
        self.recompute_us = 0
        self.rejected_us = 0
        self.cancelled_us = 0
        self.busy_us = 0

    def parts(self, shares: Iterable[Share]) -> list[Part]:
        """Of a step; a row may be part recompute, part progress, part in vain."""
        return [part for share in shares for part in self._parts(share)]

    def charge(self, elapsed_us: int, parts: Sequence[Part]) -> None:
        self.busy_us += elapsed_us
        for account, tenant, amount_us in split(elapsed_us, parts):
            if account is Account.WORK:
                self.service_us[tenant] = self.service_us.get(tenant, 0) + amount_us
            elif account is Account.RECOMPUTE:
                self.recompute_us += amount_us
            elif account is Account.REJECTED:
                self.rejected_us += amount_us
            else:
                self.cancelled_us += amount_us

    def check(self) -> None:
        wasted_us = self.recompute_us + self.rejected_us + self.cancelled_us
        assert sum(self.service_us.values()) + wasted_us == self.busy_us

    def _parts(self, share: Share) -> list[Part]:
        if share.cancelled:
            return [(Account.CANCELLED, share.tenant, self._weight(share.start, share.stop))]
        rejected = share.stop if share.rejected_from is None else share.rejected_from
        border = min(max(share.start, share.recomputed_to), rejected)
        spans = (
            (Account.RECOMPUTE, share.start, border),
            (Account.WORK, border, rejected),
            (Account.REJECTED, rejected, share.stop),
        )
        return [
            (account, share.tenant, self._weight(start, stop))
            for account, start, stop in spans
            if stop > start
        ]

    def _weight(self, start: int, stop: int) -> int:
        # One more, so that a cost model of zeros still has somebody to charge.
        return 1 + (stop - start) * self._cost.token_ns + attended(start, stop) * self._cost.context_ns


def split(amount_us: int, parts: Sequence[Part]) -> list[Part]:
    """All of amount_us, to the microsecond, by weight.

    A step without rows only moved the KV of the preempted: nobody's, and no progress.
    """
    if not parts:
        return [(Account.RECOMPUTE, "", amount_us)]
    total = sum(weight for _, _, weight in parts)
    given: list[Part] = []
    passed = before = 0
    for account, tenant, weight in parts:
        passed += weight
        upto = amount_us * passed // total
        given.append((account, tenant, upto - before))
        before = upto
    return given
