from proto import router_pb2 as _router_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetWorkerStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerSnapshot(_message.Message):
    __slots__ = ("hello", "loads", "age_us", "broken_law")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    BROKEN_LAW_FIELD_NUMBER: _ClassVar[int]
    hello: _router_pb2.WorkerHello
    loads: _containers.RepeatedCompositeFieldContainer[_router_pb2.LoadReport]
    age_us: int
    broken_law: str
    def __init__(self, hello: _Optional[_Union[_router_pb2.WorkerHello, _Mapping]] = ..., loads: _Optional[_Iterable[_Union[_router_pb2.LoadReport, _Mapping]]] = ..., age_us: _Optional[int] = ..., broken_law: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_us",)
    GRACE_US_FIELD_NUMBER: _ClassVar[int]
    grace_us: int
    def __init__(self, grace_us: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
