"""How a comparison is shown: one table, one plot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import METRICS, Figures, medians, ratios
from bench.floors import Floors
from bench.load_result import LoadResult

NAME_WIDTH = 24
COLUMN_WIDTH = 13


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency: every contender's runs, in the contenders' order."""

    concurrency: int
    results: tuple[tuple[LoadResult, ...], ...]

    def medians(self) -> list[dict[str, float | None]]:
        return [medians(results) for results in self.results]

    def ratios(self) -> dict[str, float | None] | None:
        """Of the first to the second; None where there is one contender alone."""
        found = self.medians()
        return ratios(found[0], found[1]) if len(found) == 2 else None


def table(names: Sequence[str], levels: Sequence[Level]) -> Iterator[str]:
    """Medians over runs. A ratio above 1 is good for tokens per second, below 1 for times."""
    heads = "".join(f"{metric.label:>{COLUMN_WIDTH}}" for metric in METRICS)
    yield f"{'c':>4}  {'median of runs':<{NAME_WIDTH}}{heads}{'ok':>6}{'bad':>5}"
    for level in levels:
        for number, (name, figures) in enumerate(zip(names, level.medians(), strict=True)):
            ok = sum(result.ok for result in level.results[number])
            bad = sum(result.bad for result in level.results[number])
            head = str(level.concurrency) if number == 0 else ""
            yield f"{head:>4}  {name:<{NAME_WIDTH}}{_cells(figures, '.1f')}{ok:>6}{bad:>5}"
        if (compared := level.ratios()) is not None:
            yield f"{'':>4}  {'the first / the second':<{NAME_WIDTH}}{_cells(compared, '.2f')}"


def bad_lines(names: Sequence[str], levels: Sequence[Level]) -> Iterator[str]:
    """What was bad, where anything was."""
    for level in levels:
        for name, results in zip(names, level.results, strict=True):
            for result in results:
                for sample in result.bad_sample:
                    yield f"bad: c={level.concurrency} {name}: {sample}"


def floor_lines(floors: Floors, fleet_itl_ms: float | None) -> Iterator[str]:
    """The engine alone, and how much of one stream's ITL the floor is."""
    yield (
        f"engine alone: decode reaches {floors.decode_fraction:.0%} of its floor (weight bytes / "
        f"{floors.read_bytes_per_s / 1e9:.1f} GB/s read), a prompt of 155 tokens "
        f"{floors.prefill_fraction:.0%} of its own (FLOPs / {floors.flops / 1e9:.0f} GFLOP/s)"
    )
    if fleet_itl_ms:
        share = floors.decode_floor_ms / fleet_itl_ms
        yield (
            f"one stream through the fleet: ITL p50 {fleet_itl_ms:.2f} ms, of which the decode floor "
            f"{floors.decode_floor_ms:.2f} ms is {share:.0%}"
        )


def plot(names: Sequence[str], levels: Sequence[Level], title: str, path: Path) -> None:
    """Throughput, TTFT and ITL by concurrency: p50 drawn through, p95 dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    lines = (
        (axes[0], "output tokens/s", (("output_tokens_per_s", "-"),)),
        (axes[1], "TTFT ms", (("ttft_p50_ms", "-"), ("ttft_p95_ms", "--"))),
        (axes[2], "ITL ms", (("itl_p50_ms", "-"), ("itl_p95_ms", "--"))),
    )
    concurrencies = [level.concurrency for level in levels]
    for axis, label, metrics in lines:
        for number, name in enumerate(names):
            for metric, style in metrics:
                values = [level.medians()[number][metric] for level in levels]
                heights = [float("nan") if value is None else value for value in values]
                suffix = " p95" if style == "--" else ""
                axis.plot(
                    concurrencies, heights, style, marker="o", color=f"C{number}", label=f"{name}{suffix}"
                )
        axis.set_xlabel("streams at a time")
        axis.set_ylabel(label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(concurrencies, [str(concurrency) for concurrency in concurrencies])
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize="small")
    figure.suptitle(title, fontsize="small")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _cells(figures: Figures, style: str) -> str:
    values = [figures[metric.name] for metric in METRICS]
    return "".join(f"{'-' if value is None else format(value, style):>{COLUMN_WIDTH}}" for value in values)
