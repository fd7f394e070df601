"""Which host slots are whose, and what the next step copies."""

import pytest

from engine.host_swap import HostSwap


def test_all_slots_or_none() -> None:
    swap = HostSwap(3)
    assert swap.keep([10, 11], hold=False) == [0, 1]
    assert swap.keep([12, 13], hold=False) is None
    assert (swap.used, swap.take()) == (2, (((10, 0), (11, 1)), ()))
    swap.check()


def test_a_slot_that_a_step_reads_is_free_only_after_it() -> None:
    swap = HostSwap(1)
    slots = swap.keep([10], hold=False)
    assert slots == [0]
    swap.take()
    swap.end_step()
    swap.bring_back([20], slots, [])
    assert swap.keep([11], hold=False) is None, "the copy out would come before the copy in"
    assert swap.take() == ((), ((20, 0),))
    swap.end_step()
    assert swap.keep([11], hold=False) == [0]


def test_held_blocks_are_told_once_their_copy_is_made() -> None:
    swap = HostSwap(4)
    swap.keep([10, 11], hold=True)
    assert swap.held == [10, 11] and swap.owes
    swap.take()
    assert swap.held == [10, 11], "the step that copies them still runs"
    assert swap.end_step() == [10, 11]
    assert not swap.held and not swap.owes


@pytest.mark.parametrize("hold", [True, False])
def test_a_copy_nobody_wants_any_more_is_not_made(hold: bool) -> None:
    swap = HostSwap(2)
    slots = swap.keep([10, 11], hold=hold)
    assert slots is not None
    assert swap.drop(slots) == ([10, 11] if hold else [])
    assert swap.take() == ((), ())
    assert swap.used == 0
    swap.check()
