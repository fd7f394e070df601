"""What workers say of their memory and their time is so, in a live fleet under the worst mix of work."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import router_pb2, worker_pb2, worker_pb2_grpc
from tests.e2e import mixed_load
from tests.e2e.grpc_client import Answer
from tests.e2e.live_fleet import LiveFleet, eventually, running

ROLES = ("decode-0", "prefill-0")
OVER_BUDGET_MAX = 1.1
LEDGER_ERROR_MAX = 0.01


@dataclass(frozen=True, slots=True)
class Seen:
    """One worker at one moment."""

    report: router_pb2.LoadReport
    at_s: float
    """By the test's clock."""
    peak_mib: float
    """Of resident memory, since the process started."""

    @property
    def owned_us(self) -> dict[str, int]:
        time = self.report.wall_time
        accounts = ("work_us", "recompute_us", "rejected_speculation_us", "cancelled_us")
        owned = {name: sum(getattr(tenant, name) for tenant in time.tenants) for name in accounts}
        return {**owned, "transfer_stall_us": time.transfer_stall_us, "idle_us": time.idle_us}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A fleet's workers before and after the load, and what they had said at their start."""

    budgets: dict[str, dict[str, Any]]
    before: dict[str, Seen]
    after: dict[str, Seen]
    answers: list[Answer]


def budgets(fleet: LiveFleet) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in list(fleet.errors) if '"memory_budget"' in line]
    return {line["id"]: line for line in lines}


def look(budget: dict[str, Any]) -> Seen:
    with grpc.insecure_channel(budget["address"]) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        grpc.channel_ready_future(channel).result(10)
        asked_s = time.monotonic()
        state = stub.GetState(worker_pb2.GetWorkerStateRequest(), timeout=10)
    answered_s = time.monotonic()
    assert state.broken_law == ""
    status = Path(f"/proc/{budget['pid']}/status").read_text()
    (peak_kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return Seen(state.loads[0], (asked_s + answered_s) / 2, int(peak_kib) / 1024)


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    flags = ("--no-sample", "--kv-blocks", str(mixed_load.KV_BLOCKS))
    with running(*flags, environment={"BATON_DECODE_HOST_KV_PERCENT": str(mixed_load.HOST_PERCENT)}) as fleet:
        eventually(lambda: len(budgets(fleet)) == len(ROLES), 5, "every worker says its budget")
        said = budgets(fleet)
        before = {role: look(said[role]) for role in ROLES}
        answers = asyncio.run(mixed_load.run(fleet.grpc))
        after = {role: look(said[role]) for role in ROLES}
        yield Loaded(said, before, after, answers)


def test_the_load_was_the_worst_mix(loaded: Loaded) -> None:
    """Else the other tests would show less than they say."""
    reasons = [answer.error.reason for answer in loaded.answers if answer.error]
    assert reasons == ["cancelled"] * 2 * mixed_load.OTHERS
    home = loaded.after["decode-0"]
    assert home.report.preemptions > 0
    for owner in ("work_us", "recompute_us", "rejected_speculation_us", "cancelled_us", "transfer_stall_us"):
        assert home.owned_us[owner] > 0, owner


@pytest.mark.parametrize("role", ROLES)
def test_a_worker_stays_within_its_budget(loaded: Loaded, role: str) -> None:
    """A fleet of one pair has one lane."""
    budget = loaded.budgets[role]
    parts = ("programs", "weights", "kv_pool", "host_pool", "workspace")
    assert budget["total_mib"] == pytest.approx(sum(budget[f"{part}_mib"] for part in parts), abs=0.5)
    allowed_mib = OVER_BUDGET_MAX * (budget["total_mib"] + budget["each_lane_mib"])
    assert loaded.after[role].peak_mib <= allowed_mib, budget


@pytest.mark.parametrize("role", ROLES)
def test_every_millisecond_has_an_owner(loaded: Loaded, role: str) -> None:
    before, after = loaded.before[role], loaded.after[role]
    owned_us = sum(after.owned_us.values()) - sum(before.owned_us.values())
    assert owned_us == after.report.wall_time.wall_us - before.report.wall_time.wall_us
    assert owned_us / 1e6 == pytest.approx(after.at_s - before.at_s, rel=LEDGER_ERROR_MAX)
