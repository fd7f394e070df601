"""`baton sim`: random runs of a simulated fleet, each told by its seed."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sim.fleet import Fleet
from sim.runs import RunConfig, conclude
from sim.runs import begin as begin_run


def main(argv: Sequence[str] | None = None) -> int:
    """0 where every law held in every run; else 1, with the command that replays the first that broke."""
    options = _parser().parse_args(argv)
    for seed in range(options.seed, options.seed + options.runs):
        config = RunConfig(
            seed=seed,
            requests=options.requests,
            faults=options.faults,
            keep_text=options.log,
            record=options.record is not None,
        )
        if not _run(config, options.record):
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="runs, with seeds from --seed on")
    parser.add_argument("--requests", type=int, default=40, help="per run")
    parser.add_argument("--faults", type=int, default=5, help="per run, at random times")
    parser.add_argument("--log", action="store_true", help="print every event and decision")
    parser.add_argument("--record", type=Path, help="write every decision here, for `baton replay`")
    return parser


def _run(config: RunConfig, record: Path | None) -> bool:
    fleet = begin_run(config)
    broken = ""
    try:
        conclude(fleet, config)
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    if config.keep_text:
        print("\n".join(fleet.journal.lines))
    if record is not None:
        record.write_bytes(b"".join(fleet.recording))
    print(_summary(fleet, config))
    if broken:
        print(f"a law is broken at {fleet.loop.now_us / 1e6:.6f} s: {broken}", file=sys.stderr)
        print(f"replay with: {config.command}", file=sys.stderr)
    return not broken


def _summary(fleet: Fleet, config: RunConfig) -> str:
    outcomes = ", ".join(f"{outcome} {count}" for outcome, count in sorted(fleet.clients.outcomes().items()))
    return (
        f"seed {config.seed}: {len(fleet.clients.asked)} requests ({outcomes}), "
        f"{fleet.journal.events} events, "
        f"{fleet.loop.now_us / 1e6:.1f} s of virtual time, digest {fleet.journal.digest}"
    )


if __name__ == "__main__":
    sys.exit(main())
