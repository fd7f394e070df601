"""The numbers behind the router's decisions, whole and checked."""

from dataclasses import dataclass, fields

from core.request import TenantClass


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPolicy:
    """Tunables of the plain router; times in µs, shares as fractions of 1."""

    queue_length_max: int = 2048
    """Requests waiting per model; beyond it someone is shed or the newcomer refused."""
    queue_wait_max_us: int = 300_000_000
    """Longest wait in the queue before a request is shed; one that cannot wait so long names a deadline."""
    tenants_max: int = 4096
    """Tenants whose service history is remembered per model, the busy ones always."""
    batch_share: float = 0.05
    """Minimum share of dispatched work for class batch while it waits."""
    standard_share: float = 0.15
    """Minimum share of dispatched work for class standard while it waits."""

    worker_queue_us: int = 100_000
    """Predicted prefill work a worker may hold beyond what a new placement adds; the rest waits here."""
    short_prefill_us: int = 20_000
    """A prompt is short while its predicted uncached prefill costs at most this."""
    long_patience_us: int = 5_000_000
    """How long short prompts may pass a long one that waits for decode memory, before it holds them up."""
    batch_headroom: float = 0.1
    """Share of a decode instance's sequences that class batch leaves to the others."""
    near_tie_us: int = 2_000
    near_tie_share: float = 0.05
    """Candidates within the larger of near_tie_us and this share of the best one's cost take turns."""
    local_penalty: float = 4.0
    """How much dearer a millisecond of prefill is on a decode worker: all who decode there wait."""
    local_cached_share: float = 0.75
    """From this share of the prompt cached at the decode worker on, the rest is prefilled there."""
    local_uncached_us: int = 50_000
    """The most a mostly cached prompt may still cost to stay there."""
    transfer_bytes_per_second: int = 1_000_000_000
    """Declared speed of moving KV between two workers."""
    fallback: str = "prefer"
    """Whether the decode worker may prefill itself when its prefill worker fails: require, prefer, never."""

    growth_tokens_default: int = 128
    """Expected output of a tenant that has settled nothing yet."""
    growth_tokens_max: int = 2048
    """The most output that is ever reserved in advance."""
    reference_batch: int = 8
    """Sequences over which the declared reference cost spreads a decode step's fixed part."""

    lease_wait_us: int = 250_000
    """How long an attempt waits for its tenant's limits to be asked; the shell's calls are shorter."""
    report_dispatch_us: int = 2_000
    """Load reports try the queues again together, this long after the first."""
    resync_us: int = 1_000_000
    """How often a worker's prefixes are asked for again while they don't come."""
    report_stale_us: int = 2_000_000
    """A load report older than this is not believed; own reservations are."""
    acknowledge_lag_us: int = 250_000
    """A reservation this much older than a report that acknowledges a later one is in that report too."""
    worker_grace_us: int = 2_000_000
    """How long a worker whose stream broke may reattach before it is forgotten."""
    gateway_grace_us: int = 3_000_000
    """How long a gateway whose stream broke may reattach before its requests are settled."""
    retry_window_us: int = 10_000_000
    """How long a settled attempt that was not the last keeps its tenant's permit."""
    deadline_grace_us: int = 30_000_000
    """How long after its deadline a placed request is settled when its gateway does not."""
    no_worker_retry_us: int = 1_000_000
    """Retry-After where nothing serves the model."""
    answers_max: int = 8192
    """Past answers remembered, so that a doubled submit gets the same one."""
    prefix_hashes_max: int = 1_000_000
    """Distinct prefix hashes indexed, the least recently used forgotten first."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"router policy: {field.name} must not be negative, is {value}")
        if self.fallback not in ("require", "prefer", "never"):
            raise ValueError(
                f"router policy: fallback must be require, prefer or never, is {self.fallback!r}"
            )
        for name in (
            "queue_length_max", "transfer_bytes_per_second", "reference_batch", "tenants_max",
            "prefix_hashes_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"router policy: {name} must be at least 1, is {getattr(self, name)}")
        if self.batch_share + self.standard_share >= 1:
            raise ValueError("router policy: batch_share and standard_share leave nothing to interactive")

    def minimum_share(self, tenant_class: TenantClass) -> float:
        if tenant_class is TenantClass.BATCH:
            return self.batch_share
        return self.standard_share if tenant_class is TenantClass.STANDARD else 0.0
