"""What the router knows of one attempt from submit to settle."""

from dataclasses import dataclass
from enum import Enum

from core.request import AttemptKey, Leg
from router.messages import Submission


class Phase(Enum):
    """Where an attempt stands."""

    LEASE = "lease"
    """Waits for a share of its tenant's limit."""
    QUEUED = "queued"
    PLACED = "placed"


@dataclass(slots=True)
class Attempt:
    """One live attempt; whatever is reserved for it hangs on this."""

    submission: Submission
    gateway: str
    arrived_us: int
    deadline_us: int | None
    """None: only its gateway's own."""
    phase: Phase = Phase.QUEUED
    pool: str = ""
    """Name of the queue it waits in or is charged to."""
    cost_us: int = 0
    short: bool = True
    predicted_us: int = 0
    """Shortest time from placement to the last expected token."""
    legs: tuple[Leg, ...] = ()
    placed_us: int = 0
    queued_us: int = 0
    reason: str = ""
    first_token_seen: bool = False

    @property
    def key(self) -> AttemptKey:
        return self.submission.key
