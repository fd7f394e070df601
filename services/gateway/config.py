"""What a gateway process is told at its start."""

from dataclasses import dataclass, field

from core.addresses import advertise_problem
from services.gateway.gateway import GatewayPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model that is served, as far as text is concerned."""

    name: str
    folder: str
    """Hugging Face style: tokenizer.json, config.json, the chat template."""
    revision: str = ""
    """Fingerprint of the weights; equal to the workers'."""
    max_positions: int
    """Prompt and output tokens together."""
    dtype: str = ""
    """As the workers' instances have it."""
    public_system_prompts: tuple[str, ...] = ()
    """System prompts whose KV all tenants share; what follows one in a conversation stays the tenant's."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("models.name: must not be empty")
        if self.max_positions < 2:
            raise ValueError(f"models.max_positions: must be at least 2, not {self.max_positions}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """All of it, checked. Ports of 0 are free ones."""

    id: str
    """Unique in the fleet; part of every request id. Letters, digits, dots, dashes and underscores."""
    host: str = "127.0.0.1"
    """Where clients connect."""
    http_port: int = 8000
    grpc_port: int = 50051
    peer_host: str = "127.0.0.1"
    """Where other gateways connect."""
    peer_port: int = 0
    advertise_host: str = ""
    """Where others reach this process; empty: `peer_host`."""
    share_ports: bool = False
    """Several gateway processes listen on the same client ports."""
    models: tuple[ModelConfig, ...]
    tenants_file: str = ""
    """TOML; empty: every key is the tenant "default"."""
    redis_url: str = ""
    """Where members of the fleet announce themselves."""
    routers: tuple[str, ...] = ()
    """Routers known beforehand, each as id=host:port; others are found in Redis."""
    record: str = ""
    """Where the gateway's decisions are recorded; empty: nowhere."""
    body_bytes_max: int = 16 << 20
    """A larger HTTP body is refused before it is read."""
    client_buffer_bytes_max: int = 1 << 20
    """What may wait for one client that does not read; beyond it the request is cancelled."""
    keep_alive_s: float = 15.0
    """A stream's headers wait for the first token at most so long; after them silence is at most so long.
    Those of a whole answer wait for its end, but from the first token on at most so long."""
    deadline_s: float = 3600.0
    """How long a request may take that names no deadline, and at most."""
    prefix_hashes_max: int = 512
    """Prefix hashes sent to the router per request."""
    prompts_max: int = 64
    """Prompts in one completions request."""
    tokenizer_threads: int = 2
    inline_characters_max: int = 2_000
    """Shorter prompts are tokenized on the event loop; a hand-over to a thread costs as much."""
    drain_grace_s: float = 30.0
    """At shutdown, how long live requests may go on."""
    policy: GatewayPolicy = field(default_factory=GatewayPolicy)

    def __post_init__(self) -> None:
        allowed = "-._"
        if not self.id or any(not (c.isascii() and c.isalnum()) and c not in allowed for c in self.id):
            raise ValueError(f"id: must be letters, digits, dots, dashes and underscores, not {self.id!r}")
        if not self.models:
            raise ValueError("models: at least one is needed")
        names = [model.name for model in self.models]
        if len(dict.fromkeys(names)) < len(names):
            raise ValueError("models: two have the same name")
        for router in self.routers:
            if not all(router.partition("=")) or ":" not in router:
                raise ValueError(f"routers: {router!r} is not id=host:port")
        if problem := advertise_problem(self.peer_host, self.advertise_host):
            raise ValueError(problem)
        for name in ("http_port", "grpc_port", "peer_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name}: must be between 0 and 65535, not {getattr(self, name)}")
        for name in ("body_bytes_max", "client_buffer_bytes_max", "prompts_max", "tokenizer_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, not {getattr(self, name)}")
        for name in ("keep_alive_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be above 0, not {getattr(self, name)}")
