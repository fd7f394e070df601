"""In which order contenders are measured, and how one stands to the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.load_result import LoadResult
from bench.percentiles import median

Figures = Mapping[str, float | None]
"""Metric to its value; None where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of the table."""

    name: str
    """The field of LoadResult."""
    label: str


METRICS = (
    Metric("output_tokens_per_s", "out tok/s"),
    Metric("ttft_p50_ms", "TTFT p50 ms"),
    Metric("ttft_p95_ms", "TTFT p95 ms"),
    Metric("itl_p50_ms", "ITL p50 ms"),
    Metric("itl_p95_ms", "ITL p95 ms"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of one contender."""

    contender: int
    pass_number: int
    """Contenders get the same prompts in the same pass, and other ones in every other pass."""


def turns(contenders: int, rounds: int) -> list[Turn]:
    """A B B A per round: there and back, so that a drift of the machine weighs the same on each."""
    order = []
    for pass_number in range(2 * rounds):
        there = range(contenders) if pass_number % 2 == 0 else reversed(range(contenders))
        order += [Turn(contender, pass_number) for contender in there]
    return order


def medians(results: Sequence[LoadResult]) -> dict[str, float | None]:
    """Each metric's median over one contender's runs."""
    return {metric.name: median(getattr(result, metric.name) for result in results) for metric in METRICS}


def ratios(first: Figures, second: Figures) -> dict[str, float | None]:
    """The first's figure as a multiple of the second's; None where either lacks or the second is 0."""
    return {name: ratio(value, second.get(name)) for name, value in first.items()}


def ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or not second else first / second
