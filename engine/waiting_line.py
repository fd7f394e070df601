"""Who of those without blocks is next."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping

from core.request import TenantClass
from engine.class_shares import ClassShares
from engine.sequence import Phase, Sequence
from engine.tenant_turns import TenantTurns

Queue = tuple[TenantClass, bool, bool, str]
"""(class, is long, was preempted, tenant): each is a queue of its own, by place."""
Rank = tuple[int, bool, bool, tuple[int, int]]


def by_order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def remove_by_order(queue: list[Sequence], sequence: Sequence) -> None:
    index = bisect_left(queue, sequence.order, key=by_order)
    assert queue[index] is sequence
    del queue[index]


class WaitingLine:
    """Per class and lane: the preempted by place, then the head of the tenant who has had least of the class.

    Between classes, shares decide which counts as the most urgent, and then place.
    """

    def __init__(self, shares: ClassShares, turns: Mapping[TenantClass, TenantTurns]) -> None:
        self._shares = shares
        self._turns = turns
        self._queues: dict[Queue, list[Sequence]] = {}
        self._lines: dict[int, Queue] = {}
        """By sequence number."""

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def add(self, sequence: Sequence, cost_us: int, *, is_long: bool) -> None:
        """`cost_us`: what is left to compute of it before it decodes."""
        tenant, own = sequence.job.tenant, sequence.job.tenant_class
        if not sequence.was_preempted:  # who gives way has not paused
            self.come(sequence)
        line = (own, is_long, sequence.was_preempted, tenant)
        sequence.cost_us = cost_us
        self._lines[sequence.number] = line
        insort(self._queues.setdefault(line, []), sequence, key=by_order)

    def come(self, sequence: Sequence) -> None:
        """Its tenant has this to compute, now or when its KV is here; if nothing of it waits, it was away."""
        tenant, own = sequence.job.tenant, sequence.job.tenant_class
        if not any((queue[0], queue[3]) == (own, tenant) for queue in self._queues):
            self._turns[own].come(tenant)

    def bound(self, sequence: Sequence) -> None:
        """It has room without having waited here: its tenant came, and was chosen."""
        self.come(sequence)
        self._turns[sequence.job.tenant_class].chosen(sequence.job.tenant)

    def remove(self, sequence: Sequence) -> None:
        line = self._lines.pop(sequence.number)
        queue = self._queues[line]
        remove_by_order(queue, sequence)
        if not queue:
            del self._queues[line]

    def tenants(self, tenant_class: TenantClass) -> list[str]:
        return [queue[3] for queue in self._queues if queue[0] is tenant_class]

    def classes(self) -> list[TenantClass]:
        return [line[0] for line in self._queues]

    def rank(self, sequence: Sequence) -> Rank:
        """Its place among all who want room: class as it counts now; who is owed, gave way, came first."""
        own = sequence.job.tenant_class
        tenant_class = self._shares.rank(own, sequence.cost_us)
        return (tenant_class, tenant_class == own, not sequence.was_preempted, sequence.order)

    def oldest_us(self, begun: list[Sequence]) -> dict[TenantClass, int]:
        """By class, what the first by place costs of those that wait and these."""
        oldest: dict[TenantClass, Sequence] = {}
        for sequence in (*(queue[0] for queue in self._queues.values()), *begun):
            own = sequence.job.tenant_class
            oldest[own] = min(sequence, oldest.get(own, sequence), key=by_order)
        return {own: sequence.cost_us for own, sequence in oldest.items()}

    def head(
        self, *, is_long: bool, rank: TenantClass, may_begin_long: Collection[TenantClass]
    ) -> Sequence | None:
        """The next of a lane, of the classes that count as `rank` now.

        Of the classes that may begin a long one, a long one whose tenant is owed it stands in the lane of
        the short ones.
        """
        shorts = self._shorts(rank) if may_begin_long and not is_long else {}
        least_ns = {
            own: min(self._turns[own][tenant] for tenant in tenants)
            for own, tenants in shorts.items()
            if tenants
        }
        heads: dict[TenantClass, tuple[tuple[bool, int, tuple[int, int]], Sequence]] = {}
        for (own, long, preempted, tenant), queue in self._queues.items():
            first = queue[0]
            if (long and own not in may_begin_long) or self._shares.rank(own, first.cost_us) != rank:
                continue
            is_owed = long and bool(shorts) and self._is_owed(first, rank, least_ns.get(own), shorts[own])
            if (long and not is_owed) is not is_long:
                continue
            key = (not preempted, 0 if preempted else self._turns[own][tenant], first.order)
            if own not in heads or key < heads[own][0]:
                heads[own] = (key, first)
        return min((first for _, first in heads.values()), key=self.rank, default=None)

    def _is_owed(
        self, first: Sequence, rank: TenantClass, least_ns: int | None, shorts: dict[str, Rank]
    ) -> bool:
        """Whether it may enter among these short ones of its class, by tenant.

        `least_ns`: where the one of those tenants stands that has had least; None where there are none.
        Its tenant, given all of it, would be no further than any of theirs; or it is that tenant's turn,
        and of its own prompts place decides; or there are none, and the class has saved up for it.
        """
        job = first.job
        if least_ns is None:
            return job.tenant_class is not rank
        turns = self._turns[job.tenant_class]
        if turns.after(job.tenant, job.tenant_weight, first.cost_us * 1000) <= least_ns:
            return True
        own = shorts.get(job.tenant)
        return own is not None and turns[job.tenant] <= least_ns and self.rank(first) < own

    def _shorts(self, rank: TenantClass) -> dict[TenantClass, dict[str, Rank]]:
        """By class and tenant, where its first short one stands that counts as `rank`."""
        shorts: dict[TenantClass, dict[str, Rank]] = {tenant_class: {} for tenant_class in TenantClass}
        for (own, long, _, tenant), queue in self._queues.items():
            if not long and (first := self.rank(queue[0]))[0] == rank:
                shorts[own][tenant] = min(first, shorts[own].get(tenant, first))
        return shorts

    def check(self) -> None:
        assert sum(len(queue) for queue in self._queues.values()) == len(self._lines)
        for queue in self._queues.values():
            assert all(sequence.phase is Phase.WAITING for sequence in queue)
            assert [sequence.order for sequence in queue] == sorted(sequence.order for sequence in queue)
        assert all(not sequence.blocks and not sequence.computed for sequence in self)
