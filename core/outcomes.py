"""Every way a request can end or be refused, each by its own word."""

from enum import StrEnum


class FinishReason(StrEnum):
    """How one choice ended well."""

    STOP = "stop"
    """A stop token or, at the gateway, a stop string."""
    LENGTH = "length"
    """max_tokens, or the model's last position."""


class Outcome(StrEnum):
    """How a request ended. `rpc/status.py` gives each its HTTP and gRPC status."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """By the client: its Cancel, or its connection gone."""
    DEADLINE_EXCEEDED = "deadline_exceeded"

    INVALID_ARGUMENT = "invalid_argument"
    PROMPT_TOO_LONG = "prompt_too_long"
    """Prompt and output exceed the model's positions, or what any pool could ever hold."""
    BODY_TOO_LARGE = "body_too_large"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    REQUEST_NOT_FOUND = "request_not_found"
    DUPLICATE_REQUEST = "duplicate_request"
    """The tenant already has a live request of this id."""

    RATE_LIMITED = "rate_limited"
    """The tenant's tokens per minute are spent."""
    CONCURRENCY_LIMITED = "concurrency_limited"
    """The tenant's concurrent requests are spent."""
    QUEUE_FULL = "queue_full"
    """Capacity exists but is contended beyond the queue's bound."""
    SHED = "shed"
    """Given up in the queue: it could not have met its deadline, or a more urgent class needs the room."""
    WORKER_FULL = "worker_full"
    """A worker's own word; backpressure, never a breaker's failure."""
    SLOW_CLIENT = "slow_client"
    """The client did not read, and its buffer reached the bound."""

    NO_WORKER = "no_worker"
    """Nothing can serve this model now."""
    DRAINING = "draining"
    WORKER_LOST = "worker_lost"
    """The attempt died with its worker or its stream."""
    MOVED = "moved"
    """A draining worker's grace ended; retried outside the budget."""
    INCOMPATIBLE = "incompatible"
    """The two ends of a hand-off differ in model, revision or dtype."""
    TRANSFER_FAILED = "transfer_failed"
    INTERNAL = "internal"


RETRYABLE = (
    Outcome.WORKER_LOST,
    Outcome.MOVED,
    Outcome.WORKER_FULL,
    Outcome.INCOMPATIBLE,
    Outcome.TRANSFER_FAILED,
)
"""Ends of an attempt after which the gateway may try again elsewhere."""
