"""What a worker counts for dashboards: its load when asked, and who owned its time."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.accounts import Account
from engine.millisecond_ledger import TenantTime, WallTime
from worker.reports import Load

TENANTS_MAX = 20
"""Tenants with series of their own, those with most work; the others are summed up as `~other`."""


class WorkerMetrics(Collector):
    """Nothing is kept here: every page is one reading of the load."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        yield from self._gauges(load)
        yield from self._counters(load)
        yield self._seconds(load.wall_time)
        yield self._tenant_seconds(load.wall_time)

    def _gauges(self, load: Load) -> Iterator[Metric]:
        blocks = GaugeMetricFamily("baton_worker_blocks", "KV blocks by state.", labels=["state"])
        for state in ("free", "cached", "held", "in_flight"):
            blocks.add_metric([state], getattr(load.blocks, state))
        yield blocks
        for name, text, value in (
            ("running", "Sequences with compute in progress.", load.running),
            ("waiting", "Requests without blocks.", load.waiting),
            ("transferring", "Requests whose KV is on its way.", load.transferring),
            ("queued_prefill_seconds", "Predicted time of the prefill here.", load.queued_prefill_us / 1e6),
            ("host_blocks_used", "Blocks kept in the host pool.", load.host_blocks_used),
            ("unused_slots", "Token slots allocated and not computed.", load.unused_slots),
        ):
            yield GaugeMetricFamily(f"baton_worker_{name}", text, value=value)

    def _counters(self, load: Load) -> Iterator[Metric]:
        for name, text, value in (
            ("preemptions", "Sequences that gave way for others.", load.preemptions),
            ("swaps", "Of those, the ones kept on the host.", load.swaps),
            ("steps", "Steps with rows; each reads the weights once.", load.computed.steps),
            ("computed_tokens", "Tokens fed, computed again or not.", load.computed.tokens),
            ("attended_pairs", "Token pairs attended to.", load.computed.pairs),
            ("spec_decode_draft_tokens", "Tokens computed on trial.", load.drafted),
            ("spec_decode_accepted_tokens", "Of those, the ones that came true.", load.accepted),
        ):
            yield CounterMetricFamily(f"baton_worker_{name}", text, value=value)

    def _seconds(self, time: WallTime) -> Metric:
        seconds = CounterMetricFamily(
            "baton_worker_seconds", "Wall time by owner; the owners add up to it.", labels=["owner"]
        )
        for account in Account:
            seconds.add_metric([account.value], time.total_us(account) / 1e6)
        seconds.add_metric(["transfer_stall"], time.transfer_stall_us / 1e6)
        seconds.add_metric(["idle"], time.idle_us / 1e6)
        return seconds

    def _tenant_seconds(self, time: WallTime) -> Metric:
        seconds = CounterMetricFamily(
            "baton_worker_tenant_seconds", "Wall time by tenant and account.", labels=["tenant", "account"]
        )
        ranked = sorted(time.tenants, key=lambda tenant: (-tenant.work_us, tenant.tenant))
        for tenant in ranked[:TENANTS_MAX]:
            for account in Account:
                seconds.add_metric([tenant.tenant, account.value], _of(tenant, account) / 1e6)
        if others := ranked[TENANTS_MAX:]:
            for account in Account:
                total_us = sum(_of(tenant, account) for tenant in others)
                seconds.add_metric(["~other", account.value], total_us / 1e6)
        return seconds


def _of(tenant: TenantTime, account: Account) -> int:
    return int(getattr(tenant, f"{account.value}_us"))
