"""Cancels in every phase, orphaned transfers and reused blocks: what is held is given back."""

from core.outcomes import Outcome
from kv_transfer.types import Peer
from prefill_worker.config import PrefillConfig
from sim import faults, laws
from sim.config import FleetConfig, worker
from sim.fleet import Fleet, tenant
from sim.phases import Phase, View

SMALL = worker(64, max_step_tokens=64)
ONE_PAIR = FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL)


def all_free(fleet: Fleet) -> bool:
    counts = [node.engine.counts() for node in fleet.workers()]
    return all(count.free + count.cached == count.total for count in counts)


def test_mass_cancel_in_mid_transfer_leaves_all_blocks_free() -> None:
    """Slow lane, 60 requests, all cancelled in mid-transfer, three rounds, then one that must succeed."""
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, lane_latency_us=200_000, check_every=20))
    for _ in range(3):
        asked = [fleet.ask(200, 8) for _ in range(60)]
        fleet.run_until(lambda: fleet.decode("decode-0").plain.transferring > 0)
        fleet.run(30_000)
        for one in asked:
            fleet.cancel(one)
        fleet.run(1_000_000)
        assert all_free(fleet)
    after = fleet.ask(200, 8)
    laws.finish(fleet)
    laws.completed(after)


def test_cancelled_long_prefill_stops_within_a_chunk() -> None:
    """Of a 60-chunk prompt two chunks are computed; a short request then waits for about one chunk."""
    wide = worker(512, max_step_tokens=64)
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, prefill=wide, decode=wide))
    long = fleet.ask(3_800, 8)
    view = View(fleet, long)
    fleet.run_until(lambda: view.computed() >= 128)
    fleet.cancel(long)
    short = fleet.ask(32, 4)
    fleet.run_until(lambda: short.first_token_us is not None)
    assert short.first_token_us is not None
    # A chunk takes 11.5 ms; the short prompt's own step 8 ms.
    assert short.first_token_us - short.asked_us < 11_500 + 8_200 + 11_500
    laws.finish(fleet)


def test_cancel_between_prefill_and_decode_frees_at_once() -> None:
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(200, 8)
    view = View(fleet, asked)
    fleet.run_until(lambda: view.is_in(Phase.PREFILLED))
    fleet.cancel(asked)
    fleet.run(100_000)
    assert all_free(fleet)


def test_blocks_of_an_aborted_transfer_serve_another_safely() -> None:
    """A is cancelled while its KV is still being written; B starts at once and is exact."""
    fleet = Fleet(ONE_PAIR)
    faults.slow_engine(fleet, "decode-0", 30, 10_000_000)
    first = fleet.ask(600, 4)
    fleet.run_until(lambda: fleet.decode("decode-0").staged_chunks > 0)
    fleet.cancel(first)
    second = fleet.ask(900, 12)
    laws.finish(fleet)
    laws.completed(second)


def test_cancel_with_a_send_and_a_receive_pending() -> None:
    """At every moment of a transfer: freed once, no exception."""
    for delay_us in range(0, 60_000, 1_500):
        fleet = Fleet(ONE_PAIR)
        asked = fleet.ask(300, 4)
        plain = fleet.prefill("prefill-0").plain
        fleet.run_until(lambda plain=plain: plain.transferring > 0)  # type: ignore[misc]
        fleet.run(delay_us)
        fleet.cancel(asked)
        fleet.run(1_000_000)
        assert all_free(fleet), f"cancelled after {delay_us} us"


def test_sweeper_needs_no_new_work() -> None:
    """The prefill pool is full of transfers whose home fell silent; nothing new comes, and all are freed."""
    lease = PrefillConfig(lease_us=3_000_000)
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, prefill=SMALL, decode=SMALL, prefill_config=lease))
    faults.slow_lanes(fleet, 60_000_000, 50_000_000)
    for _ in range(4):
        fleet.ask(240, 8)
    prefill = fleet.prefill("prefill-0")
    fleet.run_until(lambda: prefill.plain.transferring > 0)
    fleet.run(200_000)
    faults.cut(fleet, "prefill-0", "decode-0", 60_000_000)
    fleet.run(9_000_000)
    assert prefill.plain.live == 0
    counts = prefill.engine.counts()
    assert counts.free + counts.cached == counts.total
    laws.finish(fleet)
    laws.completed(*fleet.clients.asked.values())


def test_one_of_64_in_transfer_is_cancelled() -> None:
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, lane_latency_us=20_000, check_every=10))
    asked = [fleet.ask(100, 6) for _ in range(64)]
    fleet.run_until(lambda: fleet.decode("decode-0").plain.transferring > 0)
    fleet.cancel(asked[0])
    fleet.gateway().cancel(asked[0].request)
    fleet.gateway().cancel("never-asked")
    laws.finish(fleet)
    assert asked[0].outcome is Outcome.CANCELLED
    laws.completed(*asked[1:])


def test_dropped_stream_gives_its_tenants_permit_back() -> None:
    fleet = Fleet(ONE_PAIR)
    single = tenant("single", concurrency=1)
    first = fleet.ask(50, 200, tenant=single)
    fleet.run_until(lambda: first.tokens >= 2)
    refused = fleet.ask(50, 2, tenant=single)
    fleet.run_until(lambda: refused.over)
    assert refused.outcome is Outcome.CONCURRENCY_LIMITED
    fleet.cancel(first)
    fleet.run(50_000)
    again = fleet.ask(50, 2, tenant=single)
    laws.finish(fleet)
    laws.completed(again)


def test_requests_that_outlive_every_grace_are_never_five() -> None:
    """Limit 4, streams that run for 30 s: no time-out inside gives a fifth permit out."""
    fleet = Fleet(FleetConfig(prefills=1, decodes=1, check_every=50))
    four = tenant("four", concurrency=4)
    faults.slow_engine(fleet, "decode-0", 20, 20_000_000)
    live = [fleet.ask(50, 200, tenant=four) for _ in range(4)]
    fleet.run(1_000_000)
    for _ in range(8):
        extra = fleet.ask(50, 2, tenant=four)
        fleet.run(2_000_000)
        assert extra.outcome is Outcome.CONCURRENCY_LIMITED
        assert not any(one.over for one in live)
    laws.finish(fleet)
    laws.completed(*live)


def test_worker_registers_again_under_its_name() -> None:
    """Its stream to the router breaks under load and comes back: counts never go below zero."""
    fleet = Fleet(ONE_PAIR)
    asked = [fleet.ask(60, 40) for _ in range(6)]
    fleet.run(60_000)
    for _ in range(3):
        faults.break_streams(fleet, "decode-0", "router-0")
        faults.break_streams(fleet, "prefill-0", "router-0")
        fleet.run(120_000)
    laws.finish(fleet)
    laws.completed(*asked)


def test_a_home_that_restarts_is_another_peer() -> None:
    """Its old transfers are orphans at the prefill worker, which frees them at once."""
    fleet = Fleet(ONE_PAIR)
    asked = fleet.ask(300, 8)
    view = View(fleet, asked)
    fleet.run_until(lambda: view.is_in(Phase.MIDDLE_CHUNK))
    fleet.restart("decode-0")
    fleet.run(50_000)
    assert fleet.prefill("prefill-0").plain.live == 0
    assert Peer("decode-0", "decode-0.0") not in fleet.prefill("prefill-0")._homes
    laws.finish(fleet)
    laws.completed(asked)
