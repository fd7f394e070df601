"""Which tenant goes next."""

import heapq

from core.request import AttemptKey, TenantClass, bounded_weight
from router.policy import RouterPolicy
from router.tenant_queue import LaneKey, TenantQueue, Waiting

Keys = tuple[AttemptKey, ...]

CREDIT_MAX_US = 1_000_000


class FairQueue:
    """One model's waiting attempts: classes by urgency, tenants by weighted service, lanes by size.

    Weighted fairness is start-time fair queueing (Goyal et al. 1996) over measured GPU time: of the
    tenants that wait, the one with the least service per weight goes; one that comes back from idleness
    starts level with the others, so nobody saves up. Less urgent classes earn credit from what others
    are given and go first once it pays for their head: their minimum share.
    """

    def __init__(self, policy: RouterPolicy) -> None:
        self._policy = policy
        self._tenants: dict[str, TenantQueue] = {}
        """Least recently active first."""
        self._entries: dict[AttemptKey, Waiting] = {}
        self._heaps: dict[LaneKey, list[tuple[float, int, str]]] = {
            (tenant_class, short): [] for tenant_class in TenantClass for short in (True, False)
        }
        self._floor_us = dict.fromkeys(TenantClass, 0.0)
        self._credit_us = dict.fromkeys(TenantClass, 0.0)
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._entries

    @property
    def queued_us(self) -> int:
        """Predicted work of all that waits."""
        return sum(entry.cost_us for entry in self._entries.values())

    def push(self, waiting: Waiting) -> Waiting | None:
        """Takes it in; returns who has to leave for it: None if there is room, itself where nobody yields."""
        leaver = self._leaver(waiting) if len(self._entries) >= self._policy.queue_length_max else None
        if leaver is waiting:
            return waiting
        if leaver is not None:
            self.remove(leaver.key)
        tenant = self._tenant(waiting.tenant)
        tenant.weight = bounded_weight(waiting.weight)
        if not any(lane[0] is waiting.tenant_class for lane in tenant.lanes):
            tenant.virtual_us = max(tenant.virtual_us, self._floor_us[waiting.tenant_class])
        tenant.push(waiting)
        self._entries[waiting.key] = waiting
        self._rank(tenant)
        return leaver

    def pick(
        self, longs: bool = True, batch: bool = True, skip: tuple[AttemptKey, ...] = ()
    ) -> Waiting | None:
        """Who goes next, left where it is; without long prompts or class batch where those are blocked."""
        heads = [
            head
            for tenant_class in TenantClass
            if (batch or tenant_class is not TenantClass.BATCH)
            and (head := self._head(tenant_class, longs, skip)) is not None
        ]
        earned = [head for head in heads if self._credit_us[head.tenant_class] >= head.cost_us]
        # Of those that earned their turn the least urgent: it has waited for the longest string of others.
        return earned[-1] if earned else (heads[0] if heads else None)

    def take(self, key: AttemptKey) -> Waiting:
        """It was placed: leaves the queue and is charged."""
        waiting = self._entries[key]
        tenant = self._tenants[waiting.tenant]
        self._floor_us[waiting.tenant_class] = max(self._floor_us[waiting.tenant_class], tenant.virtual_us)
        self._share_credit(waiting)
        tenant.took(waiting)
        self.remove(key)
        tenant.charge(waiting.cost_us)
        self._rank(tenant)
        return waiting

    def remove(self, key: AttemptKey) -> bool:
        """It left without being placed. Idempotent."""
        waiting = self._entries.pop(key, None)
        if waiting is None:
            return False
        self._tenants[waiting.tenant].remove(waiting)
        self._drop_credit(waiting.tenant_class)
        return True

    def charge(self, tenant_name: str, weight: float, cost_us: int) -> None:
        """An attempt that runs without having waited here: re-announced after a restart."""
        tenant = self._tenant(tenant_name)
        tenant.weight = bounded_weight(weight)
        tenant.charge(cost_us)
        self._rank(tenant)

    def settled(self, tenant_name: str, cost_us: int) -> None:
        """A charged attempt ended."""
        tenant = self._tenants[tenant_name]
        tenant.settle(cost_us)
        self._rank(tenant)

    def served(self, tenant_name: str, service_us: int) -> None:
        """A worker reports this much more GPU time; tenants unknown here start level when they come."""
        tenant = self._tenants.get(tenant_name)
        if tenant is not None and service_us > 0:
            tenant.served(service_us)
            self._rank(tenant)

    def service_us(self, tenant_name: str) -> float:
        """Service per weight, for people."""
        tenant = self._tenants.get(tenant_name)
        return 0.0 if tenant is None else tenant.virtual_us

    @property
    def tenants(self) -> int:
        return len(self._tenants)

    def check(self) -> None:
        assert len(self._entries) == sum(tenant.waiting for tenant in self._tenants.values())
        assert len(self._entries) <= self._policy.queue_length_max
        ranked = {lane: {(entry[0], entry[2]) for entry in heap} for lane, heap in self._heaps.items()}
        for name, tenant in self._tenants.items():
            tenant.check()
            for lane, waiting in tenant.lanes.items():
                assert (tenant.virtual_us, name) in ranked[lane], f"{name} has no rank in {lane}"
                assert all(one.lane == lane and self._entries[one.key] is one for one in waiting.values())
        assert all(0 <= credit <= CREDIT_MAX_US for credit in self._credit_us.values())

    # Heads.

    def _head(self, tenant_class: TenantClass, longs: bool, skip: Keys) -> Waiting | None:
        tops = [self._top((tenant_class, short)) for short in ((True, False) if longs else (True,))]
        found = [tenant for tenant in tops if tenant is not None]
        if not found:
            return None
        tenant = min(found, key=lambda one: one.virtual_us)
        lanes = [(tenant_class, short) for short in ((True, False) if longs else (True,))]
        lane = min(
            (lane for lane in lanes if lane in tenant.lanes), key=lambda one: tenant.lane_us.get(one, 0)
        )
        head = next((one for one in tenant.lanes[lane].values() if one.key not in skip), None)
        if head is not None or not skip:
            return head
        return self._head_beyond(tenant_class, longs, skip)

    def _head_beyond(
        self, tenant_class: TenantClass, longs: bool, skip: tuple[AttemptKey, ...]
    ) -> Waiting | None:
        """The head where the first choice is to be skipped: rare, so by looking at every tenant."""
        ranked = sorted(self._tenants.values(), key=lambda one: (one.virtual_us, one.name))
        for tenant in ranked:
            for short in (True, False) if longs else (True,):
                for one in tenant.lanes.get((tenant_class, short), {}).values():
                    if one.key not in skip:
                        return one
        return None

    def _top(self, lane: LaneKey) -> TenantQueue | None:
        """The tenant of least service with something in this lane; stale heap entries go."""
        heap = self._heaps[lane]
        while heap:
            virtual_us, _, name = heap[0]
            tenant = self._tenants.get(name)
            if tenant is not None and tenant.virtual_us == virtual_us and lane in tenant.lanes:
                return tenant
            heapq.heappop(heap)
        return None

    def _rank(self, tenant: TenantQueue) -> None:
        """Its service or its lanes changed."""
        for lane in tenant.lanes:
            heap = self._heaps[lane]
            self._count += 1
            heapq.heappush(heap, (tenant.virtual_us, self._count, tenant.name))
            if len(heap) > 64 + 4 * len(self._tenants):
                self._rebuild(lane)

    def _rebuild(self, lane: LaneKey) -> None:
        heap = [
            (tenant.virtual_us, number, name)
            for number, (name, tenant) in enumerate(self._tenants.items())
            if lane in tenant.lanes
        ]
        heapq.heapify(heap)
        self._heaps[lane] = heap

    # Bounds.

    def _tenant(self, name: str) -> TenantQueue:
        tenant = self._tenants.pop(name, None) or TenantQueue(name)
        self._tenants[name] = tenant
        if len(self._tenants) > self._policy.tenants_max:
            idle = next((one for one in self._tenants.values() if one.idle and one is not tenant), None)
            if idle is not None:
                del self._tenants[idle.name]
        return tenant

    def _leaver(self, newcomer: Waiting) -> Waiting:
        """Who yields when the queue is full: the newest of the least urgent class's longest queue."""
        lowest = max((lane[0] for tenant in self._tenants.values() for lane in tenant.lanes), default=None)
        if lowest is None or lowest < newcomer.tenant_class:
            return newcomer
        longest = max(self._tenants.values(), key=lambda one: _waiting_in(one, lowest))
        own = self._tenants.get(newcomer.tenant)
        more_urgent = newcomer.tenant_class < lowest
        if not more_urgent and _waiting_in(longest, lowest) <= (_waiting_in(own, lowest) if own else 0) + 1:
            return newcomer
        newest = [
            next(reversed(queue.values())) for lane, queue in longest.lanes.items() if lane[0] is lowest
        ]
        return max(newest, key=lambda one: (one.arrived_us, one.key))

    # Minimum shares.

    def _share_credit(self, taken: Waiting) -> None:
        for tenant_class in TenantClass:
            if tenant_class is taken.tenant_class:
                self._credit_us[tenant_class] = max(0.0, self._credit_us[tenant_class] - taken.cost_us)
            elif self._waits(tenant_class):
                earned = self._policy.minimum_share(tenant_class) * taken.cost_us
                self._credit_us[tenant_class] = min(CREDIT_MAX_US, self._credit_us[tenant_class] + earned)

    def _drop_credit(self, tenant_class: TenantClass) -> None:
        if not self._waits(tenant_class):
            self._credit_us[tenant_class] = 0.0

    def _waits(self, tenant_class: TenantClass) -> bool:
        return any(self._top((tenant_class, short)) is not None for short in (True, False))


def _waiting_in(tenant: TenantQueue, tenant_class: TenantClass) -> int:
    return sum(len(queue) for lane, queue in tenant.lanes.items() if lane[0] is tenant_class)
