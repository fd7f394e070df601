from proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RouteRequest(_message.Message):
    __slots__ = ("hello", "submit", "first_token", "settle", "withdraw")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    submit: Submit
    first_token: FirstToken
    settle: Settle
    withdraw: Withdraw
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("gateway", "incarnation", "live")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    incarnation: str
    live: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    def __init__(self, gateway: _Optional[str] = ..., incarnation: _Optional[str] = ..., live: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("submit", "legs", "first_token_seen")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    LEGS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_SEEN_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    legs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Leg]
    first_token_seen: bool
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., legs: _Optional[_Iterable[_Union[_common_pb2.Leg, _Mapping]]] = ..., first_token_seen: bool = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request", "attempt", "tenant", "tenant_class", "model", "prompt_tokens", "output_tokens", "max_tokens", "choices", "prefix_hashes", "deadline_remaining_us", "avoid_workers", "dtype", "tenant_weight", "tenant_concurrency", "tenant_tokens_per_minute")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    AVOID_WORKERS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TENANT_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    TENANT_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    tenant: str
    tenant_class: int
    model: _common_pb2.Model
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    choices: int
    prefix_hashes: bytes
    deadline_remaining_us: int
    avoid_workers: _containers.RepeatedScalarFieldContainer[str]
    dtype: str
    tenant_weight: float
    tenant_concurrency: int
    tenant_tokens_per_minute: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., tenant: _Optional[str] = ..., tenant_class: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., choices: _Optional[int] = ..., prefix_hashes: _Optional[bytes] = ..., deadline_remaining_us: _Optional[int] = ..., avoid_workers: _Optional[_Iterable[str]] = ..., dtype: _Optional[str] = ..., tenant_weight: _Optional[float] = ..., tenant_concurrency: _Optional[int] = ..., tenant_tokens_per_minute: _Optional[int] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("request", "attempt")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("request", "attempt", "outcome", "prompt_tokens", "output_tokens", "final")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    outcome: str
    prompt_tokens: int
    output_tokens: int
    final: bool
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., outcome: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., final: bool = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("request", "attempt")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("hello", "placed", "refused")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    hello: RouterHello
    placed: Placed
    refused: Refused
    def __init__(self, hello: _Optional[_Union[RouterHello, _Mapping]] = ..., placed: _Optional[_Union[Placed, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class RouterHello(_message.Message):
    __slots__ = ("router", "incarnation")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    router: str
    incarnation: str
    def __init__(self, router: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("request", "attempt", "legs", "fallback", "queued_us")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEGS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    legs: _containers.RepeatedCompositeFieldContainer[_common_pb2.Leg]
    fallback: str
    queued_us: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., legs: _Optional[_Iterable[_Union[_common_pb2.Leg, _Mapping]]] = ..., fallback: _Optional[str] = ..., queued_us: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request", "attempt", "end")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    end: _common_pb2.End
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...

class WorkerUpdate(_message.Message):
    __slots__ = ("hello", "load", "prefixes")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    load: LoadReport
    prefixes: PrefixEvents
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., prefixes: _Optional[_Union[PrefixEvents, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("worker", "incarnation", "role", "address", "pid", "instances")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    role: str
    address: str
    pid: int
    instances: _containers.RepeatedCompositeFieldContainer[InstanceInfo]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., instances: _Optional[_Iterable[_Union[InstanceInfo, _Mapping]]] = ...) -> None: ...

class InstanceInfo(_message.Message):
    __slots__ = ("model", "dtype", "block_size", "blocks_total", "max_positions", "max_running", "cost_base_ns", "cost_token_ns", "cost_context_ns", "kv_bytes_per_token", "hash_unit", "eos_token_ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    COST_BASE_NS_FIELD_NUMBER: _ClassVar[int]
    COST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    COST_CONTEXT_NS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HASH_UNIT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.Model
    dtype: str
    block_size: int
    blocks_total: int
    max_positions: int
    max_running: int
    cost_base_ns: int
    cost_token_ns: int
    cost_context_ns: int
    kv_bytes_per_token: int
    hash_unit: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., dtype: _Optional[str] = ..., block_size: _Optional[int] = ..., blocks_total: _Optional[int] = ..., max_positions: _Optional[int] = ..., max_running: _Optional[int] = ..., cost_base_ns: _Optional[int] = ..., cost_token_ns: _Optional[int] = ..., cost_context_ns: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., hash_unit: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("sequence", "model", "blocks_free", "blocks_cached", "blocks_held", "blocks_in_flight", "running", "waiting", "transferring", "queued_prefill_us", "acknowledged", "service", "draining", "ended", "wall_time", "preemptions", "swaps", "host_blocks_used", "unused_slots", "draft_tokens", "accepted_draft_tokens")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    UNUSED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    model: _common_pb2.Model
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_in_flight: int
    running: int
    waiting: int
    transferring: int
    queued_prefill_us: int
    acknowledged: _containers.RepeatedCompositeFieldContainer[AcknowledgedReservation]
    service: _containers.RepeatedCompositeFieldContainer[TenantService]
    draining: bool
    ended: _containers.RepeatedCompositeFieldContainer[ReservationEnd]
    wall_time: WallTime
    preemptions: int
    swaps: int
    host_blocks_used: int
    unused_slots: int
    draft_tokens: int
    accepted_draft_tokens: int
    def __init__(self, sequence: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_held: _Optional[int] = ..., blocks_in_flight: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., transferring: _Optional[int] = ..., queued_prefill_us: _Optional[int] = ..., acknowledged: _Optional[_Iterable[_Union[AcknowledgedReservation, _Mapping]]] = ..., service: _Optional[_Iterable[_Union[TenantService, _Mapping]]] = ..., draining: bool = ..., ended: _Optional[_Iterable[_Union[ReservationEnd, _Mapping]]] = ..., wall_time: _Optional[_Union[WallTime, _Mapping]] = ..., preemptions: _Optional[int] = ..., swaps: _Optional[int] = ..., host_blocks_used: _Optional[int] = ..., unused_slots: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ...) -> None: ...

class WallTime(_message.Message):
    __slots__ = ("wall_us", "transfer_stall_us", "idle_us", "tenants")
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_STALL_US_FIELD_NUMBER: _ClassVar[int]
    IDLE_US_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    wall_us: int
    transfer_stall_us: int
    idle_us: int
    tenants: _containers.RepeatedCompositeFieldContainer[TenantTime]
    def __init__(self, wall_us: _Optional[int] = ..., transfer_stall_us: _Optional[int] = ..., idle_us: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[TenantTime, _Mapping]]] = ...) -> None: ...

class TenantTime(_message.Message):
    __slots__ = ("tenant", "work_us", "recompute_us", "rejected_speculation_us", "cancelled_us")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORK_US_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    REJECTED_SPECULATION_US_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_US_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    work_us: int
    recompute_us: int
    rejected_speculation_us: int
    cancelled_us: int
    def __init__(self, tenant: _Optional[str] = ..., work_us: _Optional[int] = ..., recompute_us: _Optional[int] = ..., rejected_speculation_us: _Optional[int] = ..., cancelled_us: _Optional[int] = ...) -> None: ...

class AcknowledgedReservation(_message.Message):
    __slots__ = ("router", "reservation")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    router: str
    reservation: int
    def __init__(self, router: _Optional[str] = ..., reservation: _Optional[int] = ...) -> None: ...

class TenantService(_message.Message):
    __slots__ = ("tenant", "service_us")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_US_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    service_us: int
    def __init__(self, tenant: _Optional[str] = ..., service_us: _Optional[int] = ...) -> None: ...

class ReservationEnd(_message.Message):
    __slots__ = ("router", "reservation")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    router: str
    reservation: int
    def __init__(self, router: _Optional[str] = ..., reservation: _Optional[int] = ...) -> None: ...

class PrefixEvents(_message.Message):
    __slots__ = ("first_sequence", "model", "snapshot", "stored", "removed")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    model: _common_pb2.Model
    snapshot: bool
    stored: bytes
    removed: bytes
    def __init__(self, first_sequence: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ..., snapshot: bool = ..., stored: _Optional[bytes] = ..., removed: _Optional[bytes] = ...) -> None: ...

class RouterUpdate(_message.Message):
    __slots__ = ("hello", "resync")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    hello: RouterHello
    resync: ResyncPrefixes
    def __init__(self, hello: _Optional[_Union[RouterHello, _Mapping]] = ..., resync: _Optional[_Union[ResyncPrefixes, _Mapping]] = ...) -> None: ...

class ResyncPrefixes(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.Model
    def __init__(self, model: _Optional[_Union[_common_pb2.Model, _Mapping]] = ...) -> None: ...

class GetRouterStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouterState(_message.Message):
    __slots__ = ("router", "in_flight", "queued", "workers", "tenants_in_flight")
    class TenantsInFlightEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    router: str
    in_flight: int
    queued: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    tenants_in_flight: _containers.ScalarMap[str, int]
    def __init__(self, router: _Optional[str] = ..., in_flight: _Optional[int] = ..., queued: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., tenants_in_flight: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("hello", "loads", "age_us")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    loads: _containers.RepeatedCompositeFieldContainer[LoadReport]
    age_us: int
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., loads: _Optional[_Iterable[_Union[LoadReport, _Mapping]]] = ..., age_us: _Optional[int] = ...) -> None: ...
