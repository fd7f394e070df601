"""What each engine instance can take, as far as this router knows."""

import hashlib
from dataclasses import dataclass, replace

from core.cost_model import StepCost
from core.prefix_hashes import HASH_UNIT
from core.request import AttemptKey, InstanceKey, ModelIdentity, Role
from router.instance import Instance
from router.messages import InstanceInfo, LoadReport, WorkerHello, WorkerView
from router.policy import RouterPolicy
from router.pool import Pool, PoolKey
from router.prefix_index import PrefixIndex
from router.reservation import Claim, Reservation

RETIRED_MAX = 4096
KNOWN_MODELS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Group:
    """The two pools that serve one model in one dtype."""

    model: ModelIdentity
    dtype: str
    prefill: Pool
    decode: Pool

    def serving(self) -> bool:
        return self.decode.any_usable()


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that any instance of a model was ever declared to hold."""

    max_positions: int
    pool_tokens: int


@dataclass(slots=True)
class _Worker:
    hello: WorkerHello
    heard_us: int
    lost_us: int | None = None
    """When its stream broke; None while it stands."""


class FleetView:
    """Last reports plus own reservations; a worker is its incarnation, and a new one owes nothing.

    A worker whose stream broke takes nothing new at once and is forgotten after a grace.
    """

    def __init__(self, router: str, policy: RouterPolicy, prefixes: PrefixIndex, seed: int) -> None:
        self._router, self._policy, self._prefixes = router, policy, prefixes
        self._free_slots: list[int] = []
        self._seed = seed.to_bytes(8, "little", signed=False)
        self._workers: dict[str, _Worker] = {}
        self._instances: dict[InstanceKey, Instance] = {}
        self._by_number: dict[int, Reservation] = {}
        self._groups: dict[tuple[ModelIdentity, str], Group] = {}
        self._limits: dict[ModelIdentity, Limits] = {}
        self.hash_unit = HASH_UNIT
        """Tokens per prefix hash: one for the fleet."""
        self._retired: dict[tuple[str, str], None] = {}

    # Workers come and go.

    def hello(self, hello: WorkerHello, now_us: int) -> list[InstanceKey] | None:
        """A worker's stream opened: (instances that are gone by it), or None for a ghost's hello."""
        if (hello.worker, hello.incarnation) in self._retired:
            return None
        known = self._workers.get(hello.worker)
        gone = []
        if known is not None:
            names = [info.model for info in hello.instances]
            same = known.hello.incarnation == hello.incarnation
            keep = [key for key in self._of(hello.worker) if same and key.model in names]
            gone = [key for key in self._of(hello.worker) if key not in keep]
            if not same:
                self._retire(known.hello)
        for key in gone:
            self._drop(key)
        self._workers[hello.worker] = _Worker(hello, now_us)
        for info in hello.instances:
            key = InstanceKey(hello.worker, hello.incarnation, info.model)
            self._learn_limits(info)
            if key in self._instances:
                self._instances[key].set_connected(True)
            else:
                self._join(key, hello, info)
        return gone

    def lost(self, worker: str, incarnation: str, now_us: int) -> bool:
        """Its stream broke; False where that stream is not the current one."""
        known = self._workers.get(worker)
        if known is None or known.hello.incarnation != incarnation:
            return False
        known.lost_us = now_us
        for key in self._of(worker):
            self._instances[key].set_connected(False)
        return True

    def expire(self, now_us: int) -> list[InstanceKey]:
        """Forgets workers whose grace is over; returns the instances that went with them."""
        gone: list[InstanceKey] = []
        for name, worker in list(self._workers.items()):
            if worker.lost_us is None or worker.lost_us + self._policy.worker_grace_us > now_us:
                continue
            gone += self._of(name)
            for key in self._of(name):
                self._drop(key)
            self._retire(worker.hello)
            del self._workers[name]
        return gone

    @property
    def next_deadline_us(self) -> int | None:
        lost = [worker.lost_us for worker in self._workers.values() if worker.lost_us is not None]
        return min(lost) + self._policy.worker_grace_us if lost else None

    # What they say.

    def report(self, key: InstanceKey, report: LoadReport, now_us: int) -> list[Reservation] | None:
        """Takes a report; returns the reservations it says have ended, None where it is not news."""
        instance = self._instances.get(key)
        if instance is None or not instance.is_news(report):
            return None
        self._workers[key.worker].heard_us = now_us
        instance.take(
            report, [number for router, number in report.acknowledged if router == self._router], now_us
        )
        ended = [
            instance.reservations.get(number) for router, number in report.ended if router == self._router
        ]
        return [reservation for reservation in ended if reservation is not None]

    # Reservations.

    def reserve(
        self, number: int, key: AttemptKey, instance: InstanceKey, claim: Claim, now_us: int
    ) -> Reservation | None:
        """None where the instance is gone."""
        owner = self._instances.get(instance)
        if owner is None:
            return None
        assert number not in self._by_number, f"reservation {number} exists"
        reservation = self._by_number[number] = Reservation(number, key, instance, claim, now_us)
        owner.add(reservation)
        return reservation

    def release(self, number: int, key: AttemptKey) -> None:
        """Idempotent; another attempt's reservation of this number stays."""
        reservation = self._by_number.get(number)
        if reservation is not None and reservation.key == key:
            del self._by_number[number]
            self._instances[reservation.instance].release(number)

    def prefilled(self, number: int, key: AttemptKey) -> None:
        """The prefill part of a reservation is done; the rest stays. Idempotent."""
        reservation = self._by_number.get(number)
        if reservation is not None and reservation.key == key:
            claim = replace(reservation.claim, prefill_us=0)
            self._instances[reservation.instance].change(number, claim)

    def picked(self, instance: InstanceKey, turn: int) -> None:
        """It was chosen; of near ties, whose turn is longest ago goes next."""
        owner = self._instances[instance]
        owner.pool.write(instance, last_pick=turn)

    # What placement asks.

    def groups(self, model: ModelIdentity, dtype: str) -> list[Group]:
        """Groups that could serve this, newest revision first; an empty revision means any."""
        return [
            group
            for group in reversed(self._groups.values())
            if (group.model == model or (not model.revision and _names(group.model) == _names(model)))
            and (not dtype or group.dtype == dtype)
        ]

    def limits(self, model: ModelIdentity) -> Limits | None:
        """The largest known limits of a model; None where it was never announced."""
        found = [
            limits
            for known, limits in self._limits.items()
            if known == model or (not model.revision and _names(known) == _names(model))
        ]
        if not found:
            return None
        return Limits(max(one.max_positions for one in found), max(one.pool_tokens for one in found))

    def instance(self, key: InstanceKey) -> Instance | None:
        return self._instances.get(key)

    def has(self, number: int) -> bool:
        return number in self._by_number

    def may_serve(self, model: ModelIdentity, dtype: str) -> bool:
        """Whether a worker that could serve this is there, or may reattach within its grace."""
        return any(
            not self._instances[key].draining
            for group in self.groups(model, dtype)
            for key in group.decode.instances
        )

    def reference_cost(self, model: ModelIdentity) -> StepCost | None:
        """The declared cost of the first instance of the newest group that may serve this."""
        for group in self.groups(model, ""):
            for pool in (group.prefill, group.decode):
                if pool.instances:
                    info = self._instances[pool.instances[0]].info
                    return StepCost(info.cost_base_ns, info.cost_token_ns, info.cost_context_ns)
        return None

    def stale(self, now_us: int) -> list[InstanceKey]:
        """Connected instances whose last report is too old to be believed."""
        horizon = now_us - self._policy.report_stale_us
        return [key for key, one in self._instances.items() if one.connected and one.report_us < horizon]

    def workers(self, now_us: int) -> list[WorkerView]:
        views = []
        for name, worker in sorted(self._workers.items()):
            keys = self._of(name)
            reports = [report for key in keys if (report := self._instances[key].report) is not None]
            views.append(WorkerView(worker.hello, tuple(reports), now_us - worker.heard_us, tuple(keys)))
        return views

    def reservations(self) -> list[Reservation]:
        return list(self._by_number.values())

    def check(self) -> None:
        for key, instance in self._instances.items():
            instance.check()
            assert self._workers[key.worker].hello.incarnation == key.incarnation
        assert sum(len(one.reservations) for one in self._instances.values()) == len(self._by_number)
        for number, reservation in self._by_number.items():
            assert self._instances[reservation.instance].reservations[number] is reservation
        for group in self._groups.values():
            group.prefill.check()
            group.decode.check()

    def _own(self, numbers: tuple[tuple[str, int], ...]) -> list[int]:
        return [number for router, number in numbers if router == self._router]

    def _of(self, worker: str) -> list[InstanceKey]:
        return [
            InstanceKey(worker, self._workers[worker].hello.incarnation, info.model)
            for info in self._workers[worker].hello.instances
        ]

    def _join(self, key: InstanceKey, hello: WorkerHello, info: InstanceInfo) -> None:
        group = self._groups.get((info.model, info.dtype))
        if group is None:
            pools = {role: Pool(PoolKey(info.model, info.dtype, role)) for role in Role}
            group = Group(info.model, info.dtype, pools[Role.PREFILL], pools[Role.DECODE])
            self._groups[info.model, info.dtype] = group
        slot = self._free_slots.pop() if self._free_slots else len(self._instances)
        pool = group.prefill if hello.role is Role.PREFILL else group.decode
        self._instances[key] = Instance(
            key, hello.address, info, pool, slot, self._rank(key.worker), self._policy
        )

    def _drop(self, key: InstanceKey) -> None:
        instance = self._instances.pop(key)
        for number in instance.reservations:
            del self._by_number[number]
        instance.pool.remove(key)
        self._prefixes.forget(instance.slot)
        self._free_slots.append(instance.slot)
        group = self._groups[instance.info.model, instance.info.dtype]
        if not group.prefill.instances and not group.decode.instances:
            del self._groups[instance.info.model, instance.info.dtype]

    def _retire(self, hello: WorkerHello) -> None:
        self._retired[hello.worker, hello.incarnation] = None
        if len(self._retired) > RETIRED_MAX:
            del self._retired[next(iter(self._retired))]

    def _learn_limits(self, info: InstanceInfo) -> None:
        known = self._limits.pop(info.model, Limits(0, 0))
        self._limits[info.model] = Limits(
            max(known.max_positions, info.max_positions),
            max(known.pool_tokens, info.blocks_total * info.block_size),
        )
        if len(self._limits) > KNOWN_MODELS_MAX:
            del self._limits[next(iter(self._limits))]

    def _rank(self, worker: str) -> float:
        """This router's own permutation of the workers, so that many routers do not agree on a favourite."""
        digest = hashlib.blake2b(worker.encode(), digest_size=6, key=self._seed).digest()
        return float(int.from_bytes(digest, "little"))


def _names(model: ModelIdentity) -> tuple[str, str]:
    return (model.name, model.adapter)
