"""What a gateway still holds of requests that are over: nothing, in whichever phase they were cancelled."""

from collections.abc import Callable

import pytest

from core.ends import End
from core.outcomes import Outcome
from core.request import AttemptKey, InstanceKey, Leg, ModelIdentity, Role
from core.sampling import SamplingParams
from services.gateway.gateway import Gateway, GatewayPolicy
from services.gateway.requests import NewRequest, Placement, Run, Tenant
from tests.held import held

MODEL = ModelIdentity("m", "r1")
HOME = Leg(Role.DECODE, InstanceKey("w", "1", MODEL), "w:1", 7, "float32")
REQUESTS, HELD_MAX = 1_000, 100
"""Of one container: deadlines keep up to 64 stale ones before they are swept."""


def waiting(gateway: Gateway, request: str, now_us: int) -> None:
    gateway.refused("router", AttemptKey(request, 1), End(Outcome.NO_WORKER), now_us)


def submitted(gateway: Gateway, request: str, now_us: int) -> None:
    pass


def placed(gateway: Gateway, request: str, now_us: int) -> None:
    gateway.placed("router", AttemptKey(request, 1), Placement((HOME,), "prefer"), now_us)


def started(gateway: Gateway, request: str, now_us: int) -> None:
    placed(gateway, request, now_us)
    gateway.decode_up("w", "1", (), now_us)
    gateway.frame("w", (Run(request, 1, 0, 0, (5,)),), (), now_us)


def retried(gateway: Gateway, request: str, now_us: int) -> None:
    started(gateway, request, now_us)
    gateway.decode_gone("w", now_us)


@pytest.mark.parametrize("phase", [waiting, submitted, placed, started, retried])
def test_cancelled_requests_leave_nothing_in_any_container(
    phase: Callable[[Gateway, str, int], None],
) -> None:
    gateway = Gateway(GatewayPolicy())
    gateway.router_up("router", 0)
    for number in range(REQUESTS):
        request, now_us = f"gen-g-{number}", number * 200_000
        gateway.open(
            NewRequest(
                request=request,
                tenant=Tenant("t"),
                model=MODEL,
                prompt=(1, 2, 3),
                params=SamplingParams(max_tokens=8),
                seed=number,
                hash_root=b"12345678",
                deadline_us=now_us + 60_000_000,
            ),
            now_us,
        )
        phase(gateway, request, now_us)
        gateway.cancel(request, Outcome.CANCELLED, "", now_us)
        gateway.check()
    assert gateway.in_flight == 0
    assert gateway.outcomes() == {Outcome.CANCELLED: REQUESTS}
    grown = {path: length for path, length in held(gateway).items() if length > HELD_MAX}
    assert not grown
