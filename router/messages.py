"""What gateways and workers tell the router, in plain values."""

from dataclasses import dataclass

from core.request import AttemptKey, InstanceKey, Leg, ModelIdentity, Role, TenantClass

HASH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One attempt of a request as the router sees it: numbers only."""

    key: AttemptKey
    tenant: str
    tenant_class: TenantClass = TenantClass.STANDARD
    model: ModelIdentity
    prompt_tokens: int
    output_tokens: int = 0
    """Output delivered by earlier attempts; recomputed as part of the prefill."""
    max_tokens: int = 16
    """Output per choice at most, earlier attempts included."""
    choices: int = 1
    prefix_hashes: bytes = b""
    """Chained prefix hashes of the prompt's full units, HASH_BYTES each."""
    deadline_remaining_us: int = 0
    """0: no deadline but the gateway's own."""
    avoid_workers: tuple[str, ...] = ()
    dtype: str = ""
    """Pinned once a token was delivered; empty: any."""
    tenant_weight: float = 1.0
    tenant_concurrency: int = 0
    """0: no limit."""
    tenant_tokens_per_minute: int = 0
    """0: no limit."""

    @property
    def prefill_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """What a gateway re-announces; without legs it still waits for its answer."""

    submission: Submission
    legs: tuple[Leg, ...] = ()
    first_token_seen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceInfo:
    """What one engine instance is, as its worker declares it."""

    model: ModelIdentity
    dtype: str
    block_size: int
    blocks_total: int
    max_positions: int
    max_running: int
    """Sequences."""
    cost_base_ns: int
    cost_token_ns: int
    cost_context_ns: int
    kv_bytes_per_token: int = 0
    hash_unit: int = 16
    """Tokens per prefix hash."""
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """First message of a worker's stream."""

    worker: str
    incarnation: str
    role: Role
    address: str
    pid: int
    instances: tuple[InstanceInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One instance's counts at one moment."""

    sequence: int
    model: ModelIdentity
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_in_flight: int
    running: int
    waiting: int
    transferring: int
    queued_prefill_us: int
    acknowledged: tuple[tuple[str, int], ...] = ()
    """(router, reservation) whose work these counts include."""
    service: tuple[tuple[str, int], ...] = ()
    """(tenant, GPU time in µs since the process started)."""
    draining: bool = False
    ended: tuple[tuple[str, int], ...] = ()
    """(router, reservation) that ended here without their gateway."""


@dataclass(frozen=True, slots=True)
class PrefixEvents:
    """Prefixes cached and evicted; each hash counts one in the sequence, stored before removed."""

    first_sequence: int
    model: ModelIdentity
    snapshot: bool
    """These are all cached prefixes, replacing what was known."""
    stored: bytes
    removed: bytes = b""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What the router last heard of a worker: for people and for the gateways' fleet page."""

    hello: WorkerHello
    reports: tuple[LoadReport, ...]
    age_us: int
    """Since its last word."""
    instances: tuple[InstanceKey, ...]
