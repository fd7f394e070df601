"""What a placed attempt is counted for at one instance, until something releases it."""

from dataclasses import dataclass

from core.request import AttemptKey, InstanceKey


@dataclass(frozen=True, slots=True)
class Claim:
    """What one leg of a placement will need where it runs."""

    prefill_us: int
    """Predicted prefill not computed yet; given back at the first token."""
    short: bool
    """Whether that prefill counts as a short one."""
    blocks: int
    """Prompt and expected growth."""
    sequences: int


@dataclass(slots=True)
class Reservation:
    """A claim with its number, keyed by (attempt, instance): no count without its owner."""

    number: int
    key: AttemptKey
    instance: InstanceKey
    claim: Claim
    placed_us: int
    acknowledged: bool = False
    """The worker's report counts it."""


@dataclass(slots=True)
class Totals:
    """Sums of claims."""

    prefill_us: int = 0
    short_us: int = 0
    blocks: int = 0
    sequences: int = 0

    def add(self, claim: Claim, sign: int = 1) -> None:
        self.prefill_us += sign * claim.prefill_us
        self.short_us += sign * claim.prefill_us if claim.short else 0
        self.blocks += sign * claim.blocks
        self.sequences += sign * claim.sequences


def total(claims: list[Claim]) -> Totals:
    totals = Totals()
    for claim in claims:
        totals.add(claim)
    return totals
