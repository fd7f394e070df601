"""A whole fleet of real plain objects in virtual time, made from a configuration and a seed."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from capacity.quantities import LeaseConfig
from core.outcomes import Outcome
from core.prefix_hashes import chain, hash_root, pack
from core.request import TenantClass
from core.sampling import SamplingParams
from services.gateway.requests import NewRequest, Tenant
from sim.clients import Asked, Clients
from sim.config import FleetConfig
from sim.decode_node import DecodeNode
from sim.gateway_node import GatewayNode
from sim.journal import Journal
from sim.lanes import LaneSpeed
from sim.loop import Loop
from sim.network import Network
from sim.node import Node, World
from sim.prefill_node import PrefillNode
from sim.router_node import RouterNode
from sim.store import Store
from sim.worker_node import WorkerNode, WorkerSpec

DEADLINE_US = 120_000_000
START_US = 200_000
"""By then everybody has connected."""
TENANT = Tenant("tenant")
PUBLIC_SALT = b"public"


class Fleet:
    """Runs until told; every name lives at one address, through all its restarts."""

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        self.random = Random(config.seed)
        self.loop = Loop()
        self.journal = Journal(keep_text=config.keep_text)
        self.network = Network(self.loop, Random(config.seed + 1), config.network)
        self.recording: list[bytes] = []
        write = self.recording.append if config.record else None
        self.world = World(
            self.loop, self.network, self.journal, Random(config.seed + 2), write, config.check_every
        )
        self.clients = Clients(config.decode.fake)
        self.lane_speed = LaneSpeed(config.lane_latency_us, config.lane_bytes_per_second)
        self.store = Store(self.loop, LeaseConfig())
        self.nodes: dict[str, Node] = {}
        self.specs: dict[str, WorkerSpec] = {}
        self._starts: dict[str, int] = {}
        self._requests = 0
        self.routers = [f"router-{index}" for index in range(config.routers)]
        self.gateways = [f"gateway-{index}" for index in range(config.gateways)]
        self.prefills = [f"prefill-{index}" for index in range(config.prefills)]
        self.decodes = [f"decode-{index}" for index in range(config.decodes)]
        for name in (*self.routers, *self.prefills, *self.decodes, *self.gateways):
            self.start(name)
        self.run(START_US)

    # Nodes.

    def start(self, name: str) -> Node:
        """Start the process of this name, for the first time or again."""
        starts = self._starts.get(name, 0)
        self._starts[name] = starts + 1
        node = self.nodes[name] = self._make(name, f"{name}.{starts}", starts)
        node.start()
        return node

    def _make(self, name: str, incarnation: str, starts: int) -> Node:
        config, world, kind = self.config, self.world, name.split("-")[0]
        addresses = tuple(f"{router}:1" for router in self.routers)
        if kind == "router":
            policy, count = config.router_policy, len(self.routers)
            return RouterNode(world, name, incarnation, starts, policy, config.seed, self.store, count)
        if kind == "gateway":
            routers = tuple(zip(self.routers, addresses, strict=True))
            return GatewayNode(world, name, incarnation, config.gateway_policy, routers, self.clients)
        if kind == "prefill":
            spec = self.specs.get(name, config.prefill)
            return PrefillNode(
                world, name, incarnation, spec, addresses, self.lane_speed, config.prefill_config
            )
        spec = self.specs.get(name, config.decode)
        return DecodeNode(world, name, incarnation, spec, addresses, self.lane_speed, config.decode_config)

    def crash(self, name: str) -> None:
        """The process dies without a word; its clients' connections with it. Idempotent."""
        node = self.nodes[name]
        if not node.alive:
            return
        self.journal.note(self.loop.now_us, f"crash {node.incarnation}")
        node.crash()
        self.clients.gateway_died(name)

    def restart(self, name: str, after_us: int = 100_000) -> None:
        """Dies, if it lives, and is started again."""
        self.crash(name)
        self.loop.after(after_us, lambda: self._start_again(name))

    def _start_again(self, name: str) -> None:
        if not self.nodes[name].alive:
            self.start(name)

    def gateway(self, name: str = "gateway-0") -> GatewayNode:
        node = self.nodes[name]
        assert isinstance(node, GatewayNode)
        return node

    def worker(self, name: str) -> WorkerNode:
        node = self.nodes[name]
        assert isinstance(node, WorkerNode)
        return node

    def decode(self, name: str) -> DecodeNode:
        node = self.nodes[name]
        assert isinstance(node, DecodeNode)
        return node

    def prefill(self, name: str) -> PrefillNode:
        node = self.nodes[name]
        assert isinstance(node, PrefillNode)
        return node

    def workers(self) -> list[WorkerNode]:
        """Those that live."""
        return [node for node in self.nodes.values() if isinstance(node, WorkerNode) and node.alive]

    # Requests.

    def ask(
        self,
        prompt: int | tuple[int, ...] = 100,
        max_tokens: int = 16,
        *,
        gateway: str = "gateway-0",
        tenant: Tenant = TENANT,
        choices: int = 1,
        temperature: float = 0.0,
        stop_token_ids: tuple[int, ...] = (),
        stop_after: int = 0,
        deadline_us: int = DEADLINE_US,
        salt: bytes | None = None,
    ) -> Asked:
        """A client asks now. `prompt`: its tokens, or how many to draw. `salt`: the namespace of its KV."""
        tokens = self.prompt(prompt) if isinstance(prompt, int) else prompt
        node = self.gateway(gateway)
        self._requests += 1
        model = self.config.decode.model
        root = hash_root(tenant.name.encode() if salt is None else salt, model, "digest")
        spec = NewRequest(
            request=f"{gateway}.{self._requests}",
            tenant=tenant,
            model=replace(model, revision=""),
            prompt=tokens,
            choices=choices,
            params=SamplingParams(
                max_tokens=max_tokens, temperature=temperature, stop_token_ids=stop_token_ids
            ),
            seed=self.random.getrandbits(64),
            hash_root=root,
            prefix_hashes=pack(chain(root, tokens)[:512]),
            deadline_us=node.now_us + deadline_us,
            stop_strings=bool(stop_after),
        )
        asked = Asked(spec, gateway, self.loop.now_us, stop_after)
        self.clients.ask(asked)
        node.tell("open", spec)
        return asked

    def ask_at(self, at_us: int, ask: Callable[[], object]) -> None:
        """Later."""

        def now() -> None:
            ask()

        self.loop.at(at_us, now)

    def prompt(self, tokens: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(10, 30_000) for _ in range(tokens))

    def cancel(self, asked: Asked, outcome: Outcome = Outcome.CANCELLED) -> None:
        """The client leaves."""
        if not asked.over:
            self.gateway(asked.gateway).cancel(asked.request, outcome)

    # Time.

    def run(self, for_us: int) -> None:
        self.loop.run_until(self.loop.now_us + for_us)

    def run_until(self, done: Callable[[], bool], limit_us: int = 60_000_000) -> None:
        """AssertionError (L7) where it does not come true within so much virtual time."""
        reached = self.loop.run_until(self.loop.now_us + limit_us, done)
        assert reached or done(), "it does not happen"

    def finish(self, limit_us: int = 2 * DEADLINE_US) -> None:
        """Until every request is over."""
        self.run_until(lambda: not self.clients.live, limit_us)


def tenant(name: str, tenant_class: TenantClass = TenantClass.STANDARD, concurrency: int = 0) -> Tenant:
    return Tenant(name, tenant_class, concurrency=concurrency)
