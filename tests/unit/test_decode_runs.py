"""Tokens that one step gave to one choice travel as one run; all others as their own."""

from core.outcomes import FinishReason
from core.request import AttemptKey
from decode_worker.attempts import GatewayKey, Run
from decode_worker.mailboxes import Mailboxes
from engine.plan import Sampled

GATEWAY = GatewayKey("gateway", "incarnation")
KEY, OTHER = AttemptKey("request", 0), AttemptKey("other", 0)


def run(
    index: int, *tokens: int, choice: int = 0, finish: FinishReason | None = None, key: AttemptKey = KEY
) -> Run:
    return Run(key, choice, index, tuple(Sampled(choice, token, -0.5) for token in tokens), finish)


def sent(*runs: Run) -> list[Run]:
    boxes = Mailboxes(1_000)
    boxes.attach(GATEWAY, ())
    for one in runs:
        boxes.say(GATEWAY, one)
    return [one for frame in boxes.flush() for one in frame.runs]


def test_what_goes_straight_on_is_one_run() -> None:
    stop = FinishReason.STOP
    assert sent(run(3, 7), run(4, 8), run(5, 9, finish=stop)) == [run(3, 7, 8, 9, finish=stop)]


def test_another_choice_request_or_place_is_another_run() -> None:
    apart = [run(3, 7), run(3, 7, choice=1), run(4, 8), run(5, 9, key=OTHER), run(9, 1, key=OTHER)]
    assert sent(*apart) == apart


def test_nothing_joins_a_finished_run() -> None:
    finished = run(3, 7, finish=FinishReason.LENGTH)
    assert sent(finished, run(4, 8)) == [finished, run(4, 8)]


def test_an_end_said_afterwards_joins_its_tokens() -> None:
    assert sent(run(3, 7), run(4, finish=FinishReason.LENGTH)) == [run(3, 7, finish=FinishReason.LENGTH)]
