"""Whose each millisecond of an engine was, case by case."""

from typing import Any

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.accounts import Account, split
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Job, Stage
from engine.millisecond_ledger import MillisecondLedger
from engine.timed_backend import TimedBackend, digest_layout

COST = StepCost(base_ns=1_000_000, token_ns=100_000, context_ns=0)


class Node:
    """An engine whose driver adds a little time of its own around every step."""

    def __init__(self, **config: int) -> None:
        settings: dict[str, Any] = {"prefix_cache": False, **config}
        self.engine = Engine(EngineConfig(blocks=32, **settings), COST)
        self.backend = TimedBackend(COST, digest_layout(16, 32))
        self.now_us = 5_000

    def add(self, name: str, prompt: int = 20, max_tokens: int = 4, stage: Stage = Stage.FULL) -> AttemptKey:
        job = Job(
            key=AttemptKey(name, 0),
            prompt=tuple(range(prompt)),
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
            hash_root=b"rootroot",
            tenant=name[0],
            tenant_class=TenantClass.INTERACTIVE if name[0] == "i" else TenantClass.BATCH,
        )
        assert self.engine.add(job, stage, self.now_us) is None
        return job.key

    def step(self, cancel: AttemptKey | None = None) -> bool:
        plan = self.engine.plan(self.now_us)
        if plan is None:
            return False
        result = self.backend.execute(plan)
        self.now_us += result.elapsed_us + 30
        if cancel is not None:
            self.engine.cancel(cancel, self.now_us)
        self.engine.step_done(result, self.now_us)
        self.engine.check()
        return True


def test_work_is_its_tenants_and_waiting_is_nobodys() -> None:
    node = Node()
    began_us = node.now_us
    node.add("a")
    while node.step():
        pass
    busy_us = node.now_us - began_us
    node.now_us += 700_000
    time = node.engine.wall_time(node.now_us)
    assert (time.wall_us, time.idle_us) == (busy_us + 700_000, 700_000)
    assert [(tenant.tenant, tenant.work_us) for tenant in time.tenants] == [("a", busy_us)]
    assert time.transfer_stall_us == 0
    computed = node.engine.computed
    assert (computed.steps, computed.tokens) == (4, 20 + 3)
    assert computed.pairs == sum(range(1, 24))


def test_waiting_for_kv_is_a_stall_and_waiting_for_work_is_not() -> None:
    node = Node()
    key = node.add("d", stage=Stage.DECODE)
    node.now_us += 1_000
    assert node.engine.bind(key, node.now_us) is not None
    node.now_us += 20_000
    node.engine.cancel(key, node.now_us)
    node.now_us += 300
    time = node.engine.wall_time(node.now_us)
    assert (time.idle_us, time.transfer_stall_us) == (1_300, 20_000)


def test_a_row_cancelled_while_it_runs_is_cancelled_work_of_its_tenant() -> None:
    node = Node()
    key = node.add("c", prompt=100)
    node.add("w")
    node.step(cancel=key)
    tenants = {tenant.tenant: tenant for tenant in node.engine.wall_time(node.now_us).tenants}
    assert tenants["c"].cancelled_us > tenants["w"].work_us > 0
    assert tenants["c"].work_us == tenants["w"].cancelled_us == 0


def test_what_a_preempted_sequence_computes_again_is_recompute() -> None:
    node = Node(max_running=1)
    node.add("b", prompt=100, max_tokens=30)
    for _ in range(5):
        node.step()
    node.add("i")
    while node.step():
        pass
    time = node.engine.wall_time(node.now_us)
    assert time.total_us(Account.RECOMPUTE) > COST.prefill_us(100, 0) // 2
    assert {tenant.tenant: tenant.recompute_us > 0 for tenant in time.tenants} == {"b": True, "i": False}


def test_moving_kv_without_rows_is_recompute_of_nobody() -> None:
    ledger = MillisecondLedger()
    ledger.wait(100, is_stalled=False)
    ledger.step(150, [])
    (tenant,) = ledger.wall_time().tenants
    assert (tenant.tenant, tenant.recompute_us) == ("", 50)


def test_a_clock_that_stands_or_goes_back_adds_nothing() -> None:
    ledger = MillisecondLedger()
    for now_us in (100, 100, 40, 130):
        ledger.wait(now_us, is_stalled=False)
    ledger.check()
    assert ledger.wall_time().wall_us == 30


def test_a_split_gives_out_everything() -> None:
    parts = [(Account.WORK, "a", 3), (Account.REJECTED, "a", 3), (Account.CANCELLED, "b", 1)]
    assert split(100, parts) == [
        (Account.WORK, "a", 42),
        (Account.REJECTED, "a", 43),
        (Account.CANCELLED, "b", 15),
    ]
