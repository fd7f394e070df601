"""A router in virtual time: the real plain object and everybody's streams to it."""

from typing import Any

from capacity.quantities import Answer, Ask, GiveBack
from router.actions import Place, Refuse, Resync
from router.messages import LoadReport, PrefixEvents, Submission, WorkerHello
from router.policy import RouterPolicy
from router.router import Router
from services.gateway.actions import FirstTokenSeen, Settle, Withdraw
from sim.messages import GatewayHello
from sim.network import End, Stream
from sim.node import Node, World
from sim.store import Store

RESERVATIONS_PER_START = 1_000_000
STORE_RETRY_US = 200_000


class RouterNode(Node):
    """One start of a router."""

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: str,
        starts: int,
        policy: RouterPolicy,
        seed: int,
        store: Store,
        routers: int,
    ) -> None:
        """`starts` counts this router's starts from 0: no number is given out twice."""
        super().__init__(world, name, incarnation)
        arguments = (name, policy, 1 + starts * RESERVATIONS_PER_START, seed)
        self.plain = world.recorded(Router(*arguments), f"{name}@{incarnation}", arguments)
        self._store, self._router_count = store, routers
        self._store_is_away = False
        self.gateways: dict[str, RouterEnd] = {}
        self.workers: dict[str, RouterEnd] = {}

    def start(self) -> None:
        """Everybody connects to it."""
        self.tell("routers_known", self._router_count)

    def accept(self, stream: Stream) -> End:
        return RouterEnd(self, stream)

    def perform(self, action: Any) -> None:
        match action:
            case Place(gateway) | Refuse(gateway):
                end = self.gateways.get(gateway)
            case Resync(worker):
                end = self.workers.get(worker)
            case Ask() | GiveBack():
                self._to_store(action)
                return
            case _:
                raise AssertionError(f"unknown action {action}")
        if end is not None:
            end.stream.to_client(action)

    def _to_store(self, question: Ask | GiveBack) -> None:
        self.loop.at(self.network.arrival_us(), lambda: self._at_store(question))

    def _at_store(self, question: Ask | GiveBack) -> None:
        if self._store.away:
            self.network.later(self, self._store_lost)
        elif isinstance(question, GiveBack):
            self._store.give_back(question)
        else:
            answer = self._store.ask(self.incarnation, question)
            self.network.later(self, lambda: self._answered(question, answer))

    def _answered(self, ask: Ask, answer: Answer) -> None:
        if not self._store_is_away:
            self.tell("lease_answered", ask, answer)

    def _store_lost(self) -> None:
        if not self._store_is_away:
            self._store_is_away = True
            self.tell("leases_lost")
            self._look_for_store()

    def _look_for_store(self) -> None:
        if self._store.away:
            self.soon(self._look_for_store, STORE_RETRY_US)
        else:
            self._store_is_away = False
            self.tell("leases_returned")


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
