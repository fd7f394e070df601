"""What routers ask the global capacity state, and what it answers."""

from dataclasses import dataclass
from enum import StrEnum


class QuantityKind(StrEnum):
    CONCURRENCY = "concurrency"
    """Permits: held for a term, claimed anew, given back."""
    RATE = "rate"
    """Tokens a minute: spent from a bucket that refills."""


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """One limit of one tenant."""

    tenant: str
    kind: QuantityKind


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the store."""

    number: int
    """Ascends over all questions of one router process: an older one that arrives late changes nothing."""
    quantity: Quantity
    want: int
    """CONCURRENCY: permits to hold from now on, in all; less than before returns the rest, 0 all.
    RATE: tokens to be handed now."""
    claim: int
    """CONCURRENCY: how many of them are ours already: a store that has lost its memory grants no more
    until every holder had time to say so. RATE: 0."""
    limit: int
    """Permits in all, or tokens a minute."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Tokens of a RATE that were handed out and not spent."""

    quantity: Quantity
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """How long leases live and how eagerly they are adapted."""

    term_us: int = 3_000_000
    """Life of a lease in the store; past it, unrenewed, others may take it."""
    renew_us: int = 1_000_000
    """How often a lease is renewed, its unused part returned and its spare adapted."""
    retry_us: int = 100_000
    """After an answer that left a demand open, the next question waits so long."""
    idle_us: int = 10_000_000
    """What has not been used for so long is given back whole, and the tenant forgotten."""
    spare_part: int = 16
    """A lease asks for one part in so many of the limit beyond its use, while nobody else lacks it."""
    portion_us: int = 2_000_000
    """A rate's portion covers so long at the full rate, beyond what waits."""

    def __post_init__(self) -> None:
        if not 0 < self.renew_us <= self.term_us // 2:
            raise ValueError("renew_us: must be above 0 and at most half of term_us")
        if self.retry_us <= 0 or self.idle_us <= 0 or self.portion_us < 0 or self.spare_part <= 0:
            raise ValueError("retry_us, idle_us and spare_part: must be above 0; portion_us: at least 0")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store granted."""

    granted: int
    """CONCURRENCY: permits held now, in all. RATE: tokens handed now."""
    free: int
    """What is left for anyone: permits, or the bucket's tokens."""
    quarantined: bool = False
    """The store has lost its memory lately and only confirms claims."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The store cannot be asked; what is held goes on."""

    reason: str
