"""What other gateways may ask."""

import os
from typing import Any

from proto import gateway_pb2
from proto.gateway_pb2_grpc import GatewayPeerServicer
from services.gateway.cancels import Cancels
from services.gateway.gateway import Gateway


class PeerApi(GatewayPeerServicer):
    """baton.internal.v1.GatewayPeer, on an address that clients do not reach."""

    def __init__(self, gateway_id: str, gateway: Gateway, cancels: Cancels) -> None:
        self._id = gateway_id
        self._gateway = gateway
        self._cancels = cancels

    async def ForwardCancel(
        self, request: gateway_pb2.ForwardCancelRequest, context: Any
    ) -> gateway_pb2.ForwardCancelResponse:
        found = self._cancels.cancel_here(request.tenant, request.request)
        return gateway_pb2.ForwardCancelResponse(found=found)

    async def GetState(
        self, request: gateway_pb2.GetGatewayStateRequest, context: Any
    ) -> gateway_pb2.GatewayState:
        return gateway_pb2.GatewayState(
            gateway=self._id,
            pid=os.getpid(),
            in_flight=self._gateway.in_flight,
            tenants_in_flight=self._gateway.in_flight_by_tenant(),
        )
