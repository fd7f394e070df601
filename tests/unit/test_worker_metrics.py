"""A worker's dashboard page: counted when asked, and bounded however many tenants there are."""

from prometheus_client import CollectorRegistry

from engine.job import BlockCounts
from engine.millisecond_ledger import TenantTime, WallTime
from engine.step_times import ComputedSoFar
from rpc.metrics import exposition
from worker.metrics import TENANTS_MAX, WorkerMetrics
from worker.reports import Load, report_to_wire


def _load(tenants: int) -> Load:
    times = tuple(TenantTime(f"tenant-{n:04}", 1_000 * (n + 1), 10, 0, 1) for n in range(tenants))
    owned_us = sum(t.work_us + t.recompute_us + t.cancelled_us for t in times)
    return Load(
        blocks=BlockCounts(100, 50, 20, 25, 5),
        running=3,
        waiting=2,
        transferring=1,
        queued_prefill_us=1_500_000,
        service_us={},
        draining=False,
        wall_time=WallTime(owned_us + 700, 500, 200, times),
        computed=ComputedSoFar(7, 800, 9_000),
        preemptions=4,
        swaps=3,
        host_blocks_used=9,
        unused_slots=12,
        drafted=60,
        accepted=45,
    )


def _page(tenants: int) -> list[str]:
    registry = CollectorRegistry()
    registry.register(WorkerMetrics(lambda: _load(tenants)))
    page, _ = exposition(registry)
    return page.decode().splitlines()


def test_the_page_has_what_the_load_has() -> None:
    page = _page(2)
    for line in (
        'baton_worker_blocks{state="in_flight"} 5.0',
        "baton_worker_queued_prefill_seconds 1.5",
        "baton_worker_preemptions_total 4.0",
        "baton_worker_unused_slots 12.0",
        "baton_worker_spec_decode_draft_tokens_total 60.0",
        "baton_worker_spec_decode_accepted_tokens_total 45.0",
        "baton_worker_computed_tokens_total 800.0",
        'baton_worker_seconds_total{owner="work"} 0.003',
        'baton_worker_seconds_total{owner="transfer_stall"} 0.0005',
        'baton_worker_tenant_seconds_total{account="work",tenant="tenant-0001"} 0.002',
    ):
        assert line in page, line


def test_however_many_tenants_the_series_are_few_and_lose_nothing() -> None:
    page = [line for line in _page(5_000) if line.startswith("baton_worker_tenant_seconds_total")]
    assert len(page) == 4 * (TENANTS_MAX + 1)
    works = [float(line.rpartition(" ")[2]) for line in page if 'account="work"' in line]
    assert abs(sum(works) - sum(range(1, 5_001)) / 1e3) < 1e-6


def test_a_load_report_says_whose_the_time_was() -> None:
    wire = report_to_wire(_load(2), 1, None)  # type: ignore[arg-type]
    time = wire.wall_time
    owned_us = sum(
        t.work_us + t.recompute_us + t.rejected_speculation_us + t.cancelled_us for t in time.tenants
    )
    assert owned_us + time.transfer_stall_us + time.idle_us == time.wall_us
    assert (wire.preemptions, wire.swaps, wire.host_blocks_used, wire.unused_slots) == (4, 3, 9, 12)


def test_a_load_report_says_how_many_drafts_came_true() -> None:
    wire = report_to_wire(_load(0), 1, None)  # type: ignore[arg-type]
    assert (wire.draft_tokens, wire.accepted_draft_tokens) == (60, 45)
