from proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatewayMessage(_message.Message):
    __slots__ = ("attach", "start", "cancel")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    attach: GatewayAttach
    start: Start
    cancel: CancelAttempt
    def __init__(self, attach: _Optional[_Union[GatewayAttach, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., cancel: _Optional[_Union[CancelAttempt, _Mapping]] = ...) -> None: ...

class GatewayAttach(_message.Message):
    __slots__ = ("gateway", "incarnation", "resume")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    incarnation: str
    resume: _containers.RepeatedCompositeFieldContainer[Resume]
    def __init__(self, gateway: _Optional[str] = ..., incarnation: _Optional[str] = ..., resume: _Optional[_Iterable[_Union[Resume, _Mapping]]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("request", "attempt", "next_index")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    next_index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., next_index: _Optional[_Iterable[int]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("request", "attempt", "model", "tenant", "tenant_class", "prompt", "choices", "sampling", "seed", "hash_root", "legs", "fallback", "deadline_remaining_us", "router", "grammar", "tenant_weight")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_CLASS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HASH_ROOT_FIELD_NUMBER: _ClassVar[int]
    LEGS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    model: _common_pb2.Model
    tenant: str
    tenant_class: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.Choice]
    sampling: _common_pb2.Sampling
    seed: int
    hash_root: bytes
    legs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Leg]
    fallback: str
    deadline_remaining_us: int
    router: str
    grammar: str
    tenant_weight: float
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., tenant: _Optional[str] = ..., tenant_class: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.Choice, _Mapping]]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., hash_root: _Optional[bytes] = ..., legs: _Optional[_Iterable[_Union[_common_pb2.Leg, _Mapping]]] = ..., fallback: _Optional[str] = ..., deadline_remaining_us: _Optional[int] = ..., router: _Optional[str] = ..., grammar: _Optional[str] = ..., tenant_weight: _Optional[float] = ...) -> None: ...

class CancelAttempt(_message.Message):
    __slots__ = ("request", "attempt", "outcome")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    outcome: str
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., outcome: _Optional[str] = ...) -> None: ...

class DecodeMessage(_message.Message):
    __slots__ = ("attached", "frame")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    frame: Frame
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("worker", "incarnation", "unknown")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    unknown: _containers.RepeatedCompositeFieldContainer[Resume]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., unknown: _Optional[_Iterable[_Union[Resume, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("runs", "ends")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[TokenRun]
    ends: _containers.RepeatedCompositeFieldContainer[AttemptEnd]
    def __init__(self, runs: _Optional[_Iterable[_Union[TokenRun, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[AttemptEnd, _Mapping]]] = ...) -> None: ...

class TokenRun(_message.Message):
    __slots__ = ("request", "attempt", "choice", "first_index", "tokens", "logprobs", "finish_reason", "cached_tokens")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    choice: int
    first_index: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Logprobs]
    finish_reason: str
    cached_tokens: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., choice: _Optional[int] = ..., first_index: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.Logprobs, _Mapping]]] = ..., finish_reason: _Optional[str] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class AttemptEnd(_message.Message):
    __slots__ = ("request", "attempt", "end")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    end: _common_pb2.End
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...
