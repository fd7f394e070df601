"""Everything opened ends once, under one word."""

import pytest

from core.ledger import Ledger
from core.outcomes import Outcome


def test_the_first_end_counts_and_later_ones_do_not() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.open("a", 5)
    ledger.open("b", 6)
    assert list(ledger) == ["a", "b"] and ledger.opened_us("a") == 5
    assert ledger.end("a", Outcome.CANCELLED)
    assert not ledger.end("a", Outcome.COMPLETED)
    assert not ledger.end("never", Outcome.COMPLETED)
    assert "a" not in ledger and ledger.opened_us("a") is None
    assert (ledger.live, ledger.opened) == (1, 2)
    assert ledger.counts() == {Outcome.CANCELLED: 1} and ledger.count(Outcome.COMPLETED) == 0
    ledger.check()


def test_a_live_key_is_not_opened_twice() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.open("a", 5)
    with pytest.raises(AssertionError, match="live already"):
        ledger.open("a", 6)


def test_a_lost_end_breaks_the_law() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.open("a", 5)
    ledger._opened_us.clear()
    with pytest.raises(AssertionError, match="missing or doubled"):
        ledger.check()
