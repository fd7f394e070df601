"""A gateway in virtual time: the real plain object, its routers, its decode workers and its clients."""

from typing import Any

from core.outcomes import Outcome
from decode_worker.attempts import GatewayKey
from decode_worker.mailboxes import ResumePoint
from router.actions import Place, Refuse
from services.gateway.actions import (
    Action,
    CancelAttempt,
    Connect,
    Deliver,
    Disconnect,
    Ended,
    FirstTokenSeen,
    Settle,
    Start,
    Submit,
    Withdraw,
)
from services.gateway.gateway import Gateway, GatewayPolicy
from services.gateway.requests import Placement
from sim.clients import Clients
from sim.messages import (
    Attached,
    Cancel,
    Frame,
    GatewayAttach,
    GatewayHello,
    live_request,
    start_request,
    submission,
)
from sim.network import End, Stream
from sim.node import Link, Node, World


class GatewayNode(Node):
    """One start of a gateway."""

    def __init__(
        self,
        world: World,
        name: str,
        incarnation: str,
        policy: GatewayPolicy,
        routers: tuple[tuple[str, str], ...],
        clients: Clients,
    ) -> None:
        """`routers` as (id, address)."""
        super().__init__(world, name, incarnation)
        arguments = (policy,)
        self.plain = world.recorded(Gateway(*arguments), f"{name}@{incarnation}", arguments)
        self._router_addresses = routers
        self._routers: dict[str, Link] = {}
        self._workers: dict[str, Link] = {}
        self._clients = clients

    def start(self) -> None:
        for router, address in self._router_addresses:
            self._routers[router] = Link(
                self,
                address,
                up=lambda link, router=router: self._router_up(router, link),  # type: ignore[misc]
                message=lambda message, router=router: self._from_router(router, message),  # type: ignore[misc]
                down=lambda why, router=router: self.tell("router_down", router),  # type: ignore[misc]
            )

    def accept(self, stream: Stream) -> End:
        raise AssertionError("nobody connects to a gateway here")

    def cancel(self, request: str, outcome: Outcome = Outcome.CANCELLED) -> None:
        self.tell("cancel", request, outcome, "")

    def perform(self, action: Action) -> None:
        match action:
            case Submit():
                self._to_router(action.router, submission(action, self.now_us))
            case FirstTokenSeen() | Settle() | Withdraw():
                self._to_router(action.router, action)
            case Start():
                self._to_worker(action.worker, start_request(action, self.now_us))
            case CancelAttempt(worker, key, outcome):
                self._to_worker(worker, Cancel(key, outcome))
            case Connect(worker, address):
                self._workers[worker] = self._connect(worker, address)
            case Disconnect(worker):
                if (link := self._workers.pop(worker, None)) is not None:
                    link.close()
            case Deliver():
                confirmed = self._clients.delivered(action, self.loop.now_us)
                if confirmed is not None:
                    self.soon(lambda: self.tell("choice_ended", *confirmed))
            case Ended():
                self._clients.ended(action, self.loop.now_us)

    # Routers.

    def _router_up(self, router: str, link: Link) -> None:
        live = tuple(live_request(one, self.now_us) for one in self.plain.live_attempts(router))
        link.send(GatewayHello(self.name, self.incarnation, live))
        self.tell("router_up", router)

    def _from_router(self, router: str, message: Place | Refuse) -> None:
        if isinstance(message, Place):
            self.tell("placed", router, message.key, Placement(message.legs, message.fallback))
        else:
            self.tell("refused", router, message.key, message.end)

    def _to_router(self, router: str, message: Any) -> None:
        if (link := self._routers.get(router)) is not None:
            link.send(message)

    # Decode workers.

    def _connect(self, worker: str, address: str) -> Link:
        return Link(
            self,
            address,
            up=lambda link: self._attach(worker, link),
            message=lambda message: self._from_worker(worker, message),
            down=lambda why: self.tell("decode_down", worker),
            refused=lambda why: self._refused(worker, why),
        )

    def _attach(self, worker: str, link: Link) -> None:
        resume = tuple(ResumePoint(one.key, one.next_index) for one in self.plain.resume_list(worker))
        link.send(GatewayAttach(GatewayKey(self.name, self.incarnation), resume))

    def _refused(self, worker: str, why: str) -> None:
        if why == "connection refused":
            self.tell("decode_gone", worker)

    def _from_worker(self, worker: str, message: Attached | Frame) -> None:
        if isinstance(message, Attached):
            self.tell("decode_up", worker, message.incarnation, message.unknown)
        else:
            self.tell("frame", worker, message.runs, message.ends)

    def _to_worker(self, worker: str, message: Any) -> None:
        if (link := self._workers.get(worker)) is not None:
            link.send(message)
