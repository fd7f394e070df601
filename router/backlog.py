"""What waits for one model, what runs of it, and what that work costs."""

from dataclasses import dataclass, field

from core.cost_model import StepCost
from core.request import ModelIdentity
from router.attempt import Attempt
from router.drain_estimate import DrainEstimate
from router.fair_queue import FairQueue
from router.messages import Submission

COST_DEFAULT = StepCost(base_ns=1_000_000, token_ns=50_000, context_ns=0)
"""Charged until a worker of the model has declared its own."""


@dataclass(slots=True)
class Backlog:
    """One model's queue and the measures of its progress."""

    queue: FairQueue
    drain: DrainEstimate = field(default_factory=DrainEstimate)
    running: int = 0
    """Placed attempts that have not ended."""
    blocked: bool = False
    """The last try found no room, and nothing was released since."""

    def retry_after_us(self, now_us: int) -> int:
        return self.drain.wait_us(len(self.queue), self.running, now_us)


def backlog_name(model: ModelIdentity) -> str:
    """All revisions of a model queue together: they share its workers."""
    return f"{model.name}+{model.adapter}"


def estimate(
    attempt: Attempt, cost: StepCost, expected: int, cached: int, short_us: int, reference_batch: int
) -> None:
    """Fills in the attempt's predicted cost from the declared reference cost."""
    submission: Submission = attempt.submission
    tokens = submission.prefill_tokens
    prefill_us = cost.prefill_us(tokens, min(cached, tokens - 1))
    per_token_ns = cost.base_ns // reference_batch + cost.token_ns + cost.context_ns * tokens
    attempt.cost_us = prefill_us + submission.choices * expected * per_token_ns // 1000
    attempt.predicted_us = prefill_us + expected * cost.step_us(submission.choices, tokens)
    attempt.short = prefill_us <= short_us
