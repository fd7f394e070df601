"""Which of a run's tokens are news to a choice."""

from dataclasses import dataclass

from core.outcomes import FinishReason
from services.gateway.live_request import LiveChoice
from services.gateway.requests import Logprobs, Run


@dataclass(frozen=True, slots=True)
class News:
    """What a run adds."""

    first: int
    """Output index of the first token."""
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Tokens are missing before the run."""

    choice: int
    came: int
    due: int

    def __str__(self) -> str:
        return f"choice {self.choice}: output {self.came} came, {self.due} was due"


def news_of(choice: LiveChoice, run: Run, max_tokens: int) -> News | Gap | None:
    """None: everything in it is known. Never more than max_tokens in all, whatever the worker sends."""
    first = len(choice.output)
    if run.first_index > first:
        return Gap(run.choice, run.first_index, first)
    room, seen = max_tokens - first, first - run.first_index
    tokens, logprobs = run.tokens[seen : seen + room], run.logprobs[seen : seen + room]
    # A finish belongs to the run's last token: a run known to its end can still bring it.
    finish = run.finish if seen <= len(run.tokens) else None
    if len(run.tokens) - seen > room or (len(tokens) == room and finish is None):
        finish = FinishReason.LENGTH
    return News(first, tokens, logprobs, finish) if tokens or finish is not None else None
