"""Who may enter at all: what can never run, what nobody serves, and whose limits are spent."""

from capacity.leases import Refused
from core.ends import End
from core.outcomes import Outcome
from router.fleet_view import FleetView
from router.messages import Submission
from router.policy import RouterPolicy


def refusal(submission: Submission, fleet: FleetView, policy: RouterPolicy) -> End | None:
    """Why this could not run whoever asked; None where it could."""
    for name, least in (("prompt_tokens", 1), ("choices", 1), ("max_tokens", 1), ("output_tokens", 0)):
        if getattr(submission, name) < least:
            value = getattr(submission, name)
            return End(Outcome.INVALID_ARGUMENT, f"{name} must be at least {least}, is {value}", name)
    limits = fleet.limits(submission.model)
    if limits is None:
        return End(Outcome.MODEL_NOT_FOUND, f"no worker has ever served {submission.model}", "model")
    tokens = submission.prompt_tokens + submission.max_tokens
    asked = f"prompt of {submission.prompt_tokens} and output of up to {submission.max_tokens} tokens"
    if tokens > limits.max_positions:
        return End(
            Outcome.PROMPT_TOO_LONG, f"{asked} exceed the model's {limits.max_positions} positions", "prompt"
        )
    if tokens > limits.pool_tokens:
        return End(
            Outcome.PROMPT_TOO_LONG,
            f"{asked} exceed the largest KV pool of {limits.pool_tokens} tokens",
            "prompt",
        )
    if not fleet.may_serve(submission.model, submission.dtype):
        return no_worker(submission, policy)
    return None


def no_worker(submission: Submission, policy: RouterPolicy) -> End:
    pinned = f" in {submission.dtype}" if submission.dtype else ""
    return End(
        Outcome.NO_WORKER,
        f"nothing serves {submission.model}{pinned} now",
        retry_after_us=policy.no_worker_retry_us,
    )


def limited(submission: Submission, refused: Refused) -> End:
    """A tenant's own limit, not the fleet's."""
    limit = (
        f"{submission.tenant_concurrency} concurrent requests"
        if refused.outcome is Outcome.CONCURRENCY_LIMITED
        else f"{submission.tenant_tokens_per_minute} tokens per minute"
    )
    return End(refused.outcome, f"the tenant's {limit} are in use", retry_after_us=refused.retry_after_us)
