"""Deaths, restarts, stalls and drains: bounded errors, and service comes back by itself."""

from dataclasses import replace
from functools import partial

import pytest

from core.outcomes import Outcome
from router.policy import RouterPolicy
from sim import faults, laws
from sim.config import FleetConfig, worker
from sim.fleet import DEADLINE_US, Fleet
from sim.phases import Phase, View

SMALL = worker(64, max_step_tokens=64)
NO_GROWTH = RouterPolicy(
    local_penalty=1000.0, local_cached_share=1.0, growth_tokens_default=1, growth_tokens_max=1
)
ONE_PAIR = FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_kill_and_restart_under_load_five_times(role: str) -> None:
    fleet = Fleet(FleetConfig(prefills=2, decodes=2, check_every=10))
    for index in range(60):
        fleet.ask_at(fleet.loop.now_us + 50_000 * index, lambda: fleet.ask(120, 20))
    for _ in range(5):
        fleet.run(500_000)
        fleet.restart(f"{role}-0", 150_000)
    fleet.run(600_000)
    laws.finish(fleet)
    laws.completed(*fleet.clients.asked.values())
    # The new epoch works.
    after = [fleet.ask(120, 20) for _ in range(4)]
    laws.finish(fleet)
    laws.completed(*after)


def test_burst_with_a_slow_home_expires_no_lease() -> None:
    """128 at once, a home ten times too slow: it lives, so nothing expires."""
    wide = worker(512)
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, prefill=wide, decode=wide, check_every=50))
    faults.slow_engine(fleet, "decode-0", 10, 100_000_000)
    asked = [fleet.ask(60, 6, deadline_us=10 * DEADLINE_US) for _ in range(128)]
    laws.finish(fleet, 10 * DEADLINE_US)
    laws.completed(*[one for one in asked if one.outcome is not Outcome.SHED])
    home, prefill = fleet.decode("decode-0").plain, fleet.prefill("prefill-0").plain
    assert sum(home._incoming.aborted.values()) == sum(prefill._outgoing.failed.values()) == 0
    assert sum(one.outcome is Outcome.COMPLETED for one in asked) >= 100


def test_send_fails_at_chunk_three_of_five() -> None:
    """The home is told, and computes for itself within a second."""
    fleet = Fleet(replace(ONE_PAIR, lane_latency_us=10_000))
    asked = fleet.ask(300, 8)
    view = View(fleet, asked)
    fleet.run_until(lambda: view.is_in(Phase.MIDDLE_CHUNK))
    failed_us = fleet.loop.now_us
    faults.fail_lanes(fleet)
    fleet.finish()
    assert asked.ended_us is not None and asked.ended_us - failed_us < 1_000_000
    laws.finish(fleet)
    laws.completed(asked)


def test_expiry_and_completion_at_one_moment() -> None:
    """A deadline in every place around the end: one end each time, and everything freed."""
    fleet = Fleet(ONE_PAIR)
    alone = fleet.ask(100, 4)
    fleet.finish()
    assert alone.ended_us is not None
    took_us = alone.ended_us - alone.asked_us
    seen = []
    for early_us in range(-2_000, 2_001, 250):
        fleet = Fleet(ONE_PAIR)
        asked = fleet.ask(100, 4, deadline_us=took_us + early_us)
        laws.finish(fleet)
        seen.append(asked.outcome)
    outcomes = [Outcome.COMPLETED, Outcome.DEADLINE_EXCEEDED]
    assert sorted(dict.fromkeys(map(str, seen))) == sorted(map(str, outcomes))


def test_thirty_two_for_four_slots() -> None:
    """No prefill deadline counts the home's queue."""
    fleet = Fleet(replace(ONE_PAIR, decode=worker(64, max_running=4), check_every=10))
    asked = [fleet.ask(100, 20) for _ in range(32)]
    laws.finish(fleet)
    laws.completed(*asked)


def test_two_prompts_that_jointly_exceed_the_pool() -> None:
    """Both bind, and cannot both grow: one is rolled back and computed again."""
    fleet = Fleet(replace(ONE_PAIR, router_policy=NO_GROWTH))
    asked = [fleet.ask(480, 100), fleet.ask(480, 100)]
    laws.finish(fleet)
    laws.completed(*asked)
    assert fleet.decode("decode-0").engine.preemptions > 0


@pytest.mark.parametrize("warm", ["decode", "prefill", "both"])
def test_fully_cached_prompt(warm: str) -> None:
    """Nothing to compute or nothing to send: it completes, and nothing leaks."""
    fleet = Fleet(ONE_PAIR)
    prompt = fleet.prompt(160)
    fleet.ask(prompt, 8)
    laws.finish(fleet)
    if warm == "decode":
        fleet.restart("prefill-0")
    elif warm == "prefill":
        fleet.restart("decode-0")
    fleet.run(1_000_000)
    sent = fleet.prefill("prefill-0").plain._outgoing
    delivered, bytes_before = sent.delivered, fleet.lane_speed.carried_bytes
    again = [fleet.ask(prompt, 8) for _ in range(3)]
    laws.finish(fleet)
    laws.completed(*again)
    assert sent.delivered == delivered + 3, "all are handed over"
    if warm != "prefill":
        assert fleet.lane_speed.carried_bytes == bytes_before, "nothing is sent"


