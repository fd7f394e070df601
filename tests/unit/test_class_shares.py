"""Which class and which tenant is owed compute, in numbers."""

import pytest

from core.request import TenantClass
from engine.class_shares import CREDIT_MAX_US, MINIMUM_PARTS, ClassShares
from engine.tenant_turns import TenantTurns

BATCH, STANDARD = TenantClass.BATCH, TenantClass.STANDARD
STEP_NS = 20_000_000


def test_a_class_that_waits_is_owed_its_part_of_every_step() -> None:
    shares = ClassShares()
    for _ in range(MINIMUM_PARTS[BATCH]):
        assert shares.rank(BATCH, 20_000) is BATCH
        shares.end_step([BATCH], STEP_NS)
    assert shares.rank(BATCH, 20_000) is TenantClass.INTERACTIVE
    assert shares.rank(BATCH, 20_001) is BATCH, "what it has saved does not cover that"
    assert shares.rank(STANDARD, 0) is STANDARD, "it had no work"


def test_what_it_computes_it_pays_for_at_once() -> None:
    shares = ClassShares()
    for _ in range(100):
        shares.end_step([BATCH], STEP_NS)
    shares.spend(BATCH, 95_000_000)
    assert shares.rank(BATCH, 5_000) is TenantClass.INTERACTIVE
    shares.spend(BATCH, 6_000_000)
    assert shares.rank(BATCH, 1) is BATCH


def test_a_class_alone_saves_nothing_up() -> None:
    shares = ClassShares()
    for _ in range(1_000):
        shares.spend(BATCH, STEP_NS)
        shares.end_step([BATCH], STEP_NS)
    assert shares.rank(BATCH, 1) is BATCH


def test_savings_are_bounded_and_buy_even_what_costs_more() -> None:
    shares = ClassShares()
    for _ in range(10_000):
        shares.end_step([BATCH], STEP_NS)
    assert shares.rank(BATCH, 100 * CREDIT_MAX_US) is TenantClass.INTERACTIVE
    shares.spend(BATCH, CREDIT_MAX_US * 1_000)
    assert shares.rank(BATCH, 1) is BATCH


def test_who_comes_back_starts_where_the_last_chosen_stood() -> None:
    turns = TenantTurns()
    turns.come("busy")
    turns.spend("busy", 1.0, 900)
    turns.chosen("busy")
    turns.come("new")
    assert turns["new"] == 900, "no claim on the time before it came"
    turns.spend("new", 1.0, 50)
    turns.come("busy")
    assert turns["busy"] == 900 < turns["new"]


@pytest.mark.parametrize(
    ("weight", "virtual_ns"),
    [(1.0, 900), (3.0, 300), (0.5, 1_800), (1_000_000.0, 9), (0.000_001, 90_000)],
    ids=["one", "three times the share", "half of it", "bounded above", "bounded below"],
)
def test_time_counts_by_weight(weight: float, virtual_ns: int) -> None:
    turns = TenantTurns()
    turns.come("tenant")
    turns.spend("tenant", weight, 900)
    assert turns["tenant"] == virtual_ns
