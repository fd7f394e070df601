"""A tenant's limit holds through the loss of the store, of its memory, and of routers."""

from dataclasses import replace

import pytest

from core.outcomes import Outcome
from sim import faults, laws
from sim.clients import Asked
from sim.config import FleetConfig
from sim.fleet import Fleet, tenant

LIMIT = 5
LIMITED = tenant("limited", concurrency=LIMIT)
CONFIG = FleetConfig(prefills=1, decodes=2, routers=2, gateways=2, check_every=10)


def running(asked: list[Asked]) -> int:
    """Those that have tokens and no end: the least that the fleet must be running."""
    return sum(one.first_token_us is not None and not one.over for one in asked)


def serve(fleet: Fleet, rounds: int) -> list[Asked]:
    """Asks for one more than the limit again and again; the fleet may never run more than it."""
    asked: list[Asked] = []
    for index in range(rounds):
        for _ in range(2):
            asked.append(fleet.ask(40, 30, tenant=LIMITED, gateway=fleet.gateways[index % 2]))
        for _ in range(10):
            fleet.run(10_000)
            assert running(asked) <= LIMIT, f"{running(asked)} run at limit {LIMIT}"
    return asked


def test_a_thousand_at_once_at_limit_ten() -> None:
    fleet = Fleet(replace(CONFIG, routers=1, check_every=200))
    ten = tenant("ten", concurrency=10)
    asked = [fleet.ask(20, 100, tenant=ten, gateway=fleet.gateways[index % 2]) for index in range(1_000)]
    fleet.run(200_000)
    refused = [one for one in asked if one.outcome is Outcome.CONCURRENCY_LIMITED]
    assert len(refused) == 990
    laws.finish(fleet)
    laws.completed(*[one for one in asked if one not in refused])


@pytest.mark.parametrize("memory", [False, True])
def test_store_is_lost_and_returns(memory: bool) -> None:
    fleet = Fleet(CONFIG)
    asked = serve(fleet, 6)
    faults.lose_store(fleet, 3_000_000, memory=memory)
    asked += serve(fleet, 40)
    laws.finish(fleet)
    outcomes = [one.outcome for one in asked]
    assert outcomes.count(Outcome.COMPLETED) >= 40
    assert all(one in (Outcome.COMPLETED, Outcome.CONCURRENCY_LIMITED) for one in outcomes)
    # All permits are free again.
    fleet.run(5_000_000)
    again = [fleet.ask(20, 40, tenant=LIMITED) for _ in range(LIMIT)]
    laws.finish(fleet)
    laws.completed(*again)


def test_router_restarts_with_the_limit_used_up() -> None:
    fleet = Fleet(replace(CONFIG, routers=1))
    live = [fleet.ask(40, 400, tenant=LIMITED) for _ in range(LIMIT)]
    fleet.run_until(lambda: all(one.tokens > 3 for one in live))
    fleet.restart("router-0")
    fleet.run(1_000_000)
    extra = [fleet.ask(40, 4, tenant=LIMITED) for _ in range(3)]
    fleet.run_until(lambda: all(one.over for one in extra))
    assert not any(one.over for one in live)
    assert all(one.outcome is Outcome.CONCURRENCY_LIMITED for one in extra)
    laws.finish(fleet)
    laws.completed(*live)


def test_random_cancels_with_a_slow_store_leave_nothing_used() -> None:
    fleet = Fleet(replace(CONFIG, network=replace(CONFIG.network, delay_us=25_000, jitter_us=25_000)))
    asked = []
    for _ in range(60):
        asked.append(fleet.ask(40, 60, tenant=LIMITED))
        fleet.run(30_000)
        fleet.cancel(fleet.random.choice(asked))
    laws.finish(fleet)
    fleet.run(5_000_000)
    again = [fleet.ask(20, 20, tenant=LIMITED) for _ in range(LIMIT)]
    laws.finish(fleet)
    laws.completed(*again)
