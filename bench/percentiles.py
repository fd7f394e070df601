"""Which value of many measured ones stands at a percentile, and which in the middle."""

import statistics
from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The nearest rank: the smallest value that at least `percent` % are not above. None of none."""
    ordered = sorted(values)
    if not 0 <= percent <= 100:
        raise ValueError(f"percent: {percent} is not between 0 and 100")
    if not ordered:
        return None
    rank = -int(-percent * len(ordered) // 100)
    return ordered[max(rank, 1) - 1]


def median(values: Iterable[float | None]) -> float | None:
    """Of those that were measured: the middle one, or the mean of the middle two."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
