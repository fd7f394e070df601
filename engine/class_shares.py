"""Which tenant class is owed compute although a more urgent one wants it."""

from collections.abc import Iterable, Mapping

from core.request import TenantClass

MINIMUM_PARTS = {TenantClass.STANDARD: 10, TenantClass.BATCH: 20}
"""A class that has work gets at least one part in so many of the engine's time."""
CREDIT_MAX_US = 500_000
"""What a class can have saved up; so much compute it may get in one go."""


class ClassShares:
    """Credit in microseconds of predicted reference time: earned while there is work, spent by computing.

    A class whose credit covers what its next sequence costs counts as the most urgent; while it has
    any, its running sequences are not displaced. A class that has been served beyond its least
    share has none. Credit is saved up for the class's oldest: what costs less waits as long for it, or
    small ones would spend all that a large one needs.
    """

    def __init__(self) -> None:
        self._credit_ns = dict.fromkeys(MINIMUM_PARTS, 0)
        self._spent_ns = dict.fromkeys(MINIMUM_PARTS, 0)
        """By the step being planned."""
        self._oldest_us = dict.fromkeys(MINIMUM_PARTS, 0)

    def begin_step(self, oldest_us: Mapping[TenantClass, int]) -> None:
        """What the prompt costs that came first of each class's uncomputed ones."""
        for tenant_class in MINIMUM_PARTS:
            self._oldest_us[tenant_class] = oldest_us.get(tenant_class, 0)

    def rank(self, tenant_class: TenantClass, cost_us: int) -> TenantClass:
        """The class it counts as, for a prompt of this cost."""
        return self._rank(tenant_class, max(cost_us, self._oldest_us.get(tenant_class, 0)))

    def rank_of_running(self, tenant_class: TenantClass) -> TenantClass:
        """The class it counts as, for keeping room it has."""
        return self._rank(tenant_class, 1)

    def spend(self, tenant_class: TenantClass, cost_ns: int) -> None:
        if tenant_class in self._spent_ns:
            self._spent_ns[tenant_class] += cost_ns

    def end_step(self, classes: Iterable[TenantClass], step_ns: int) -> None:
        """A step of this length is planned, and these classes have work."""
        present = dict.fromkeys(classes)
        for tenant_class, parts in MINIMUM_PARTS.items():
            earned_ns = step_ns // parts if tenant_class in present else 0
            credit_ns = self._credit_ns[tenant_class] + earned_ns - self._spent_ns[tenant_class]
            self._credit_ns[tenant_class] = min(max(0, credit_ns), CREDIT_MAX_US * 1000)
            self._spent_ns[tenant_class] = 0

    def _rank(self, tenant_class: TenantClass, cost_us: int) -> TenantClass:
        if tenant_class not in self._credit_ns:
            return tenant_class
        left_ns = self._credit_ns[tenant_class] - self._spent_ns[tenant_class]
        return TenantClass.INTERACTIVE if left_ns >= _needed_ns(cost_us) else tenant_class


def _needed_ns(cost_us: int) -> int:
    return max(1, min(cost_us, CREDIT_MAX_US) * 1000)
