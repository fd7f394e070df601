"""A router in virtual time: the real plain object and everybody's streams to it."""

from typing import Any

from router.actions import Place, Refuse, Resync
from router.messages import LoadReport, PrefixEvents, Submission, WorkerHello
from router.policy import RouterPolicy
from router.router import Router
from services.gateway.actions import FirstTokenSeen, Settle, Withdraw
from sim.messages import GatewayHello
from sim.network import End, Stream
from sim.node import Node, World

RESERVATIONS_PER_START = 1_000_000


class RouterNode(Node):
    """One start of a router."""

    def __init__(
        self, world: World, name: str, incarnation: str, starts: int, policy: RouterPolicy, seed: int
    ) -> None:
        """`starts` counts this router's starts from 0: no number is given out twice."""
        super().__init__(world, name, incarnation)
        arguments = (name, policy, 1 + starts * RESERVATIONS_PER_START, seed)
        self.plain = world.recorded(Router(*arguments), f"{name}@{incarnation}", arguments)
        self.gateways: dict[str, RouterEnd] = {}
        self.workers: dict[str, RouterEnd] = {}

    def start(self) -> None:
        """Everybody connects to it."""

    def accept(self, stream: Stream) -> End:
        return RouterEnd(self, stream)

    def perform(self, action: Any) -> None:
        match action:
            case Place(gateway) | Refuse(gateway):
                end = self.gateways.get(gateway)
            case Resync(worker):
                end = self.workers.get(worker)
            case _:
                raise AssertionError(f"unknown action {action}")
        if end is not None:
            end.stream.to_client(action)


class RouterEnd:
    """The router's side of one stream, a gateway's or a worker's by its first message."""

    def __init__(self, node: RouterNode, stream: Stream) -> None:
        self.node, self.stream = node, stream
        self._gateway: GatewayHello | None = None
        self._worker: WorkerHello | None = None

    def message(self, message: Any) -> None:
        node = self.node
        if isinstance(message, GatewayHello | WorkerHello) and (self._gateway or self._worker):
            return  # only a stream's first message introduces
        match message:
            case GatewayHello(gateway, incarnation, live):
                self._gateway = message
                node.gateways[gateway] = self
                node.tell("gateway_up", gateway, incarnation, live)
            case Submission():
                assert self._gateway is not None
                node.tell("submit", self._gateway.gateway, message)
            case FirstTokenSeen(_, key):
                node.tell("first_token", key)
            case Settle(_, key, outcome, prompt_tokens, output_tokens, final):
                node.tell("settle", key, outcome, prompt_tokens, output_tokens, final)
            case Withdraw(_, key):
                node.tell("withdraw", key)
            case WorkerHello(worker):
                self._worker = message
                node.workers[worker] = self
                node.tell("worker_hello", message)
            case LoadReport():
                assert self._worker is not None
                node.tell("load_report", self._worker.worker, self._worker.incarnation, message)
            case PrefixEvents():
                assert self._worker is not None
                node.tell("prefix_events", self._worker.worker, self._worker.incarnation, message)

    def down(self, why: str) -> None:
        gateway, worker = self._gateway, self._worker
        # Only the current stream's end says anything about its owner.
        if gateway is not None and self.node.gateways.get(gateway.gateway) is self:
            del self.node.gateways[gateway.gateway]
            self.node.tell("gateway_down", gateway.gateway, gateway.incarnation)
        if worker is not None and self.node.workers.get(worker.worker) is self:
            del self.node.workers[worker.worker]
            self.node.tell("worker_down", worker.worker, worker.incarnation)
