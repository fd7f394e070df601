"""Where a cancel goes: to this gateway's requests, or on to the gateway that owns the id."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from core.outcomes import Outcome
from proto import gateway_pb2
from proto.gateway_pb2_grpc import GatewayPeerStub
from rpc.channels import Channels, answered
from services.gateway.request_names import RequestNames, owner_of

FORWARD_TIMEOUT_S = 5.0


class Peers(Protocol):
    """The other gateways, by id; this one is left out."""

    def peers(self) -> dict[str, str]:
        """Addresses as last heard."""
        ...

    async def peers_now(self) -> dict[str, str]:
        """Addresses asked for anew: one that began to serve a moment ago is among them."""
        ...


class Cancels:
    """Cancels by our id or the client's own, only within the tenant."""

    def __init__(
        self,
        gateway: str,
        names: RequestNames,
        cancel: Callable[[str, Outcome, str], None],
        peers: Peers,
        channels: Channels,
    ) -> None:
        self._gateway = gateway
        self._names = names
        self._cancel = cancel
        self._peers = peers
        self._channels = channels

    def cancel_here(self, tenant: str, name: str) -> bool:
        """Whether the tenant has such a live request at this gateway."""
        requests = self._names.find(tenant, name)
        for request in requests:
            self._cancel(request, Outcome.CANCELLED, "cancelled by request")
        return bool(requests)

    async def cancel(self, tenant: str, name: str) -> bool:
        """Whether any gateway had it.

        An id of ours is live at its owner or nowhere, and no client's own looks like one. A client's own does
        not name its gateway, and several may have one live: all are asked at once, and each ends its own.
        """
        owner = owner_of(name)
        if owner is None:
            here, peers = self.cancel_here(tenant, name), await self._peers.peers_now()
            asked = [self._forward(address, tenant, name) for address in peers.values()]
            return any([here, *await asyncio.gather(*asked)])
        if owner == self._gateway:
            return self.cancel_here(tenant, name)
        address = self._peers.peers().get(owner)
        found = None if address is None else await self._forward(address, tenant, name)
        if found is None:
            # Not heard of yet, or it has begun anew elsewhere.
            anew = (await self._peers.peers_now()).get(owner)
            if anew is not None and anew != address:
                found = await self._forward(anew, tenant, name)
        return bool(found)

    async def _forward(self, address: str, tenant: str, name: str) -> bool | None:
        """None where nobody answers: a gateway that is gone has no live requests."""
        stub = GatewayPeerStub(self._channels.get(address))
        request = gateway_pb2.ForwardCancelRequest(tenant=tenant, request=name)
        answer = await answered(stub.ForwardCancel(request, timeout=FORWARD_TIMEOUT_S))
        return None if answer is None else bool(answer.found)
