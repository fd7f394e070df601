"""How the router's messages travel; every number from a peer is checked here."""

from core.ends import End
from core.request import AttemptKey
from proto import router_pb2
from router.actions import Place, Refuse
from router.messages import (
    HASH_BYTES,
    InstanceInfo,
    LiveRequest,
    LoadReport,
    PrefixEvents,
    Submission,
    WorkerHello,
    WorkerView,
)
from router.router import RouterSnapshot
from rpc.convert import (
    end_to_wire,
    leg_from_wire,
    leg_to_wire,
    model_from_wire,
    model_to_wire,
    role_from_wire,
    tenant_class_from_wire,
    weight_from_wire,
)
from rpc.errors import FieldError

TOKENS_MAX = 1 << 24
"""No prompt or output is longer; a larger number is a peer's mistake."""
CHOICES_MAX = 1024


def submission_from_wire(message: router_pb2.Submit) -> Submission:
    """Raises FieldError where no router could decide on it."""
    _check(bool(message.request), "submit.request", "must not be empty")
    _check(len(message.prefix_hashes) % HASH_BYTES == 0, "submit.prefix_hashes", "must be 8 bytes each")
    for name in ("prompt_tokens", "output_tokens", "max_tokens"):
        _check(getattr(message, name) <= TOKENS_MAX, f"submit.{name}", f"must be at most {TOKENS_MAX}")
    _check(message.choices <= CHOICES_MAX, "submit.choices", f"must be at most {CHOICES_MAX}")
    return Submission(
        key=AttemptKey(message.request, message.attempt),
        tenant=message.tenant,
        tenant_class=tenant_class_from_wire(message.tenant_class, "submit.tenant_class"),
        model=model_from_wire(message.model, "submit.model"),
        prompt_tokens=message.prompt_tokens,
        output_tokens=message.output_tokens,
        max_tokens=message.max_tokens,
        choices=message.choices or 1,
        prefix_hashes=message.prefix_hashes,
        deadline_remaining_us=message.deadline_remaining_us,
        avoid_workers=tuple(message.avoid_workers),
        dtype=message.dtype,
        tenant_weight=weight_from_wire(message.tenant_weight, "submit.tenant_weight"),
        tenant_concurrency=message.tenant_concurrency,
        tenant_tokens_per_minute=message.tenant_tokens_per_minute,
    )


def live_from_wire(message: router_pb2.LiveRequest) -> LiveRequest:
    """Raises FieldError where it could not be what a router placed."""
    legs = tuple(leg_from_wire(leg, f"live.legs[{position}]") for position, leg in enumerate(message.legs))
    return LiveRequest(submission_from_wire(message.submit), legs, message.first_token_seen)


def hello_from_wire(message: router_pb2.WorkerHello) -> WorkerHello:
    """Raises FieldError naming what is missing of a worker."""
    for name in ("worker", "incarnation", "address"):
        _check(bool(getattr(message, name)), f"hello.{name}", "must not be empty")
    instances = tuple(
        _instance(one, f"hello.instances[{position}]") for position, one in enumerate(message.instances)
    )
    models = [one.model for one in instances]
    _check(len(set(models)) == len(models), "hello.instances", "must not name a model twice")
    role = role_from_wire(message.role, "hello.role")
    return WorkerHello(message.worker, message.incarnation, role, message.address, message.pid, instances)


def report_from_wire(message: router_pb2.LoadReport) -> LoadReport:
    """Raises FieldError where the model is not named."""
    return LoadReport(
        sequence=message.sequence,
        model=model_from_wire(message.model, "load.model"),
        blocks_free=message.blocks_free,
        blocks_cached=message.blocks_cached,
        blocks_held=message.blocks_held,
        blocks_in_flight=message.blocks_in_flight,
        running=message.running,
        waiting=message.waiting,
        transferring=message.transferring,
        queued_prefill_us=message.queued_prefill_us,
        acknowledged=tuple((one.router, one.reservation) for one in message.acknowledged),
        service=tuple((one.tenant, one.service_us) for one in message.service),
        draining=message.draining,
        ended=tuple((one.router, one.reservation) for one in message.ended),
    )


