"""Whatever the order of events: one answer per submit, nothing reserved for nobody, no count below zero."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capacity.quantities import Answer, Ask, QuantityKind
from core.outcomes import Outcome
from core.request import AttemptKey, ModelIdentity, Role, TenantClass
from router.actions import Place, Refuse, Resync
from router.messages import (
    InstanceInfo,
    LiveRequest,
    LoadReport,
    PrefixEvents,
    Submission,
    WorkerHello,
)
from router.policy import RouterPolicy
from router.router import Action, Router

MODEL = ModelIdentity("model", "r1")
POLICY = RouterPolicy(queue_length_max=6, queue_wait_max_us=5_000_000, answers_max=10_000)
GATEWAYS, WORKERS, TENANTS = ("g0", "g1"), ("p0", "d0", "d1"), ("a", "b", "c")


def info(max_running: int) -> InstanceInfo:
    return InstanceInfo(
        model=MODEL,
        dtype="float32",
        block_size=16,
        blocks_total=64,
        max_positions=1024,
        max_running=max_running,
        cost_base_ns=1_000_000,
        cost_token_ns=100_000,
        cost_context_ns=10,
        kv_bytes_per_token=1000,
    )


class RouterMachine(RuleBasedStateMachine):
    """Gateways that follow the protocol over streams that break; workers that come, go and say anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000_000
        self.router = Router("r", POLICY)
        self.starts = 0
        self.requests = 0
        self.incarnations = dict.fromkeys(GATEWAYS, "")
        self.up: dict[str, bool] = dict.fromkeys(GATEWAYS, False)
        self.waiting: dict[str, dict[AttemptKey, Submission]] = {name: {} for name in GATEWAYS}
        self.placed: dict[str, dict[AttemptKey, tuple[Submission, Place]]] = {name: {} for name in GATEWAYS}
        self.answered: dict[AttemptKey, int] = {}
        self.owner: dict[AttemptKey, str] = {}
        self.asked_us: dict[AttemptKey, int] = {}
        self.workers: dict[str, str] = {}
        self.sequences: dict[str, int] = {}
        self.asks: list[Ask] = []
        self.store_lost = False

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Ask):
                self.asks.append(action)
            elif isinstance(action, Place | Refuse):
                self.answer(action)
            else:
                assert isinstance(action, Resync) or action.tokens >= 0

    def answer(self, action: Place | Refuse) -> None:
        assert self.owner[action.key] == action.gateway
        assert self.up[action.gateway], "an answer to a gateway that is not there"
        submission = self.waiting[action.gateway].pop(action.key, None)
        again = submission is None
        if again:
            if isinstance(action, Refuse) and action.end.outcome is Outcome.DUPLICATE_REQUEST:
                # Settled by the router, which may be only once the deadline and its grace are over.
                placed, _ = self.placed[action.gateway][action.key]
                over_us = self.asked_us[action.key] + placed.deadline_remaining_us
                assert placed.deadline_remaining_us
                assert self.now_us >= over_us + POLICY.deadline_grace_us, "refused after an answer"
                return
            assert isinstance(action, Place), "refused after an answer"
            assert self.placed[action.gateway][action.key][1].legs == action.legs, "two placements"
            return
        self.answered[action.key] = self.answered.get(action.key, 0) + 1
        if isinstance(action, Place):
            assert action.legs[-1].role is Role.DECODE
            assert submission is not None
            self.placed[action.gateway][action.key] = (submission, action)

    @initialize(fleet=st.lists(st.sampled_from(WORKERS), unique=True, min_size=1))
    def start(self, fleet: list[str]) -> None:
        for gateway in GATEWAYS:
            self.connect(gateway, True)
        for worker in fleet:
            self.hello(worker, True, 2)

    @rule(gateway=st.sampled_from(GATEWAYS), restarted=st.booleans())
    def connect(self, gateway: str, restarted: bool) -> None:
        if self.up[gateway]:
            return
        if restarted or not self.incarnations[gateway]:
            self.starts += 1
            self.incarnations[gateway] = f"i{self.starts}"
            self.waiting[gateway].clear()
            self.placed[gateway].clear()
        self.up[gateway] = True
        live = [LiveRequest(one) for one in self.waiting[gateway].values()]
        live += [LiveRequest(one, place.legs) for one, place in self.placed[gateway].values()]
        self.perform(self.router.gateway_up(gateway, self.incarnations[gateway], tuple(live), self.now_us))

    @rule(gateway=st.sampled_from(GATEWAYS))
    def disconnect(self, gateway: str) -> None:
        if self.up[gateway]:
            self.up[gateway] = False
            self.perform(self.router.gateway_down(gateway, self.incarnations[gateway], self.now_us))

    @rule(
        gateway=st.sampled_from(GATEWAYS),
        tenant=st.sampled_from(TENANTS),
        tenant_class=st.sampled_from(list(TenantClass)),
        prompt=st.integers(1, 600),
        limit=st.sampled_from((0, 0, 2)),
        rate=st.sampled_from((0, 0, 2000)),
        choices=st.sampled_from((1, 1, 2)),
        deadline_us=st.sampled_from((0, 500_000, 10_000_000)),
        count=st.sampled_from((1, 2, 5)),
    )
    def submit(
        self, gateway: str, tenant: str, tenant_class: TenantClass, prompt: int, limit: int, rate: int,
        choices: int, deadline_us: int, count: int,
    ) -> None:  # fmt: skip
        for _ in range(count if self.up[gateway] else 0):
            self.requests += 1
            submission = Submission(
                key=AttemptKey(f"q{self.requests}", 1),
                tenant=tenant,
                tenant_class=tenant_class,
                model=MODEL,
                prompt_tokens=prompt,
                max_tokens=100,
                choices=choices,
                prefix_hashes=(self.requests % 5).to_bytes(8, "little") * (prompt // 16),
                deadline_remaining_us=deadline_us,
                tenant_concurrency=limit,
                tenant_tokens_per_minute=rate,
            )
            self.send(gateway, submission)

    def send(self, gateway: str, submission: Submission) -> None:
        self.owner[submission.key] = gateway
        self.waiting[gateway][submission.key] = submission
        self.asked_us.setdefault(submission.key, self.now_us)
        self.perform(self.router.submit(gateway, submission, self.now_us))

    @rule(gateway=st.sampled_from(GATEWAYS), data=st.data())
    def submit_again(self, gateway: str, data: st.DataObject) -> None:
        known = list(self.waiting[gateway].values()) + [one for one, _ in self.placed[gateway].values()]
        if self.up[gateway] and known:
            submission = data.draw(st.sampled_from(known))
            self.perform(self.router.submit(gateway, submission, self.now_us))

    @rule(gateway=st.sampled_from(GATEWAYS), data=st.data())
    def first_token(self, gateway: str, data: st.DataObject) -> None:
        if self.up[gateway] and self.placed[gateway]:
            key = data.draw(st.sampled_from(list(self.placed[gateway])))
            self.perform(self.router.first_token(key, self.now_us))

    @rule(
        gateway=st.sampled_from(GATEWAYS),
        outcome=st.sampled_from((Outcome.COMPLETED, Outcome.CANCELLED, Outcome.WORKER_LOST)),
        retry=st.booleans(),
        twice=st.booleans(),
        data=st.data(),
    )
    def settle(self, gateway: str, outcome: Outcome, retry: bool, twice: bool, data: st.DataObject) -> None:
        if not self.up[gateway] or not self.placed[gateway]:
            return
        key = data.draw(st.sampled_from(list(self.placed[gateway])))
        submission, place = self.placed[gateway].pop(key)
        retry = retry and outcome is Outcome.WORKER_LOST and key.attempt < 3
        for _ in range(1 + twice):
            self.perform(
                self.router.settle(key, outcome, submission.prompt_tokens, 5, not retry, self.now_us)
            )
        if retry:
            following = replace(
                submission,
                key=AttemptKey(key.request, key.attempt + 1),
                output_tokens=5,
                avoid_workers=(place.legs[0].instance.worker,),
                dtype="float32",
            )
            self.send(gateway, following)

    @rule(gateway=st.sampled_from(GATEWAYS), data=st.data())
    def withdraw(self, gateway: str, data: st.DataObject) -> None:
        if self.up[gateway] and self.waiting[gateway]:
            key = data.draw(st.sampled_from(list(self.waiting[gateway])))
            del self.waiting[gateway][key]
            self.perform(self.router.withdraw(key, self.now_us))

    @rule(worker=st.sampled_from(WORKERS), restarted=st.booleans(), max_running=st.sampled_from((2, 5)))
    def hello(self, worker: str, restarted: bool, max_running: int) -> None:
        if restarted or worker not in self.workers:
            self.starts += 1
            self.workers[worker] = f"i{self.starts}"
            self.sequences[worker] = 0
        role = Role.PREFILL if worker.startswith("p") else Role.DECODE
        hello = WorkerHello(worker, self.workers[worker], role, f"{worker}:1", 1, (info(max_running),))
        self.perform(self.router.worker_hello(hello, self.now_us))

    @rule(worker=st.sampled_from(WORKERS))
    def worker_down(self, worker: str) -> None:
        if worker in self.workers:
            self.perform(self.router.worker_down(worker, self.workers[worker], self.now_us))

    @rule(
        worker=st.sampled_from(WORKERS),
        held=st.integers(0, 64),
        running=st.integers(0, 3),
        queued_us=st.sampled_from((0, 50_000, 500_000)),
        draining=st.sampled_from((False,) * 9 + (True,)),
        acknowledged=st.integers(0, 40),
        ended=st.integers(0, 200),
        service=st.integers(0, 10_000_000),
    )
    def report(
        self, worker: str, held: int, running: int, queued_us: int, draining: bool, acknowledged: int,
        ended: int, service: int,
    ) -> None:  # fmt: skip
        if worker not in self.workers:
            return
        self.sequences[worker] += 1
        report = LoadReport(
            sequence=self.sequences[worker],
            model=MODEL,
            blocks_free=64 - held,
            blocks_cached=0,
            blocks_held=held,
            blocks_in_flight=0,
            running=running,
            waiting=0,
            transferring=0,
            queued_prefill_us=queued_us,
            acknowledged=(("r", acknowledged), ("other", 1)),
            service=(("a", service), ("stranger", 5)),
            draining=draining,
            ended=(("r", ended),),
        )
        self.perform(self.router.load_report(worker, self.workers[worker], report, self.now_us))

    @rule(
        worker=st.sampled_from(WORKERS),
        first=st.integers(0, 3),
        snapshot=st.booleans(),
        stored=st.lists(st.integers(0, 4), max_size=3),
        removed=st.lists(st.integers(0, 4), max_size=2),
    )
    def prefixes(
        self, worker: str, first: int, snapshot: bool, stored: list[int], removed: list[int]
    ) -> None:
        if worker in self.workers:
            packed = [b"".join(number.to_bytes(8, "little") for number in part) for part in (stored, removed)]
            events = PrefixEvents(first, MODEL, snapshot, *packed)
            self.perform(self.router.prefix_events(worker, self.workers[worker], events, self.now_us))

    @precondition(lambda self: self.asks)
    @rule(granted=st.integers(0, 3), position=st.integers(0, 5))
    def store_answers(self, granted: int, position: int) -> None:
        if self.store_lost:
            return
        ask = self.asks.pop(position % len(self.asks))
        share = ask.want if ask.quantity.kind is QuantityKind.RATE else min(ask.want, max(granted, ask.claim))
        self.perform(self.router.lease_answered(ask, Answer(share, 3 - min(3, granted)), self.now_us))

    @rule(lost=st.booleans())
    def store(self, lost: bool) -> None:
        if lost != self.store_lost:
            self.store_lost = lost
            if lost:
                self.asks.clear()
            report = self.router.leases_lost if lost else self.router.leases_returned
            self.perform(report(self.now_us))

    @rule(jump_us=st.sampled_from((1, 1_000, 10_000, 100_000, 1_000_000, 40_000_000)))
    def time_passes(self, jump_us: int) -> None:
        self.now_us += jump_us
        self.perform(self.router.tick(self.now_us))

    @invariant()
    def laws_hold(self) -> None:
        self.router.check()
        assert all(count == 1 for count in self.answered.values())
        waiting = sum(len(self.waiting[name]) for name in GATEWAYS if self.up[name])
        assert self.router.snapshot(self.now_us).queued <= waiting

    def teardown(self) -> None:
        """When every gateway is gone, nothing is held for anyone."""
        for gateway in GATEWAYS:
            self.disconnect(gateway)
        for _ in range(100):
            due_us = self.router.next_deadline_us
            if due_us is None or due_us > self.now_us + 100_000_000:
                break
            self.now_us = max(self.now_us + 1, due_us)
            self.perform(self.router.tick(self.now_us))
            self.router.check()
        snapshot = self.router.snapshot(self.now_us)
        assert (snapshot.in_flight, snapshot.queued) == (0, 0)
        self.router.check()
        assert not self.router.reservations()


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
