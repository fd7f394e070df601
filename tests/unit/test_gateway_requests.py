"""Single decisions of the gateway, one example each."""

from typing import Any, TypeVar

import pytest

from core.ends import End
from core.outcomes import FinishReason, Outcome
from core.recorder import class_path, recorded
from core.replay import replay
from core.request import AttemptKey, InstanceKey, Leg, ModelIdentity, Role
from core.sampling import SamplingParams
from services.gateway.actions import (
    Action,
    CancelAttempt,
    Connect,
    Deliver,
    Ended,
    FirstTokenSeen,
    Settle,
    Start,
    Submit,
    Withdraw,
)
from services.gateway.gateway import Gateway, GatewayPolicy
from services.gateway.requests import AttemptEnd, NewRequest, Placement, Run, Tenant
from services.gateway.retry_budget import RetryBudget, RetryBudgetConfig

MODEL = ModelIdentity("m", "r1")
SECOND = 1_000_000
Kind = TypeVar("Kind")


def spec(request: str = "r", **fields: Any) -> NewRequest:
    known = {
        "request": request,
        "tenant": Tenant("t"),
        "model": MODEL,
        "prompt": (1, 2, 3),
        "params": SamplingParams(max_tokens=8),
        "seed": 9,
        "hash_root": b"12345678",
        "deadline_us": 60 * SECOND,
    }
    return NewRequest(**{**known, **fields})


def placement(worker: str = "w0", incarnation: str = "1") -> Placement:
    instance = InstanceKey(worker, incarnation, MODEL)
    return Placement((Leg(Role.DECODE, instance, f"{worker}:1", 7, "float32"),), "prefer")


def only(actions: list[Action], kind: type[Kind]) -> Kind:
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def started(policy: GatewayPolicy | None = None, **fields: Any) -> Gateway:
    """A gateway whose request "r" runs on w0 as attempt 1."""
    gateway = Gateway(policy or GatewayPolicy())
    gateway.router_up("router", 0)
    gateway.open(spec(**fields), 0)
    only(gateway.placed("router", AttemptKey("r", 1), placement(), 0), Connect)
    only(gateway.decode_up("w0", "1", (), 0), Start)
    return gateway


def run(first: int, *tokens: int, attempt: int = 1, finish: FinishReason | None = None) -> Run:
    return Run("r", attempt, 0, first, tokens, (), finish, 2)


def test_the_way_of_a_request() -> None:
    gateway = Gateway(GatewayPolicy())
    gateway.router_up("router", 0)
    submit = only(gateway.open(spec(), 0), Submit)
    assert (submit.key, submit.prompt_tokens, submit.output_tokens) == (AttemptKey("r", 1), 3, 0)
    assert gateway.placed("router", submit.key, placement(), 1) == [Connect("w0", "w0:1")]
    start = only(gateway.decode_up("w0", "1", (), 2), Start)
    assert (start.prompt, start.seed, start.router) == ((1, 2, 3), 9, "router")
    first = gateway.frame("w0", (run(0, 5),), (), 3)
    assert first == [FirstTokenSeen("router", submit.key), Deliver("r", 0, 0, (5,), (), None)]
    last = gateway.frame("w0", (run(1, 6, finish=FinishReason.STOP),), (), 4)
    assert only(last, Settle) == Settle("router", submit.key, Outcome.COMPLETED, 3, 2, True)
    assert only(last, Ended) == Ended("r", End(Outcome.COMPLETED), 3, 2, 2)
    assert not [action for action in last if isinstance(action, CancelAttempt)], "it is done by itself"
    assert gateway.frame("w0", (), (AttemptEnd("r", 1, End(Outcome.COMPLETED)),), 5) == []
    gateway.check()


def test_a_retry_continues_the_output_with_the_same_seed_and_weights() -> None:
    gateway = started()
    gateway.frame("w0", (run(0, 5, 6),), (), 1)
    lost = gateway.frame("w0", (), (AttemptEnd("r", 1, End(Outcome.TRANSFER_FAILED)),), 2)
    submit = only(lost, Submit)
    assert (submit.key.attempt, submit.output_tokens, submit.avoid_workers) == (2, 2, ("w0",))
    assert (submit.model, submit.dtype) == (MODEL, "float32")
    assert not only(lost, Settle).final
    gateway.placed("router", submit.key, placement("w1"), 3)
    start = only(gateway.decode_up("w1", "1", (), 4), Start)
    assert start.choices[0].output == (5, 6) and start.prompt == (1, 2, 3) and start.seed == 9
    assert gateway.frame("w0", (run(2, 7),), (), 5) == [], "the old attempt is not heard"
    over = gateway.frame("w1", (run(2, 8, attempt=2, finish=FinishReason.LENGTH),), (), 6)
    assert only(over, Deliver).first_index == 2
    assert only(over, Ended).cached_tokens == 2 and only(over, Ended).output_tokens == 3


