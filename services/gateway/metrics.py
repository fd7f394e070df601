"""What the gateway counts about its requests, by its own names and by those dashboards know from vLLM."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from core.outcomes import FinishReason, Outcome
from services.gateway.actions import Deliver, Ended
from services.gateway.requests import NewRequest

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


@dataclass(slots=True)
class _Watched:
    """What is remembered of a live request."""

    opened_us: int
    last_token_us: int | None = None
    length: bool = False


class GatewayMetrics:
    """About 2 us per token run."""

    def __init__(self, registry: CollectorRegistry, in_flight: Callable[[], int]) -> None:
        """`in_flight` is asked when the page is shown."""
        self._watched: dict[str, _Watched] = {}
        Gauge(
            "baton_gateway_requests_in_flight", "Live requests of this gateway process.", registry=registry
        ).set_function(in_flight)
        # One process's share of the fleet's running requests, by the name autoscalers ask for.
        Gauge("vllm:num_requests_running", "Live requests.", registry=registry).set_function(in_flight)
        self._ended = Counter(
            "baton_gateway_requests_ended", "Requests by outcome.", ["outcome"], registry=registry
        )
        self._success = Counter(
            "vllm:request_success", "Completed requests.", ["finished_reason"], registry=registry
        )
        self._prompt = Counter("vllm:prompt_tokens", "Prompt tokens of ended requests.", registry=registry)
        self._output = Counter("vllm:generation_tokens", "Tokens delivered.", registry=registry)
        self._queries = Counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", registry=registry)
        self._hits = Counter("vllm:prefix_cache_hits", "Prompt tokens found cached.", registry=registry)
        self._first = _histogram("vllm:time_to_first_token_seconds", "From open to first token.", registry)
        self._between = _histogram("vllm:inter_token_latency_seconds", "Between token runs.", registry)
        self._whole = _histogram("vllm:e2e_request_latency_seconds", "From open to end.", registry)
        self._queued = _histogram("vllm:request_queue_time_seconds", "In the router's queue.", registry)

    def opened(self, request: NewRequest, now_us: int) -> None:
        self._watched[request.request] = _Watched(now_us)

    def placed(self, queued_us: int) -> None:
        self._queued.observe(queued_us / 1e6)

    def tokens(self, deliver: Deliver, now_us: int) -> None:
        watched = self._watched[deliver.request]
        watched.length = deliver.finish is FinishReason.LENGTH
        if not deliver.tokens:
            return
        self._output.inc(len(deliver.tokens))
        if watched.last_token_us is None:
            self._first.observe((now_us - watched.opened_us) / 1e6)
        else:
            self._between.observe((now_us - watched.last_token_us) / 1e6)
        watched.last_token_us = now_us

    def ended(self, ended: Ended, now_us: int) -> None:
        watched = self._watched.pop(ended.request)
        outcome = ended.end.outcome
        self._ended.labels(outcome.value).inc()
        self._whole.observe((now_us - watched.opened_us) / 1e6)
        if outcome is Outcome.COMPLETED:
            reason = FinishReason.LENGTH if watched.length else FinishReason.STOP
            self._success.labels(reason.value).inc()
        if watched.last_token_us is not None:
            self._prompt.inc(ended.prompt_tokens)
            self._queries.inc(ended.prompt_tokens)
            self._hits.inc(ended.cached_tokens)


def _histogram(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, registry=registry, buckets=_SECONDS)
