"""How large a simulated fleet is, and of what."""

from dataclasses import dataclass, field

from core.cost_model import StepCost
from decode_worker.config import DecodeConfig
from engine.config import EngineConfig
from engine.fake_kv import FakeModel
from prefill_worker.config import PrefillConfig
from router.policy import RouterPolicy
from services.gateway.gateway import GatewayPolicy
from sim.network import NetworkConfig
from sim.worker_node import WorkerSpec

COST = StepCost(base_ns=5_000_000, token_ns=100_000, context_ns=50)
"""5 ms a step and 0.1 ms a token: a prompt of 500 tokens takes 55 ms."""
FAKE = FakeModel(vocab_size=32_000, stop_token=2, stop_one_in=0)


def worker(blocks: int = 512, **engine: int) -> WorkerSpec:
    """A worker with a pool of so many blocks of 16 tokens."""
    settings = {"max_step_tokens": 256, "max_positions": 4096, "max_running": 32, **engine}
    return WorkerSpec(engine=EngineConfig(blocks=blocks, **settings), cost=COST, fake=FAKE)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """Everything a run depends on."""

    seed: int = 0
    gateways: int = 1
    routers: int = 1
    prefills: int = 1
    decodes: int = 2
    prefill: WorkerSpec = field(default_factory=worker)
    decode: WorkerSpec = field(default_factory=worker)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    router_policy: RouterPolicy = field(
        default_factory=lambda: RouterPolicy(local_penalty=1000.0, local_cached_share=1.0)
    )
    """Hands over whatever it can, so that hand-offs are what is tested."""
    gateway_policy: GatewayPolicy = field(default_factory=GatewayPolicy)
    prefill_config: PrefillConfig = field(default_factory=PrefillConfig)
    decode_config: DecodeConfig = field(default_factory=DecodeConfig)
    lane_latency_us: int = 200
    lane_bytes_per_second: int = 100_000_000
    check_every: int = 1
    """A node checks its laws after every so many of its events."""
    keep_text: bool = False
    record: bool = False
