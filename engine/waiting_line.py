"""Who of those without blocks is next."""

from bisect import bisect_left, insort
from collections.abc import Iterator

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
    """Per class and lane: the preempted by place, then the head of the tenant who has had least."""

    def __init__(self, shares: ClassShares, turns: TenantTurns) -> None:
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
        tenant = sequence.job.tenant
        if not any(queue[3] == tenant for queue in self._queues):
            self._turns.come(tenant)
        line = (sequence.job.tenant_class, is_long, sequence.was_preempted, tenant)
        sequence.cost_us = cost_us
        self._lines[sequence.number] = line
        insort(self._queues.setdefault(line, []), sequence, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        line = self._lines.pop(sequence.number)
        queue = self._queues[line]
        remove_by_order(queue, sequence)
        if not queue:
            del self._queues[line]

    def classes(self) -> list[TenantClass]:
        return [line[0] for line in self._queues]

    def rank(self, sequence: Sequence) -> Rank:
        """Its place among all who want room: class as it counts now; who is owed, gave way, came first."""
        own = sequence.job.tenant_class
        tenant_class = self._shares.rank(own, sequence.cost_us)
        return (tenant_class, tenant_class == own, not sequence.was_preempted, sequence.order)

    def head(
        self, *, is_long: bool, rank: TenantClass | None = None, with_owed: bool = False
    ) -> Sequence | None:
        """The next of a lane, of the classes that count as `rank` now, or of all.

        `with_owed`: a long one whose tenant is owed it stands in the lane of the short ones.
        """
        least = self._least_of_shorts() if with_owed and not is_long else None
        best: Sequence | None = None
        best_key: tuple[int, bool, bool, int, tuple[int, int]] | None = None
        for (own, long, preempted, tenant), queue in self._queues.items():
            first = queue[0]
            is_owed = long and least is not None and self._is_owed(first, least)
            if (long and not is_owed) is not is_long:
                continue
            tenant_class = self._shares.rank(own, first.cost_us)
            key = (
                tenant_class,
                tenant_class == own,
                not preempted,
                0 if preempted else self._turns[tenant],
                first.order,
            )
            if (rank is None or key[0] == rank) and (best_key is None or key < best_key):
                best, best_key = first, key
        return best

    def _is_owed(self, first: Sequence, least_ns: int) -> bool:
        job = first.job
        return self._turns.after(job.tenant, job.tenant_weight, first.cost_us * 1000) <= least_ns

    def _least_of_shorts(self) -> int | None:
        return min((self._turns[queue[3]] for queue in self._queues if not queue[1]), default=None)

    def check(self) -> None:
        assert sum(len(queue) for queue in self._queues.values()) == len(self._lines)
        for queue in self._queues.values():
            assert all(sequence.phase is Phase.WAITING for sequence in queue)
            assert [sequence.order for sequence in queue] == sorted(sequence.order for sequence in queue)
        assert all(not sequence.blocks and not sequence.computed for sequence in self)
