"""Who else is in the fleet, and what each of them says when asked."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from core.membership import Change, Joined, Member, MemberKind, Membership
from proto import gateway_pb2, router_pb2, worker_pb2
from proto.gateway_pb2_grpc import GatewayPeerStub
from proto.router_pb2_grpc import RouterStub
from proto.worker_pb2_grpc import WorkerStub
from rpc.channels import Channels, answered
from rpc.convert import model_from_wire
from services.gateway.driver import Driver
from services.gateway.gateway import Gateway

ASK_TIMEOUT_S = 1.0
_WORKERS = (MemberKind.PREFILL, MemberKind.DECODE, MemberKind.POOLING)

Json = dict[str, Any]


async def nothing_to_hear() -> None:
    """Where there is no store, what is configured is all there is."""


class Fleet:
    """The gateway's view of the membership: connects it to routers, and answers /fleet."""

    def __init__(
        self, gateway_id: str, gateway: Gateway, driver: Driver, membership: Membership, channels: Channels
    ) -> None:
        self._id = gateway_id
        self._gateway = gateway
        self._driver = driver
        self._membership = membership
        self._channels = channels
        self.hear: Callable[[], Awaitable[None]] = nothing_to_hear
        """Reads once more which gateways are announced."""

    def apply(self, changes: list[Change]) -> None:
        """What the membership says has changed."""
        for change in changes:
            if change.member.kind is not MemberKind.ROUTER:
                continue
            if isinstance(change, Joined):
                self._driver.add_router(change.member.id, change.member.address)
            elif change.reason != "replaced":
                self._driver.remove_router(change.member.id)

    def peers(self) -> dict[str, str]:
        """Address by gateway id as last heard, this one's left out."""
        gateways = self._membership.members(MemberKind.GATEWAY)
        return {member.id: member.address for member in gateways if member.id != self._id}

    async def peers_now(self) -> dict[str, str]:
        """The same after hearing from the store once more, where there is one."""
        await self.hear()
        return self.peers()

    @property
    def has_worker(self) -> bool:
        """Whether anything is known that decodes."""
        return bool(self._membership.up(MemberKind.DECODE))

    async def state(self, with_tenants: bool) -> Json:
        """Asked of everyone at once; who does not answer within a second is left out."""
        workers = [self._worker(member) for kind in _WORKERS for member in self._membership.members(kind)]
        routers = [self._router(member) for member in self._membership.members(MemberKind.ROUTER)]
        gateways = [self._peer(id, address) for id, address in self.peers().items()]
        found_workers, found_routers, found_gateways = await asyncio.gather(
            _answers(workers), _answers(routers), _answers(gateways)
        )
        here = gateway_pb2.GatewayState(
            gateway=self._id,
            pid=os.getpid(),
            in_flight=self._gateway.in_flight,
            tenants_in_flight=self._gateway.in_flight_by_tenant(),
        )
        states = sorted([here, *found_gateways], key=lambda state: str(state.gateway))
        tenants: dict[str, int] = {}
        for state in states:
            for name, count in sorted(state.tenants_in_flight.items()):
                tenants[name] = tenants.get(name, 0) + count
        body: Json = {
            "workers": [_worker_body(snapshot) for snapshot in found_workers],
            "routers": [
                {"id": state.router, "in_flight": state.in_flight, "queued": state.queued}
                for state in found_routers
            ],
            "gateways": [
                {"id": state.gateway, "pid": state.pid, "in_flight": state.in_flight} for state in states
            ],
        }
        if with_tenants:
            body["tenants"] = {name: {"in_flight": count} for name, count in tenants.items()}
        return body

    def _worker(self, member: Member) -> Awaitable[Any]:
        stub = WorkerStub(self._channels.get(member.address))
        found: Awaitable[Any] = stub.GetState(worker_pb2.GetWorkerStateRequest(), timeout=ASK_TIMEOUT_S)
        return found

    def _router(self, member: Member) -> Awaitable[Any]:
        stub = RouterStub(self._channels.get(member.address))
        found: Awaitable[Any] = stub.GetState(router_pb2.GetRouterStateRequest(), timeout=ASK_TIMEOUT_S)
        return found

    def _peer(self, id: str, address: str) -> Awaitable[Any]:
        stub = GatewayPeerStub(self._channels.get(address))
        found: Awaitable[Any] = stub.GetState(gateway_pb2.GetGatewayStateRequest(), timeout=ASK_TIMEOUT_S)
        return found


async def _answers(asked: list[Awaitable[Any]]) -> list[Any]:
    answers = await asyncio.gather(*map(answered, asked))
    return [found for found in answers if found is not None]


def _worker_body(snapshot: worker_pb2.WorkerSnapshot) -> Json:
    hello = snapshot.hello
    body: Json = {
        "id": hello.worker,
        "role": hello.role,
        "instances": [str(model_from_wire(instance.model)) for instance in hello.instances],
        "pid": hello.pid,
        "incarnation": hello.incarnation,
        "age_ms": snapshot.age_us // 1000,
        "blocks_total": sum(instance.blocks_total for instance in hello.instances),
    }
    for name in ("blocks_free", "blocks_cached", "blocks_held", "blocks_in_flight"):
        body[name] = sum(getattr(load, name) for load in snapshot.loads)
    for name in ("running", "waiting", "transferring"):
        body[name] = sum(getattr(load, name) for load in snapshot.loads)
    if snapshot.broken_law:
        body["broken_law"] = snapshot.broken_law
    return body
