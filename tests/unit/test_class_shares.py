"""Which class and which tenant is owed compute, in numbers."""

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
    assert shares.rank(BATCH) is BATCH


def test_a_class_alone_saves_nothing_up() -> None:
    shares = ClassShares()
    for _ in range(1_000):
        shares.spend(BATCH, STEP_NS)
        shares.end_step([BATCH], STEP_NS)
    assert shares.rank(BATCH) is BATCH


def test_savings_are_bounded_and_buy_even_what_costs_more() -> None:
    shares = ClassShares()
    for _ in range(10_000):
        shares.end_step([BATCH], STEP_NS)
    assert shares.rank(BATCH, 100 * CREDIT_MAX_US) is TenantClass.INTERACTIVE
    shares.spend(BATCH, CREDIT_MAX_US * 1_000)
    assert shares.rank(BATCH) is BATCH


def test_who_comes_back_starts_where_the_last_chosen_stood() -> None:
    turns = TenantTurns()
    turns.come("busy")
    turns.spend("busy", 900)
    turns.chosen("busy")
    turns.come("new")
    assert turns["new"] == 900, "no claim on the time before it came"
    turns.spend("new", 50)
    turns.come("busy")
    assert turns["busy"] == 900 < turns["new"]
