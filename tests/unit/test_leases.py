"""What one router gives out of its tenants' limits, case by case."""

from typing import Any

import pytest

from capacity.leases import Held, LeaseBook, Limits, Refused, Wanted, slack
from capacity.quantities import Answer, GiveBack, LeaseConfig, QuantityKind
from core.outcomes import Outcome

CONFIG = LeaseConfig()
TEN = Limits(concurrency=10)
SECOND_US = 1_000_000


class Router:
    """A LeaseBook and a clock."""

    def __init__(self, routers: int = 1) -> None:
        self.book = LeaseBook(CONFIG, routers)
        self.now_us = SECOND_US
        self.requests = 0

    def acquire(self, limits: Limits = TEN, tokens: int = 1, request: str = "") -> Any:
        self.requests += 1
        answer = self.book.acquire("t", request or f"r{self.requests}", limits, tokens, self.now_us)
        self.book.check()
        return answer

    def lease(self, granted: int, free: int = 0, limits: Limits = TEN) -> None:
        (ask,) = self.acquire(limits, request="first").asks
        self.book.answered(ask, Answer(granted, free), self.now_us)

    def returns(self) -> Any:
        return self.book.store_returned(self.now_us)

    def tick(self, after_us: int) -> Any:
        self.now_us += after_us
        return self.book.tick(self.now_us)


def test_without_limits_nothing_is_asked_and_release_is_idempotent() -> None:
    router = Router()
    assert router.acquire(Limits(), request="a") == Held("t", "a")
    assert router.book.release("a", 5, 2) and not router.book.release("a", 5, 3)
    assert router.book.next_deadline_us is None


def test_the_first_request_asks_once_and_a_lease_is_counted_down_here() -> None:
    router = Router()
    (ask,) = router.acquire().asks
    assert (ask.quantity.kind, ask.want, ask.claim, ask.limit) == (QuantityKind.CONCURRENCY, 2, 0, 10)
    assert router.acquire() == Wanted(())
    router.book.answered(ask, Answer(granted=2, free=8), router.now_us)
    assert router.acquire(request="a") == Held("t", "a") == router.acquire(request="a")
    assert router.acquire(request="b") == Held("t", "b")
    (more,) = router.acquire().asks
    assert more.want == 4 and more.claim == 2 and more.number > ask.number
    assert router.book.in_use("t") == 2


def test_what_others_hold_is_refused_and_asked_for_again_later() -> None:
    router = Router()
    router.lease(granted=1, free=0)
    assert router.acquire(request="a") == Held("t", "a")
    assert router.acquire() == Refused(Outcome.CONCURRENCY_LIMITED, CONFIG.renew_us)
    router.now_us += CONFIG.retry_us
    (ask,) = router.acquire().asks
    assert ask.want == 2


def test_the_limit_itself_is_refused_without_asking() -> None:
    router = Router()
    router.lease(granted=10, free=0)
    assert all(isinstance(router.acquire(), Held) for _ in range(10))
    router.now_us += CONFIG.retry_us
    assert isinstance(router.acquire(), Refused)


def test_what_is_given_back_is_gone_before_the_question_leaves() -> None:
    router = Router()
    router.lease(granted=10, free=0)
    assert router.acquire(request="a") == Held("t", "a")
    (ask,) = router.tick(CONFIG.renew_us)
    assert (ask.want, ask.claim) == (1, 1)
    assert isinstance(router.acquire(), Wanted) and router.book.in_use("t") == 1


def test_an_answer_to_an_older_question_changes_nothing() -> None:
    router = Router()
    (old,) = router.acquire().asks
    router.book.store_lost(router.now_us)
    (new,) = router.returns()
    router.book.answered(old, Answer(granted=10, free=0), router.now_us)
    assert router.book.held("t") == 0
    router.book.answered(new, Answer(granted=2, free=0), router.now_us)
    assert router.book.held("t") == 2


def test_past_its_term_a_lease_counts_only_while_the_store_is_lost() -> None:
    router = Router()
    router.lease(granted=10, free=0)
    router.now_us += CONFIG.term_us
    cut_off = Router()
    cut_off.lease(granted=10, free=0)
    cut_off.now_us += CONFIG.term_us
    assert isinstance(cut_off.acquire(), Wanted)
    router.book.store_lost(router.now_us)
    assert all(isinstance(router.acquire(), Held) for _ in range(10))
    assert isinstance(router.acquire(), Refused)


@pytest.mark.parametrize(("limit", "share"), [(100, 25), (10, 2), (3, 1)])
def test_without_store_and_lease_a_router_takes_its_share(limit: int, share: int) -> None:
    router = Router(routers=4)
    router.book.store_lost(router.now_us)
    answers = [router.acquire(Limits(limit)) for _ in range(limit)]
    assert [isinstance(answer, Held) for answer in answers] == [True] * share + [False] * (limit - share)
    assert slack(limit, 4) == 4 * share


