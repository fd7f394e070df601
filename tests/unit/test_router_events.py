"""The router's events one by one: same answer twice, restarts, permits, ends."""

from dataclasses import replace
from typing import Any

import pytest

from core.ends import End
from core.outcomes import Outcome
from core.recorder import recorded
from core.replay import replay
from core.request import AttemptKey, ModelIdentity, Role
from router.actions import Place, Refuse, Resync
from router.messages import (
    InstanceInfo,
    LiveRequest,
    LoadReport,
    PrefixEvents,
    Submission,
    WorkerHello,
)
from router.policy import RouterPolicy
from router.router import Action, Router

MODEL = ModelIdentity("model", "r1")
INFO = InstanceInfo(
    model=MODEL, dtype="float32", block_size=16, blocks_total=64, max_positions=512, max_running=4,
    cost_base_ns=1_000_000, cost_token_ns=100_000, cost_context_ns=0,
)  # fmt: skip


def hello(name: str, incarnation: str = "i1", role: Role = Role.DECODE) -> WorkerHello:
    return WorkerHello(name, incarnation, role, f"{name}:1", 1, (INFO,))


def ask(name: str, attempt: int = 1, **more: Any) -> Submission:
    return Submission(key=AttemptKey(name, attempt), tenant="a", model=MODEL, prompt_tokens=100, **more)


def fleet(policy: RouterPolicy | None = None, first_reservation: int = 1) -> Router:
    router = Router("r", policy or RouterPolicy(), first_reservation)
    router.leases_lost(0)
    router.gateway_up("g", "i", (), 0)
    router.worker_hello(hello("p", role=Role.PREFILL), 0)
    router.worker_hello(hello("d"), 0)
    return router


def placed(actions: list[Action]) -> Place:
    [action] = actions
    assert isinstance(action, Place), action
    return action


def refused(actions: list[Action]) -> End:
    [action] = actions
    assert isinstance(action, Refuse), action
    return action.end


def report(sequence: int = 1, **more: Any) -> LoadReport:
    return LoadReport(
        sequence=sequence, model=MODEL, blocks_free=64, blocks_cached=0, blocks_held=0, blocks_in_flight=0,
        running=0, waiting=0, transferring=0, queued_prefill_us=0, **more,
    )  # fmt: skip


def done(router: Router, name: str, attempt: int = 1, final: bool = True, at_us: int = 10) -> list[Action]:
    outcome = Outcome.COMPLETED if final else Outcome.WORKER_LOST
    return router.settle(AttemptKey(name, attempt), outcome, 100, 5, final, at_us)


def test_reservations_live_as_long_as_their_work() -> None:
    router = fleet()
    place = placed(router.submit("g", ask("q"), 1))
    held = {one.number: one.claim for one in router.reservations()}
    assert [leg.reservation for leg in place.legs] == list(held)
    assert held[1].prefill_us > 0 and held[2].prefill_us == 0
    router.first_token(place.key, 2)
    router.first_token(place.key, 3)
    assert [one.number for one in router.reservations()] == [2]
    done(router, "q")
    done(router, "q")
    assert router.reservations() == []
    router.check()


def test_a_doubled_submit_has_one_answer() -> None:
    router = fleet()
    first = placed(router.submit("g", ask("q"), 1))
    assert placed(router.submit("g", ask("q"), 2)) == first
    assert len(router.reservations()) == 2
    assert refused(router.submit("other", ask("q"), 3)).outcome is Outcome.DUPLICATE_REQUEST
    done(router, "q")
    assert refused(router.submit("g", ask("q"), 20)).outcome is Outcome.DUPLICATE_REQUEST
    long = replace(ask("long"), prompt_tokens=1000)
    end = refused(router.submit("g", long, 30))
    assert end.outcome is Outcome.PROMPT_TOO_LONG and "512" in end.message
    assert refused(router.submit("g", long, 40)) == end


def test_a_worker_says_what_ended_without_its_gateway() -> None:
    router = fleet()
    place = placed(router.submit("g", ask("q"), 1))
    router.load_report("d", "i1", report(ended=(("r", place.legs[1].reservation), ("other", 1))), 2)
    assert [one.number for one in router.reservations()] == [1]
    router.check()
    done(router, "q")
    assert router.reservations() == []


