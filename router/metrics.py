"""What the router counts for dashboards: few series, none per tenant, since names are the clients'."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from router.actions import Place, Refuse
from router.router import RouterSnapshot


class RouterMetrics:
    """Decisions by kind, time queued, and what is held now."""

    def __init__(
        self, registry: CollectorRegistry, buckets: Sequence[float], snapshot: Callable[[], RouterSnapshot]
    ) -> None:
        """`buckets`: upper bounds in seconds."""
        self._placed = Counter("baton_router_placed", "Placements by reason.", ["reason"], registry=registry)
        self._refused = Counter(
            "baton_router_refused", "Refusals by outcome.", ["outcome"], registry=registry
        )
        self._queued_seconds = Histogram(
            "baton_router_queued_seconds",
            "Time from submit to placement.",
            registry=registry,
            buckets=buckets,
        )
        gauges: tuple[tuple[str, str, Callable[[RouterSnapshot], float]], ...] = (
            ("baton_router_in_flight", "Placed attempts not settled.", lambda now: now.in_flight),
            ("baton_router_queued", "Attempts waiting.", lambda now: now.queued),
            ("baton_router_workers", "Workers known.", lambda now: len(now.workers)),
            ("baton_router_degraded", "Instances with stale reports.", lambda now: len(now.stale_instances)),
        )
        for name, text, value in gauges:
            gauge = Gauge(name, text, registry=registry)
            gauge.set_function(lambda value=value: value(snapshot()))  # type: ignore[misc]

    def count(self, answer: Place | Refuse) -> None:
        if isinstance(answer, Refuse):
            self._refused.labels(answer.end.outcome.value).inc()
        else:
            self._placed.labels(answer.reason).inc()
            self._queued_seconds.observe(answer.queued_us / 1e6)