def test_moved_is_outside_the_budget() -> None:
    policy = GatewayPolicy(retry_budget=RetryBudgetConfig(per_request=0, per_second=0, burst=0))
    gateway = started(policy)
    moved = gateway.frame("w0", (), (AttemptEnd("r", 1, End(Outcome.MOVED)),), 1)
    assert only(moved, Submit).key.attempt == 2
    gateway = started(policy)
    lost = gateway.frame("w0", (), (AttemptEnd("r", 1, End(Outcome.WORKER_LOST)),), 1)
    assert only(lost, Ended).end.outcome is Outcome.WORKER_LOST
    assert only(lost, Settle).final


def test_a_broken_stream_waits_and_then_the_attempt_is_lost() -> None:
    gateway = started()
    gateway.frame("w0", (run(0, 5),), (), 1)
    assert gateway.decode_down("w0", 10) == []
    assert gateway.next_deadline_us == 10 + 2 * SECOND
    assert gateway.tick(9 + 2 * SECOND) == []
    assert gateway.resume_list("w0")[0].next_index == (1,)
    lost = gateway.tick(10 + 2 * SECOND)
    assert only(lost, Submit).key.attempt == 2 and not [a for a in lost if isinstance(a, CancelAttempt)]


def test_a_cancel_decided_while_the_stream_was_down_is_sent_when_it_is_back() -> None:
    gateway = started()
    gateway.decode_down("w0", 10)
    over = gateway.cancel("r", Outcome.CANCELLED, "", 20)
    assert only(over, Ended) and not [a for a in over if isinstance(a, CancelAttempt)]
    assert gateway.decode_up("w0", "1", (), 30) == [
        CancelAttempt("w0", AttemptKey("r", 1), Outcome.CANCELLED)
    ]
    gateway.check()


def test_a_restarted_worker_has_lost_its_attempts() -> None:
    gateway = started()
    gateway.decode_down("w0", 10)
    assert only(gateway.decode_up("w0", "2", (), 20), Submit).key.attempt == 2


@pytest.mark.parametrize("phase", ["waiting", "submitted", "placed", "started"])
def test_cancel_in_every_phase(phase: str) -> None:
    gateway = Gateway(GatewayPolicy())
    if phase != "waiting":
        gateway.router_up("router", 0)
    gateway.open(spec(), 0)
    if phase in ("placed", "started"):
        gateway.placed("router", AttemptKey("r", 1), placement(), 0)
    if phase == "started":
        gateway.decode_up("w0", "1", (), 0)
    over = gateway.cancel("r", Outcome.CANCELLED, "", 1)
    kinds = [type(action) for action in over]
    assert (
        kinds
        == {
            "waiting": [Ended],
            "submitted": [Withdraw, Ended],
            "placed": [Settle, Ended],
            "started": [CancelAttempt, Settle, Ended],
        }[phase]
    )
    assert gateway.cancel("r", Outcome.CANCELLED, "", 2) == [], "idempotent"
    gateway.check()


def test_a_placement_that_crosses_a_withdrawal_is_given_back() -> None:
    gateway = Gateway(GatewayPolicy())
    gateway.router_up("router", 0)
    gateway.open(spec(), 0)
    gateway.cancel("r", Outcome.CANCELLED, "", 1)
    assert only(gateway.placed("router", AttemptKey("r", 1), placement(), 2), Settle).final


def test_a_stop_string_truncates_and_cancels() -> None:
    gateway = started(stop_strings=True)
    gateway.frame("w0", (run(0, 5, 6, 7),), (), 1)
    over = gateway.choice_ended("r", 0, 2, FinishReason.STOP, 2)
    assert only(over, Ended).output_tokens == 2 and only(over, Settle).output_tokens == 2
    assert only(over, CancelAttempt).outcome is Outcome.COMPLETED


def test_the_end_waits_for_the_text_side_where_there_are_stop_strings() -> None:
    gateway = started(stop_strings=True)
    end = AttemptEnd("r", 1, End(Outcome.COMPLETED))
    actions = gateway.frame("w0", (run(0, 5, 6, finish=FinishReason.LENGTH),), (end,), 1)
    assert not [action for action in actions if isinstance(action, Ended)]
    over = gateway.choice_ended("r", 0, 2, FinishReason.LENGTH, 1)
    assert only(over, Ended).end.outcome is Outcome.COMPLETED
    assert not [action for action in over if isinstance(action, CancelAttempt)]


