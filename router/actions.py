"""What the router asks its shell to do."""

from dataclasses import dataclass

from core.ends import End
from core.request import AttemptKey, Leg, ModelIdentity


@dataclass(frozen=True, slots=True)
class Place:
    """The attempt runs here; its legs are reserved."""

    gateway: str
    key: AttemptKey
    legs: tuple[Leg, ...]
    fallback: str
    queued_us: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The attempt does not run; nothing is held for it."""

    gateway: str
    key: AttemptKey
    end: End


@dataclass(frozen=True, slots=True)
class Resync:
    """Ask a worker for all its cached prefixes."""

    worker: str
    incarnation: str
    model: ModelIdentity
    reason: str
