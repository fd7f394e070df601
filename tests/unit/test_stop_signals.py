"""What a second signal means."""

from baton.stop_signals import SAME_WITHIN_US, Reaction, StopSignals


def test_the_first_drains_and_a_second_leaves() -> None:
    signals = StopSignals()
    assert signals.heard(5) is Reaction.DRAIN
    assert signals.heard(5 + SAME_WITHIN_US) is Reaction.LEAVE


def test_signals_at_once_are_one() -> None:
    signals = StopSignals()
    heard = [signals.heard(now_us) for now_us in (0, 1, SAME_WITHIN_US - 1, 2 * SAME_WITHIN_US)]
    assert heard == [Reaction.DRAIN, Reaction.NONE, Reaction.NONE, Reaction.LEAVE]
