from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ForwardCancelRequest(_message.Message):
    __slots__ = ("tenant", "request")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    request: str
    def __init__(self, tenant: _Optional[str] = ..., request: _Optional[str] = ...) -> None: ...

class ForwardCancelResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class GetGatewayStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GatewayState(_message.Message):
    __slots__ = ("gateway", "pid", "in_flight", "tenants_in_flight")
    class TenantsInFlightEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    TENANTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    pid: int
    in_flight: int
    tenants_in_flight: _containers.ScalarMap[str, int]
    def __init__(self, gateway: _Optional[str] = ..., pid: _Optional[int] = ..., in_flight: _Optional[int] = ..., tenants_in_flight: _Optional[_Mapping[str, int]] = ...) -> None: ...