def test_a_gap_ends_the_attempt() -> None:
    gateway = started()
    lost = gateway.frame("w0", (run(1, 5),), (), 1)
    assert only(lost, CancelAttempt).key.attempt == 1 and only(lost, Submit).key.attempt == 2


def test_the_deadline_ends_it() -> None:
    gateway = started(deadline_us=5 * SECOND)
    over = gateway.tick(5 * SECOND)
    assert only(over, Ended).end.outcome is Outcome.DEADLINE_EXCEEDED
    assert only(over, CancelAttempt).outcome is Outcome.DEADLINE_EXCEEDED


def test_without_a_worker_it_waits_for_a_bounded_time() -> None:
    gateway = Gateway(GatewayPolicy(no_worker_wait_us=SECOND))
    gateway.router_up("router", 0)
    gateway.open(spec(), 0)
    now_us, attempts, over = 0, 0, None
    while over is None:
        attempts += 1
        refusal = End(Outcome.NO_WORKER, "", "", 3 * SECOND)
        actions = gateway.refused("router", AttemptKey("r", attempts), refusal, now_us)
        over = next((action for action in actions if isinstance(action, Ended)), None)
        if over is None:
            assert gateway.next_deadline_us is not None
            now_us = gateway.next_deadline_us
            only(gateway.tick(now_us), Submit)
    assert now_us == SECOND and 5 <= attempts <= 8
    assert over.end == End(Outcome.NO_WORKER, "", "", 3 * SECOND)


def test_a_refusal_ends_it_and_is_not_withdrawn() -> None:
    gateway = Gateway(GatewayPolicy())
    gateway.router_up("router", 0)
    gateway.open(spec(), 0)
    end = End(Outcome.QUEUE_FULL, "full", "", 7)
    assert gateway.refused("router", AttemptKey("r", 1), end, 1) == [Ended("r", end, 3, 0, 0)]
    gateway.check()


def test_a_router_that_has_met_no_worker_yet_is_asked_again() -> None:
    gateway = Gateway(GatewayPolicy())
    gateway.router_up("router", 0)
    gateway.open(spec(), 0)
    assert gateway.refused("router", AttemptKey("r", 1), End(Outcome.MODEL_NOT_FOUND), 1) == []
    assert gateway.next_deadline_us is not None
    only(gateway.tick(gateway.next_deadline_us), Submit)


def test_a_lost_router_hands_over_what_it_had_not_placed() -> None:
    gateway = Gateway(GatewayPolicy())
    for router in ("router-a", "router-b"):
        gateway.router_up(router, 0)
    first = only(gateway.open(spec(), 0), Submit)
    second = only(gateway.router_down(first.router, 1), Submit)
    assert second.router != first.router and second.key.attempt == 2


def test_a_router_that_comes_back_is_told_and_asked_again() -> None:
    gateway = started()
    gateway.open(spec("other"), 1)
    (live,) = gateway.live_attempts("router")
    assert live.submit.key == AttemptKey("r", 1) and live.legs == placement().legs
    again = only(gateway.router_up("router", 2), Submit)
    assert again.key == AttemptKey("other", 1), "idempotent by attempt"


def test_the_retry_budget() -> None:
    budget = RetryBudget(RetryBudgetConfig(per_request=0.5, per_second=1.0, burst=2.0))
    assert [budget.take(0) for _ in range(3)] == [True, True, False]
    budget.earn(0)
    budget.earn(0)
    assert budget.take(0) and not budget.take(0)
    assert budget.take(SECOND) and not budget.take(SECOND)
    assert [budget.take(100 * SECOND) for _ in range(3)] == [True, True, False], "bounded by the burst"


def test_a_recorded_life_replays() -> None:
    frames: list[bytes] = []
    policy = GatewayPolicy(splits=2)
    gateway = recorded(Gateway(policy), "gateway", frames.append, (policy,))
    gateway.router_up("router", 0)
    gateway.open(spec(), 0)
    gateway.placed("router", AttemptKey("r", 1), placement(), 1)
    gateway.decode_up("w0", "1", (), 2)
    gateway.frame("w0", (run(0, 5),), (), 3)
    gateway.decode_down("w0", 4)
    gateway.tick(3 * SECOND)
    gateway.refused("router", AttemptKey("r", 2), End(Outcome.NO_WORKER), 3 * SECOND)
    gateway.cancel("r", Outcome.CANCELLED, "", 4 * SECOND)
    found = replay(b"".join(frames), {class_path(Gateway): Gateway})
    assert found.events == 9 and found.mismatches == ()
