"""How something ended, whole: the word, and what the one who asked should be told."""

from dataclasses import dataclass

from core.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class End:
    """The one terminal answer of a request, an attempt or a transfer; a refusal is an End too."""

    outcome: Outcome
    message: str = ""
    """For people; says what to do about it where that is known."""
    field: str = ""
    """The request's field at fault, where one is."""
    retry_after_us: int = 0
    """When trying again could succeed; 0 where nothing is known."""