def test_10_a_worker_that_registers_again_owes_nothing_and_counts_stay_right() -> None:
    router = fleet()
    placed(router.submit("g", ask("q1"), 1))
    router.worker_down("d", "i1", 2)
    router.worker_hello(hello("d", "i2"), 3)
    assert [one.instance.worker for one in router.reservations()] == ["p"]
    placed(router.submit("g", ask("q2"), 4))
    router.worker_hello(hello("d", "i1"), 5)
    router.worker_down("d", "i1", 6)
    router.load_report("d", "i1", report(draining=True), 7)
    done(router, "q1")
    done(router, "q2")
    router.check()
    assert router.reservations() == []
    placed(router.submit("g", ask("q3"), 20))


def test_9_a_request_that_outlives_every_term_keeps_its_place() -> None:
    router = fleet()
    limit: dict[str, Any] = {"tenant_concurrency": 4}
    for number in range(4):
        placed(router.submit("g", ask(f"q{number}", **limit), 1))
    for second in range(1, 120):
        router.tick(second * 1_000_000)
        if second % 10 == 0:
            end = refused(router.submit("g", ask(f"x{second}", **limit), second * 1_000_000))
            assert end.outcome is Outcome.CONCURRENCY_LIMITED and end.retry_after_us > 0
    done(router, "q0", at_us=120_000_000)
    placed(router.submit("g", ask("q9", **limit), 120_000_001))


def test_8_a_limit_of_one_is_free_as_soon_as_its_request_is() -> None:
    router = fleet()
    limit: dict[str, Any] = {"tenant_concurrency": 1}
    placed(router.submit("g", ask("q1", **limit), 1))
    router.settle(AttemptKey("q1", 1), Outcome.CANCELLED, 100, 2, True, 2)
    placed(router.submit("g", ask("q2", **limit), 3))
    router.withdraw(AttemptKey("q2", 1), 4)
    placed(router.submit("g", ask("q3", **limit), 5))


def test_a_retry_keeps_its_permit_and_giving_up_returns_it() -> None:
    router = fleet()
    limit: dict[str, Any] = {"tenant_concurrency": 1}
    placed(router.submit("g", ask("q", **limit), 1))
    done(router, "q", final=False)
    assert refused(router.submit("g", ask("x", **limit), 11)).outcome is Outcome.CONCURRENCY_LIMITED
    placed(router.submit("g", ask("q", attempt=2, **limit), 12))
    done(router, "q", attempt=2, final=False, at_us=13)
    router.tick(13 + RouterPolicy().retry_window_us)
    placed(router.submit("g", ask("y", **limit), 20_000_000))
    router.check()


def test_a_restarted_router_rebuilds_the_same_reservations() -> None:
    before = fleet()
    places = [placed(before.submit("g", ask(f"q{number}"), 1)) for number in range(2)]
    before.first_token(places[0].key, 2)
    after = Router("r", RouterPolicy(), first_reservation=1)
    after.leases_lost(0)
    live = tuple(
        LiveRequest(ask(f"q{number}"), place.legs, number == 0) for number, place in enumerate(places)
    )
    after.gateway_up("g", "i", live, 0)
    assert after.reservations() == []
    after.worker_hello(hello("p", role=Role.PREFILL), 1)
    after.worker_hello(hello("d"), 2)
    claims = {one.number: (one.key, one.claim) for one in before.reservations()}
    assert {one.number: (one.key, one.claim) for one in after.reservations()} == claims
    fresh = placed(after.submit("g", ask("q9"), 3))
    assert not {leg.reservation for leg in fresh.legs} & set(claims)
    for name in ("q0", "q1", "q9"):
        done(after, name)
    after.check()
    assert after.reservations() == []


def test_a_new_gateway_process_owns_nothing_of_the_old_one() -> None:
    router = fleet()
    place = placed(router.submit("g", ask("q"), 1))
    router.gateway_down("g", "i", 2)
    router.gateway_up("g", "i", (LiveRequest(ask("q")),), 3)
    assert router.reservations(), "inside its grace it still owns it"
    again = router.gateway_up("g", "i", (LiveRequest(ask("q")),), 4)
    assert placed(again) == place, "the answer it may have missed"
    router.gateway_up("g", "i2", (), 5)
    assert router.reservations() == []
    assert router.gateway_up("g", "i", (LiveRequest(ask("q"), place.legs),), 6) == [], "a ghost"
    assert router.reservations() == []
    router.check()