def test_a_returned_store_is_told_what_is_in_use_before_anything_is_added() -> None:
    router = Router(routers=2)
    router.lease(granted=6, free=4)
    for number in range(5):
        router.acquire(request=f"a{number}")
    router.book.store_lost(router.now_us)
    assert router.tick(60 * SECOND_US) == [] and router.book.next_deadline_us is None
    (claim,) = router.returns()
    assert claim.claim == 6
    assert router.acquire() == Wanted(())
    router.book.answered(claim, Answer(granted=4, free=0, quarantined=True), router.now_us)
    # Fewer than run: nothing is admitted until enough of them have ended.
    assert isinstance(router.acquire(), Refused)
    router.book.release("a0", 1, router.now_us)
    router.book.release("a1", 1, router.now_us)
    assert isinstance(router.acquire(), Held)


def test_an_idle_tenant_returns_its_lease_and_is_forgotten() -> None:
    router = Router()
    router.lease(granted=2, free=8)
    router.acquire(request="a")
    router.book.release("a", 1, router.now_us)
    (ask,) = router.tick(CONFIG.idle_us)
    assert ask.want == 0
    router.book.answered(ask, Answer(granted=0, free=10), router.now_us)
    assert router.tick(1) == [] and router.book.next_deadline_us is None


def test_tokens_are_charged_by_estimate_and_settled_by_use() -> None:
    router, limits = Router(), Limits(tokens_per_minute=600)
    (ask,) = router.acquire(limits, tokens=100).asks
    assert ask.want == 100 + 20
    router.book.answered(ask, Answer(granted=120, free=480), router.now_us)
    assert router.acquire(limits, tokens=100, request="a") == Held("t", "a")
    assert router.book.balance("t") == 20
    router.book.release("a", 30, router.now_us)
    assert router.book.balance("t") == 90
    router.acquire(limits, tokens=50, request="b")
    router.book.release("b", 200, router.now_us)
    assert router.book.balance("t") == -110


def test_a_spent_rate_says_when_enough_will_have_flowed() -> None:
    router, limits = Router(), Limits(tokens_per_minute=600)
    (ask,) = router.acquire(limits, tokens=600).asks
    router.book.answered(ask, Answer(granted=200, free=0), router.now_us)
    # 400 missing at 10 a second.
    assert router.acquire(limits, tokens=600) == Refused(Outcome.RATE_LIMITED, 40 * SECOND_US)
    router.now_us += 40 * SECOND_US
    (again,) = router.acquire(limits, tokens=600).asks
    assert again.want == 400


def test_unspent_tokens_go_back() -> None:
    router, limits = Router(), Limits(tokens_per_minute=600)
    (ask,) = router.acquire(limits, tokens=10).asks
    router.book.answered(ask, Answer(granted=30, free=500), router.now_us)
    (back,) = router.tick(2 * CONFIG.renew_us)
    assert isinstance(back, GiveBack) and back.tokens == 30 and router.book.balance("t") == 0
    assert router.tick(60 * SECOND_US) == [] and router.book.next_deadline_us is None


def test_a_refusal_takes_nothing_of_any_limit() -> None:
    router, limits = Router(), Limits(concurrency=10, tokens_per_minute=100)
    permits, tokens = router.acquire(limits, tokens=100).asks
    router.book.answered(permits, Answer(granted=5, free=5), router.now_us)
    router.book.answered(tokens, Answer(granted=0, free=0), router.now_us)
    assert isinstance(router.acquire(limits, tokens=100), Refused)
    assert router.book.in_use("t") == 0 and router.book.balance("t") == 0


def test_without_store_a_rate_flows_on_at_what_was_handed_here_lately() -> None:
    router, limits = Router(routers=4), Limits(tokens_per_minute=600)
    (ask,) = router.acquire(limits, tokens=280).asks
    router.book.answered(ask, Answer(granted=300, free=0), router.now_us)
    assert isinstance(router.acquire(limits, tokens=300), Held)
    router.book.store_lost(router.now_us)
    # 300 of the last minute were ours, 5 a second; a router without any has its share, 150.
    assert router.acquire(limits, tokens=5) == Refused(Outcome.RATE_LIMITED, SECOND_US + 1)
    router.now_us += SECOND_US
    assert isinstance(router.acquire(limits, tokens=5), Held)
    assert isinstance(router.acquire(limits, tokens=5), Refused)


def test_config_is_checked() -> None:
    with pytest.raises(ValueError, match="renew_us"):
        LeaseConfig(term_us=1_000_000, renew_us=900_000)
    with pytest.raises(ValueError, match="retry_us"):
        LeaseConfig(retry_us=0)
