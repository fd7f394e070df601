from proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HomeMessage(_message.Message):
    __slots__ = ("attach", "start", "bound", "abort", "received", "lane")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    attach: HomeAttach
    start: PrefillStart
    bound: Bound
    abort: AbortTransfer
    received: ChunkReceived
    lane: LaneOffer
    def __init__(self, attach: _Optional[_Union[HomeAttach, _Mapping]] = ..., start: _Optional[_Union[PrefillStart, _Mapping]] = ..., bound: _Optional[_Union[Bound, _Mapping]] = ..., abort: _Optional[_Union[AbortTransfer, _Mapping]] = ..., received: _Optional[_Union[ChunkReceived, _Mapping]] = ..., lane: _Optional[_Union[LaneOffer, _Mapping]] = ...) -> None: ...

class HomeAttach(_message.Message):
    __slots__ = ("worker", "incarnation", "fingerprint")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    fingerprint: Fingerprint
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("model", "dtype", "layers", "kv_heads", "head_dim")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.Model
    dtype: str
    layers: int
    kv_heads: int
    head_dim: int
    def __init__(self, model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., dtype: _Optional[str] = ..., layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ...) -> None: ...

class PrefillStart(_message.Message):
    __slots__ = ("transfer", "epoch", "request", "attempt", "tenant", "tenant_class", "prompt", "choices", "sampling", "seed", "hash_root", "deadline_remaining_us", "router", "reservation", "transfer_wanted", "grammar", "tenant_weight")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_CLASS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HASH_ROOT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_WANTED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    request: str
    attempt: int
    tenant: str
    tenant_class: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedCompositeFieldContainer[_common_pb2.Choice]
    sampling: _common_pb2.Sampling
    seed: int
    hash_root: bytes
    deadline_remaining_us: int
    router: str
    reservation: int
    transfer_wanted: bool
    grammar: str
    tenant_weight: float
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., request: _Optional[str] = ..., attempt: _Optional[int] = ..., tenant: _Optional[str] = ..., tenant_class: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[_Union[_common_pb2.Choice, _Mapping]]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., hash_root: _Optional[bytes] = ..., deadline_remaining_us: _Optional[int] = ..., router: _Optional[str] = ..., reservation: _Optional[int] = ..., transfer_wanted: bool = ..., grammar: _Optional[str] = ..., tenant_weight: _Optional[float] = ...) -> None: ...

class Bound(_message.Message):
    __slots__ = ("transfer", "epoch", "first_token", "lease_us")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_US_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    first_token: int
    lease_us: int
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., first_token: _Optional[int] = ..., lease_us: _Optional[int] = ...) -> None: ...

class AbortTransfer(_message.Message):
    __slots__ = ("transfer", "epoch", "reason")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    reason: str
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ChunkReceived(_message.Message):
    __slots__ = ("transfer", "epoch", "chunk")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    chunk: int
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., chunk: _Optional[int] = ...) -> None: ...

class LaneOffer(_message.Message):
    __slots__ = ("lane_epoch", "store_address", "store_prefix")
    LANE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    lane_epoch: int
    store_address: str
    store_prefix: str
    def __init__(self, lane_epoch: _Optional[int] = ..., store_address: _Optional[str] = ..., store_prefix: _Optional[str] = ...) -> None: ...

class PrefillMessage(_message.Message):
    __slots__ = ("attached", "bind", "first", "sent", "failed", "lane")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    attached: PrefillAttached
    bind: BindRequest
    first: FirstTokens
    sent: ChunkSent
    failed: TransferFailed
    lane: LaneReady
    def __init__(self, attached: _Optional[_Union[PrefillAttached, _Mapping]] = ..., bind: _Optional[_Union[BindRequest, _Mapping]] = ..., first: _Optional[_Union[FirstTokens, _Mapping]] = ..., sent: _Optional[_Union[ChunkSent, _Mapping]] = ..., failed: _Optional[_Union[TransferFailed, _Mapping]] = ..., lane: _Optional[_Union[LaneReady, _Mapping]] = ...) -> None: ...

class PrefillAttached(_message.Message):
    __slots__ = ("worker", "incarnation", "refused", "fingerprint")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    refused: _common_pb2.End
    fingerprint: Fingerprint
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., refused: _Optional[_Union[_common_pb2.End, _Mapping]] = ..., fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ...) -> None: ...

class BindRequest(_message.Message):
    __slots__ = ("transfer", "epoch")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class FirstTokens(_message.Message):
    __slots__ = ("transfer", "epoch", "tokens", "cached_tokens", "chunks", "compute_us")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    tokens: _containers.RepeatedCompositeFieldContainer[FirstDrawn]
    cached_tokens: int
    chunks: int
    compute_us: int
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[FirstDrawn, _Mapping]]] = ..., cached_tokens: _Optional[int] = ..., chunks: _Optional[int] = ..., compute_us: _Optional[int] = ...) -> None: ...

class FirstDrawn(_message.Message):
    __slots__ = ("choice", "token", "logprobs", "finish_reason")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    choice: int
    token: int
    logprobs: _common_pb2.Logprobs
    finish_reason: str
    def __init__(self, choice: _Optional[int] = ..., token: _Optional[int] = ..., logprobs: _Optional[_Union[_common_pb2.Logprobs, _Mapping]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class ChunkSent(_message.Message):
    __slots__ = ("transfer", "epoch", "chunk", "start", "stop", "bytes", "checksum", "lane_epoch")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LANE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    chunk: int
    start: int
    stop: int
    bytes: int
    checksum: int
    lane_epoch: int
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., chunk: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., lane_epoch: _Optional[int] = ...) -> None: ...

class TransferFailed(_message.Message):
    __slots__ = ("transfer", "epoch", "end")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    epoch: int
    end: _common_pb2.End
    def __init__(self, transfer: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...

class LaneReady(_message.Message):
    __slots__ = ("lane_epoch", "error")
    LANE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    lane_epoch: int
    error: str
    def __init__(self, lane_epoch: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...