def prefixes_from_wire(message: router_pb2.PrefixEvents) -> PrefixEvents:
    """Raises FieldError where hashes are cut short."""
    for name in ("stored", "removed"):
        _check(len(getattr(message, name)) % HASH_BYTES == 0, f"prefixes.{name}", "must be 8 bytes each")
    return PrefixEvents(
        message.first_sequence,
        model_from_wire(message.model, "prefixes.model"),
        message.snapshot,
        message.stored,
        message.removed,
    )


def answer_to_wire(answer: Place | Refuse) -> router_pb2.RouteResponse:
    key = answer.key
    if isinstance(answer, Refuse):
        refused = router_pb2.Refused(request=key.request, attempt=key.attempt, end=end_to_wire(answer.end))
        return router_pb2.RouteResponse(refused=refused)
    placed = router_pb2.Placed(
        request=key.request,
        attempt=key.attempt,
        legs=[leg_to_wire(leg) for leg in answer.legs],
        fallback=answer.fallback,
        queued_us=answer.queued_us,
    )
    return router_pb2.RouteResponse(placed=placed)


def refused_to_wire(message: router_pb2.Submit, end: End) -> router_pb2.RouteResponse:
    """For a submit that could not even be read."""
    refused = router_pb2.Refused(request=message.request, attempt=message.attempt, end=end_to_wire(end))
    return router_pb2.RouteResponse(refused=refused)


def state_to_wire(router: str, snapshot: RouterSnapshot) -> router_pb2.RouterState:
    return router_pb2.RouterState(
        router=router,
        in_flight=snapshot.in_flight,
        queued=snapshot.queued,
        workers=[_view_to_wire(view) for view in snapshot.workers],
        tenants_in_flight=snapshot.tenants_in_flight,
    )


def _instance(message: router_pb2.InstanceInfo, field: str) -> InstanceInfo:
    for name in ("block_size", "blocks_total", "max_positions", "max_running", "hash_unit"):
        _check(getattr(message, name) >= 1, f"{field}.{name}", "must be at least 1")
    return InstanceInfo(
        model=model_from_wire(message.model, f"{field}.model"),
        dtype=message.dtype,
        block_size=message.block_size,
        blocks_total=message.blocks_total,
        max_positions=message.max_positions,
        max_running=message.max_running,
        cost_base_ns=message.cost_base_ns,
        cost_token_ns=message.cost_token_ns,
        cost_context_ns=message.cost_context_ns,
        kv_bytes_per_token=message.kv_bytes_per_token,
        hash_unit=message.hash_unit,
        eos_token_ids=tuple(message.eos_token_ids),
    )


def _view_to_wire(view: WorkerView) -> router_pb2.WorkerState:
    hello = view.hello
    return router_pb2.WorkerState(
        hello=router_pb2.WorkerHello(
            worker=hello.worker,
            incarnation=hello.incarnation,
            role=hello.role.value,
            address=hello.address,
            pid=hello.pid,
            instances=[_instance_to_wire(info) for info in hello.instances],
        ),
        loads=[_report_to_wire(report) for report in view.reports],
        age_us=max(0, view.age_us),
    )


def _instance_to_wire(info: InstanceInfo) -> router_pb2.InstanceInfo:
    return router_pb2.InstanceInfo(
        model=model_to_wire(info.model),
        dtype=info.dtype,
        block_size=info.block_size,
        blocks_total=info.blocks_total,
        max_positions=info.max_positions,
        max_running=info.max_running,
        cost_base_ns=info.cost_base_ns,
        cost_token_ns=info.cost_token_ns,
        cost_context_ns=info.cost_context_ns,
        kv_bytes_per_token=info.kv_bytes_per_token,
        hash_unit=info.hash_unit,
        eos_token_ids=info.eos_token_ids,
    )


def _report_to_wire(report: LoadReport) -> router_pb2.LoadReport:
    """The counts; what only concerns the routers is left out."""
    return router_pb2.LoadReport(
        sequence=report.sequence,
        model=model_to_wire(report.model),
        blocks_free=report.blocks_free,
        blocks_cached=report.blocks_cached,
        blocks_held=report.blocks_held,
        blocks_in_flight=report.blocks_in_flight,
        running=report.running,
        waiting=report.waiting,
        transferring=report.transferring,
        queued_prefill_us=report.queued_prefill_us,
        draining=report.draining,
    )


def _check(holds: bool, field: str, problem: str) -> None:
    if not holds:
        raise FieldError(field, problem)
