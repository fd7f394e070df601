"""A request that is refused before it is anything else."""

from core.ends import End
from core.outcomes import Outcome


class Refusal(Exception):
    """Carries the end that the client is told."""

    def __init__(self, end: End) -> None:
        super().__init__(end.message)
        self.end = end


def bad_field(field: str, problem: str) -> Refusal:
    """INVALID_ARGUMENT naming the field."""
    return Refusal(End(Outcome.INVALID_ARGUMENT, f"{field}: {problem}", field))
