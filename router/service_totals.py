"""How much more GPU time each tenant was given since the last report."""

from core.request import InstanceKey


class ServiceTotals:
    """Increments of the monotonic totals that load reports carry.

    An instance's first report is only a base: what was spent before this router listened is history.
    """

    def __init__(self, tenants_max: int) -> None:
        self._tenants_max = tenants_max
        self._last: dict[InstanceKey, dict[str, int]] = {}

    def increments(self, instance: InstanceKey, totals: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
        """(tenant, µs) that grew; a total that shrank is taken as a new base."""
        last = self._last.get(instance)
        if last is None:
            self._last[instance] = dict(totals)
            return []
        grown = [(tenant, now - last.get(tenant, 0)) for tenant, now in totals if now > last.get(tenant, 0)]
        last.update(totals)
        if len(last) > self._tenants_max:
            self._last[instance] = dict(totals)
        return grown

    def forget(self, instance: InstanceKey) -> None:
        self._last.pop(instance, None)
