"""Who goes next, who yields, and what is charged."""

from typing import Any

import pytest

from core.request import AttemptKey, TenantClass
from router.fair_queue import FairQueue
from router.policy import RouterPolicy
from router.tenant_queue import Waiting

B, S, I = TenantClass.BATCH, TenantClass.STANDARD, TenantClass.INTERACTIVE  # noqa: E741


def waiting(
    name: str, tenant: str, cost_us: int = 10_000, tenant_class: TenantClass = S, weight: float = 1.0,
    short: bool = True, arrived_us: int = 0,
) -> Waiting:  # fmt: skip
    return Waiting(AttemptKey(name, 1), tenant, tenant_class, weight, cost_us, short, arrived_us)


def fill(queue: FairQueue, tenant: str, count: int, **more: Any) -> None:
    for number in range(count):
        assert queue.push(waiting(f"{tenant}{number}", tenant, arrived_us=number, **more)) is None


def order(queue: FairQueue, count: int) -> list[str]:
    taken = []
    for _ in range(count):
        head = queue.pick()
        assert head is not None
        taken.append(queue.take(head.key).tenant)
        queue.check()
    return taken


def test_equal_tenants_alternate_and_weights_count() -> None:
    queue = FairQueue(RouterPolicy())
    fill(queue, "a", 20, weight=3.0)
    fill(queue, "b", 20)
    taken = order(queue, 16)
    assert taken.count("a") == 12


def test_cost_is_the_currency() -> None:
    queue = FairQueue(RouterPolicy())
    fill(queue, "large", 20, cost_us=100_000)
    fill(queue, "small", 20, cost_us=10_000)
    taken = order(queue, 22)
    assert taken.count("large") == 2


def test_idleness_is_not_saved_up() -> None:
    queue = FairQueue(RouterPolicy())
    fill(queue, "a", 60)
    order(queue, 30)
    fill(queue, "late", 20)
    taken = order(queue, 20)
    assert 9 <= taken.count("late") <= 11


def test_reports_replace_the_charge_and_the_end_takes_back_the_rest() -> None:
    queue = FairQueue(RouterPolicy())
    fill(queue, "a", 1, cost_us=100_000)
    order(queue, 1)
    assert queue.service_us("a") == 100_000
    queue.served("a", 60_000)
    assert queue.service_us("a") == 100_000, "reported is no longer unreported, and not counted twice"
    queue.served("a", 90_000)
    assert queue.service_us("a") == 150_000, "it cost more than was thought"
    queue.settled("a", 100_000)
    assert queue.service_us("a") == 150_000
    fill(queue, "b", 1, cost_us=100_000)
    order(queue, 1)
    queue.served("b", 10_000)
    queue.settled("b", 100_000)
    assert queue.service_us("b") - 0.0 <= 10_000 + 100_000
    queue.check()


def test_urgent_classes_first_and_a_minimum_share_for_the_others() -> None:
    queue = FairQueue(RouterPolicy(batch_share=0.1, standard_share=0.2))
    fill(queue, "batch", 40, tenant_class=B)
    fill(queue, "standard", 40, tenant_class=S)
    fill(queue, "interactive", 80, tenant_class=I)
    taken = order(queue, 60)
    assert taken[0] == "interactive"
    assert 4 <= taken.count("batch") <= 8 and 9 <= taken.count("standard") <= 15


def test_short_ones_do_not_wait_for_their_tenants_long_ones() -> None:
    queue = FairQueue(RouterPolicy())
    for number in range(4):
        queue.push(waiting(f"long{number}", "a", cost_us=1_000_000, short=False))
    for number in range(50):
        queue.push(waiting(f"short{number}", "a", cost_us=10_000))
    taken = []
    for _ in range(20):
        head = queue.pick()
        assert head is not None
        taken.append(queue.take(head.key).short)
    assert taken.count(False) <= 2
    head = queue.pick(longs=False)
    assert head is not None and head.short


def test_a_full_queue_yields_to_the_more_urgent_and_to_who_has_less() -> None:
    queue = FairQueue(RouterPolicy(queue_length_max=4))
    fill(queue, "a", 4)
    own = waiting("a9", "a")
    assert queue.push(own) is own
    leaver = queue.push(waiting("b0", "b"))
    assert leaver is not None and leaver.key.request == "a3", "the newest of the longest queue"
    bulk = waiting("c0", "c", tenant_class=B)
    assert queue.push(bulk) is bulk
    leaver = queue.push(waiting("u0", "u", tenant_class=I))
    assert leaver is not None and leaver.tenant == "a"
    assert len(queue) == 4
    queue.check()


def test_leaving_is_idempotent() -> None:
    queue = FairQueue(RouterPolicy())
    fill(queue, "a", 2)
    assert queue.remove(AttemptKey("a0", 1)) and not queue.remove(AttemptKey("a0", 1))
    assert queue.pick(skip=(AttemptKey("a1", 1),)) is None
    queue.check()


def test_47_a_hundred_thousand_tenants_are_bounded() -> None:
    queue = FairQueue(RouterPolicy(tenants_max=100))
    for number in range(100_000):
        entry = waiting(f"q{number}", f"t{number}")
        queue.push(entry)
        queue.take(entry.key)
        queue.settled(entry.tenant, entry.cost_us)
    assert queue.tenants <= 100
    queue.check()


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e9])
def test_weights_are_kept_in_bounds(weight: float) -> None:
    queue = FairQueue(RouterPolicy())
    fill(queue, "odd", 200, weight=weight)
    fill(queue, "even", 200)
    taken = order(queue, 202)
    assert taken.count("even") >= 2
