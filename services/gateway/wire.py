"""How the gateway's actions and events travel to routers and decode workers."""

from core.request import AttemptKey
from proto import common_pb2, decode_pb2, router_pb2
from rpc.convert import (
    choice_to_wire,
    end_from_wire,
    finish_from_wire,
    leg_from_wire,
    leg_to_wire,
    model_to_wire,
    sampling_to_wire,
)
from services.gateway.actions import (
    CancelAttempt,
    FirstTokenSeen,
    LiveAttempt,
    Resume,
    Settle,
    Start,
    Submit,
    Withdraw,
)
from services.gateway.requests import AttemptEnd, Logprobs, Placement, Run


def hello_to_wire(
    gateway: str, incarnation: str, live: list[LiveAttempt], now_us: int
) -> router_pb2.RouteRequest:
    attempts = [
        router_pb2.LiveRequest(
            submit=_submit(attempt.submit, now_us),
            legs=[leg_to_wire(leg) for leg in attempt.legs],
            first_token_seen=attempt.first_token_seen,
        )
        for attempt in live
    ]
    hello = router_pb2.GatewayHello(gateway=gateway, incarnation=incarnation, live=attempts)
    return router_pb2.RouteRequest(hello=hello)


def to_router(action: Submit | FirstTokenSeen | Settle | Withdraw, now_us: int) -> router_pb2.RouteRequest:
    key = action.key
    match action:
        case Submit():
            return router_pb2.RouteRequest(submit=_submit(action, now_us))
        case FirstTokenSeen():
            seen = router_pb2.FirstToken(request=key.request, attempt=key.attempt)
            return router_pb2.RouteRequest(first_token=seen)
        case Withdraw():
            withdraw = router_pb2.Withdraw(request=key.request, attempt=key.attempt)
            return router_pb2.RouteRequest(withdraw=withdraw)
        case Settle():
            settle = router_pb2.Settle(
                request=key.request,
                attempt=key.attempt,
                outcome=action.outcome.value,
                prompt_tokens=action.prompt_tokens,
                output_tokens=action.output_tokens,
                final=action.final,
            )
            return router_pb2.RouteRequest(settle=settle)


def _submit(submit: Submit, now_us: int) -> router_pb2.Submit:
    tenant = submit.tenant
    return router_pb2.Submit(
        request=submit.key.request,
        attempt=submit.key.attempt,
        tenant=tenant.name,
        tenant_class=int(tenant.tenant_class),
        model=model_to_wire(submit.model),
        prompt_tokens=submit.prompt_tokens,
        output_tokens=submit.output_tokens,
        max_tokens=submit.max_tokens,
        choices=submit.choices,
        prefix_hashes=submit.prefix_hashes,
        deadline_remaining_us=max(1, submit.deadline_us - now_us),
        avoid_workers=submit.avoid_workers,
        dtype=submit.dtype,
        tenant_weight=tenant.weight,
        tenant_concurrency=tenant.concurrency,
        tenant_tokens_per_minute=tenant.tokens_per_minute,
    )


def placement_from_wire(placed: router_pb2.Placed) -> Placement:
    """Raises FieldError where a leg could not be walked."""
    legs = tuple(leg_from_wire(leg, f"legs[{position}]") for position, leg in enumerate(placed.legs))
    return Placement(legs, placed.fallback or "prefer")


def attach_to_wire(gateway: str, incarnation: str, resume: list[Resume]) -> decode_pb2.GatewayMessage:
    attempts = [
        decode_pb2.Resume(request=one.key.request, attempt=one.key.attempt, next_index=one.next_index)
        for one in resume
    ]
    attach = decode_pb2.GatewayAttach(gateway=gateway, incarnation=incarnation, resume=attempts)
    return decode_pb2.GatewayMessage(attach=attach)


def to_worker(action: Start | CancelAttempt, now_us: int) -> decode_pb2.GatewayMessage:
    if isinstance(action, Start):
        return decode_pb2.GatewayMessage(start=_start(action, now_us))
    cancel = decode_pb2.CancelAttempt(
        request=action.key.request, attempt=action.key.attempt, outcome=action.outcome.value
    )
    return decode_pb2.GatewayMessage(cancel=cancel)


def _start(start: Start, now_us: int) -> decode_pb2.Start:
    return decode_pb2.Start(
        request=start.key.request,
        attempt=start.key.attempt,
        model=model_to_wire(start.model),
        tenant=start.tenant.name,
        tenant_class=int(start.tenant.tenant_class),
        prompt=start.prompt,
        choices=[choice_to_wire(choice) for choice in start.choices],
        sampling=sampling_to_wire(start.params),
        seed=start.seed,
        hash_root=start.hash_root,
        legs=[leg_to_wire(leg) for leg in start.legs],
        fallback=start.fallback,
        deadline_remaining_us=max(1, start.deadline_us - now_us),
        router=start.router,
        grammar=start.grammar,
        tenant_weight=start.tenant.weight,
    )


def run_from_wire(run: decode_pb2.TokenRun) -> Run:
    return Run(
        run.request,
        run.attempt,
        run.choice,
        run.first_index,
        tuple(run.tokens),
        tuple(map(_logprobs, run.logprobs)) if run.logprobs else (),
        finish_from_wire(run.finish_reason) if run.finish_reason else None,
        run.cached_tokens,
    )


def attempt_end_from_wire(ended: decode_pb2.AttemptEnd) -> AttemptEnd:
    return AttemptEnd(ended.request, ended.attempt, end_from_wire(ended.end))


def unknown_from_wire(attached: decode_pb2.Attached) -> tuple[AttemptKey, ...]:
    return tuple(AttemptKey(one.request, one.attempt) for one in attached.unknown)


def _logprobs(message: common_pb2.Logprobs) -> Logprobs:
    return Logprobs(message.logprob, tuple(zip(message.top_tokens, message.top_logprobs, strict=False)))