def test_stalled_home_recovers_by_itself() -> None:
    """Its engine stands for 10 s: credit stops the prefill worker, and everything goes on afterwards."""
    fleet = Fleet(replace(ONE_PAIR, prefill=worker(512), decode=worker(512), check_every=10))
    asked = [fleet.ask(600, 12) for _ in range(6)]
    fleet.run_until(lambda: fleet.decode("decode-0").plain.transferring > 0)
    faults.slow_engine(fleet, "decode-0", 1_500, 10_000_000)
    fleet.run(5_000_000)
    in_flight = fleet.prefill("prefill-0").plain._outgoing.bytes_in_flight(fleet.decode("decode-0").peer)
    assert in_flight <= 6 * 4 * 64 * 16, "credit bounds what waits for the home"
    laws.finish(fleet)
    laws.completed(*asked)


def test_churn_of_many_workers() -> None:
    """20 workers that come and go, 300 requests: every one ends within its deadline."""
    tiny = worker(64, max_running=16)
    fleet = Fleet(FleetConfig(prefills=8, decodes=12, prefill=tiny, decode=tiny, gateways=2, check_every=100))
    names = [*fleet.prefills, *fleet.decodes]
    for index in range(300):
        fleet.ask_at(
            fleet.loop.now_us + 10_000 * index, partial(fleet.ask, 80, 12, gateway=fleet.gateways[index % 2])
        )
    for _ in range(30):
        fleet.run(100_000)
        fleet.restart(fleet.random.choice(names), fleet.random.randrange(50_000, 300_000))
    fleet.run(200_000)
    laws.finish(fleet, DEADLINE_US)
    assert len(fleet.clients.asked) == 300
    laws.completed(*fleet.clients.asked.values())


def test_no_decode_worker_then_two() -> None:
    """Requests wait or are told to come back; service returns with no restart of anything."""
    fleet = Fleet(FleetConfig(prefills=1, decodes=2, prefill=SMALL, decode=SMALL))
    for name in fleet.decodes:
        fleet.crash(name)
    waiting = [fleet.ask(60, 8) for _ in range(4)]
    fleet.run(2_000_000)
    for name in fleet.decodes:
        fleet.start(name)
    laws.finish(fleet)
    laws.completed(*waiting)
    after = [fleet.ask(60, 8) for _ in range(4)]
    laws.finish(fleet)
    laws.completed(*after)


def test_no_decode_worker_for_long_is_said() -> None:
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL))
    fleet.crash("decode-0")
    fleet.run(5_000_000)
    asked = fleet.ask(60, 8)
    laws.finish(fleet)
    assert asked.outcome is Outcome.NO_WORKER
    assert asked.end is not None and asked.end.retry_after_us > 0


def test_drain_between_prefill_and_transfer() -> None:
    """SIGTERM after prefill, before the transfer: it completes, then the worker exits."""
    fleet = Fleet(replace(ONE_PAIR, lane_latency_us=50_000))
    asked = fleet.ask(300, 8)
    view = View(fleet, asked)
    fleet.run_until(lambda: view.is_in(Phase.PREFILLED))
    node = fleet.prefill("prefill-0")
    node.drain(10_000_000)
    home = fleet.decode("decode-0").plain
    fleet.run_until(lambda: not node.alive)
    assert home._incoming.committed == 1, "it exits after the transfer, not before"
    laws.finish(fleet)
    laws.completed(asked)


def test_all_connections_die_at_once() -> None:
    fleet = Fleet(FleetConfig(prefills=1, decodes=2, prefill=SMALL, decode=SMALL))
    asked = [fleet.ask(100, 30) for _ in range(6)]
    fleet.run(80_000)
    for name in list(fleet.nodes):
        faults.break_all_streams(fleet, name)
    laws.finish(fleet)
    laws.completed(*asked)
    fleet.run(60_000_000)
    after = fleet.ask(100, 8)
    laws.finish(fleet)
    laws.completed(after)


def test_stopped_worker_hurts_nobody_else() -> None:
    """SIGSTOP of one of two homes: its requests move in bounded time, the others do not notice."""
    fleet = Fleet(FleetConfig(prefills=1, decodes=2, prefill=SMALL, decode=SMALL))
    asked = [fleet.ask(60, 60) for _ in range(6)]
    fleet.run_until(lambda: all(one.tokens > 2 for one in asked))
    homes = {one.request: _home(fleet, one) for one in asked}
    faults.pause(fleet, "decode-0", 20_000_000)
    fleet.run(5_000_000)
    assert all(one.over for one in asked if homes[one.request] == "decode-1")
    laws.finish(fleet)
    laws.completed(*asked)
    assert all(one.ended_us is not None and one.ended_us < 12_000_000 for one in asked)


def _home(fleet: Fleet, asked: object) -> str:
    home = View(fleet, asked).home()  # type: ignore[arg-type]
    assert home is not None
    return home[0]