def test_a_gateway_that_stays_away_is_settled_after_its_grace() -> None:
    router = fleet()
    placed(router.submit("g", ask("q"), 1))
    router.gateway_down("g", "i", 2)
    assert router.next_deadline_us == 2 + RouterPolicy().gateway_grace_us
    router.tick(1 + RouterPolicy().gateway_grace_us)
    assert router.reservations()
    router.tick(2 + RouterPolicy().gateway_grace_us)
    assert router.reservations() == []
    assert router.snapshot(0).in_flight == 0


def test_the_queue_has_deadlines() -> None:
    router = fleet()
    for number in range(4):
        placed(router.submit("g", ask(f"q{number}"), 1))
    assert router.submit("g", ask("soon", deadline_remaining_us=400_000), 1) == []
    assert router.submit("g", ask("patient"), 1) == []
    end = refused(router.tick(390_000))
    assert end.outcome is Outcome.SHED and end.retry_after_us > 0
    end = refused(router.tick(1 + RouterPolicy().queue_wait_max_us))
    assert end.outcome is Outcome.SHED
    router.check()


def test_a_gap_in_prefix_events_is_asked_about_once_a_second() -> None:
    router = fleet()
    gap = PrefixEvents(7, MODEL, False, bytes(8))
    assert router.prefix_events("d", "i1", gap, 1) == [Resync("d", "i1", MODEL, "gap before event 7")]
    assert router.prefix_events("d", "i1", gap, 2) == []
    assert router.prefix_events("d", "i1", gap, 1_000_001)
    assert router.prefix_events("gone", "i1", gap, 3) == []


def test_a_draining_router_admits_nothing_and_a_draining_worker_takes_nothing() -> None:
    router = fleet()
    router.load_report("d", "i1", report(draining=True), 1)
    end = refused(router.submit("g", ask("q1"), 2))
    assert end.outcome is Outcome.NO_WORKER and end.retry_after_us > 0
    router.drain(3)
    assert refused(router.submit("g", ask("q2"), 4)).outcome is Outcome.DRAINING


@pytest.mark.parametrize(
    ("more", "field"),
    [({"prompt_tokens": 0}, "prompt_tokens"), ({"choices": 0}, "choices"), ({"max_tokens": 0}, "max_tokens")],
)
def test_numbers_that_make_no_sense_name_their_field(more: dict[str, Any], field: str) -> None:
    end = refused(fleet().submit("g", replace(ask("q"), **more), 1))
    assert (end.outcome, end.field) == (Outcome.INVALID_ARGUMENT, field)


def test_a_recording_replays_to_the_same_decisions() -> None:
    frames: list[bytes] = []
    arguments = ("r", RouterPolicy(), 1, 7)
    router = recorded(Router(*arguments), "router", frames.append, arguments)
    router.leases_lost(0)
    router.gateway_up("g", "i", (), 0)
    router.worker_hello(hello("d"), 0)
    for number in range(6):
        router.submit("g", ask(f"q{number}", prefix_hashes=bytes(48)), number)
    router.load_report("d", "i1", report(acknowledged=(("r", 1),), service=(("a", 5),)), 10)
    router.prefix_events("d", "i1", PrefixEvents(0, MODEL, True, bytes(8)), 11)
    router.settle(AttemptKey("q0", 1), Outcome.COMPLETED, 100, 3, True, 12)
    router.tick(router.next_deadline_us or 0)
    replayed = replay(b"".join(frames), {"router.router.Router": Router})
    assert replayed.events == 13 and replayed.mismatches == ()
    doctored = replay(b"".join(frames[:6] + frames[7:]), {"router.router.Router": Router})
    assert doctored.mismatches


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"fallback": "maybe"}, "fallback"),
        ({"queue_length_max": 0}, "queue_length_max"),
        ({"gateway_grace_us": -1}, "gateway_grace_us"),
        ({"batch_share": 0.6, "standard_share": 0.5}, "batch_share"),
    ],
)
def test_a_policy_is_checked(more: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        RouterPolicy(**more)
