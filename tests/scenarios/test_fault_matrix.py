"""Every fault in every phase of a request: it ends once, rightly, and nothing is left of it anywhere."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from core.outcomes import Outcome
from core.request import TenantClass
from router.policy import RouterPolicy
from services.gateway.requests import Tenant
from sim import faults, laws
from sim.clients import Asked
from sim.config import FleetConfig, worker
from sim.fleet import DEADLINE_US, Fleet
from sim.phases import Phase, View

POLICY = RouterPolicy(
    local_penalty=1000.0, local_cached_share=1.0, growth_tokens_default=1, growth_tokens_max=1
)
"""Hands everything over, and reserves no growth, so that decode pools run out."""
SMALL = worker(64, max_step_tokens=64, max_running=4)
"""64 blocks of 16 tokens."""
CONFIG = FleetConfig(
    prefills=2, decodes=2, prefill=SMALL, decode=SMALL, router_policy=POLICY, lane_latency_us=3_000
)
BATCH = Tenant("batch", TenantClass.BATCH)


def begin(
    phase: Phase, *, deadline_us: int = DEADLINE_US, config: FleetConfig = CONFIG
) -> tuple[Fleet, Asked]:
    """A fleet with company for the request that is asked last; that one is preempted first."""
    fleet = Fleet(config)
    company = {Phase.QUEUED: 12, Phase.PREEMPTED: 5}.get(phase, 2)
    for _ in range(company):
        fleet.ask(280, 60)
    if phase is Phase.PREEMPTED:
        fleet.run(100_000)
    asked = fleet.ask(300, 60 if phase is Phase.PREEMPTED else 24, tenant=BATCH, deadline_us=deadline_us)
    return fleet, asked


def reach(fleet: Fleet, asked: Asked, phase: Phase) -> View:
    view = View(fleet, asked)
    fleet.run_until(lambda: view.is_in(phase), 30_000_000)
    return view


def home_of(view: View) -> str:
    home = view.home()
    return "decode-0" if home is None else home[0]


def prefill_of(view: View) -> str:
    prompt = view.prompt()
    return "prefill-0" if prompt is None else prompt[0]


def burst(fleet: Fleet) -> None:
    for _ in range(10):
        fleet.ask(300, 40)


Fault = Callable[[Fleet, View], None]
FAULTS: dict[str, Fault] = {
    "prefill_crash": lambda fleet, view: fleet.restart(prefill_of(view)),
    "prefill_drain": lambda fleet, view: faults.drain(fleet, prefill_of(view)),
    "decode_crash": lambda fleet, view: fleet.restart(home_of(view)),
    "decode_drain": lambda fleet, view: faults.drain(fleet, home_of(view)),
    "decode_drain_without_grace": lambda fleet, view: faults.drain(fleet, home_of(view), 1),
    "decode_stopped": lambda fleet, view: faults.pause(fleet, home_of(view), 1_000_000),
    "decode_stopped_long": lambda fleet, view: faults.pause(fleet, home_of(view), 9_000_000),
    "prefill_stopped": lambda fleet, view: faults.pause(fleet, prefill_of(view), 9_000_000),
    "router_restart": lambda fleet, view: fleet.restart("router-0"),
    "gateway_stream_breaks": lambda fleet, view: faults.break_streams(fleet, "gateway-0", home_of(view)),
    "gateway_is_cut_off": lambda fleet, view: faults.cut(fleet, "gateway-0", home_of(view), 8_000_000),
    "hand_off_stream_breaks": lambda fleet, view: faults.break_streams(
        fleet, prefill_of(view), home_of(view)
    ),
    "router_stream_breaks": lambda fleet, view: faults.break_streams(fleet, "gateway-0", "router-0"),
    "workers_streams_break": lambda fleet, view: faults.break_all_streams(fleet, home_of(view)),
    "messages_doubled": lambda fleet, view: faults.double_messages(fleet, 1_000_000, 100),
    "messages_doubled_late": lambda fleet, view: faults.double_messages(fleet, 1_000_000, 60_000),
    "lanes_fail": lambda fleet, view: faults.fail_lanes(fleet),
    "chunks_corrupt": lambda fleet, view: faults.corrupt_chunks(fleet, 2),
    "slow_lanes": lambda fleet, view: faults.slow_lanes(fleet, 300_000, 3_000_000),
    "slow_decode": lambda fleet, view: faults.slow_engine(fleet, home_of(view), 20, 3_000_000),
    "pool_exhausted": lambda fleet, view: burst(fleet),
}


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("fault", list(FAULTS))
def test_answer_survives(phase: Phase, fault: str) -> None:
    fleet, asked = begin(phase)
    view = reach(fleet, asked, phase)
    FAULTS[fault](fleet, view)
    laws.finish(fleet)
    laws.completed(*fleet.clients.asked.values())


@pytest.mark.parametrize("phase", list(Phase))
def test_cancel(phase: Phase) -> None:
    fleet, asked = begin(phase)
    reach(fleet, asked, phase)
    fleet.cancel(asked)
    fleet.cancel(asked)
    assert asked.outcome is Outcome.CANCELLED
    laws.finish(fleet)
    laws.completed(*[one for one in fleet.clients.asked.values() if one is not asked])


@pytest.mark.parametrize("phase", list(Phase))
def test_deadline(phase: Phase) -> None:
    fleet, asked = begin(phase)
    asked_us = fleet.loop.now_us if phase is not Phase.PREEMPTED else asked.asked_us
    reach(fleet, asked, phase)
    fleet, asked = begin(phase, deadline_us=fleet.loop.now_us - asked_us)
    laws.finish(fleet)
    late = (Outcome.DEADLINE_EXCEEDED, Outcome.SHED)
    assert asked.outcome in (late if phase is not Phase.FINISHING else (*late, Outcome.COMPLETED))
    laws.completed(*[one for one in fleet.clients.asked.values() if one is not asked])


@pytest.mark.parametrize("phase", list(Phase))
def test_gateway_restart(phase: Phase) -> None:
    fleet, asked = begin(phase)
    view = reach(fleet, asked, phase)
    home = home_of(view)
    fleet.restart("gateway-0")
    fleet.run(3_500_000)
    assert fleet.decode(home).plain.live == 0, "a dead gateway's requests stop within 3 s"
    laws.finish(fleet)
    again = fleet.ask(300, 24)
    laws.finish(fleet)
    laws.completed(again)


@pytest.mark.parametrize("phase", list(Phase))
def test_required_prefill_fails(phase: Phase) -> None:
    """Where the home may not prefill itself, its failure is the gateway's to retry."""
    fleet, asked = begin(phase, config=replace(CONFIG, router_policy=replace(POLICY, fallback="require")))
    view = reach(fleet, asked, phase)
    faults.fail_lanes(fleet)
    fleet.restart(prefill_of(view))
    laws.finish(fleet)
    laws.completed(asked)


def test_phases_are_distinct() -> None:
    """The matrix tests what it says: a request passes through all of them, in order."""
    fleet, asked = begin(Phase.BOUND)
    view = View(fleet, asked)
    order = [
        Phase.RESERVED,
        Phase.BOUND,
        Phase.PREFILLING,
        Phase.FIRST_CHUNK,
        Phase.MIDDLE_CHUNK,
        Phase.PREFILLED,
        Phase.LAST_CHUNK,
        Phase.TRANSFERRED,
        Phase.DECODING,
        Phase.FINISHING,
    ]
    times = []
    for phase in order:
        fleet.run_until(lambda phase=phase: view.is_in(phase))  # type: ignore[misc]
        times.append(fleet.loop.now_us)
    assert times == sorted(times) and len(dict.fromkeys(times)) >= len(order) - 1
