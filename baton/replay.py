"""Whether recorded decisions are made again."""

import sys
from collections.abc import Sequence
from pathlib import Path

from core.replay import Replayed, ReplayError, replay
from sim.registry import FACTORIES

SHOWN_MAX = 3


def replay_files(files: Sequence[Path]) -> int:
    """0: every decision was reproduced; 1: one was not; 2: a file cannot be replayed."""
    worst = 0
    for file in files:
        try:
            found = replay(file.read_bytes(), FACTORIES)
        except (OSError, ReplayError) as error:
            print(f"baton: error: {file}: {error}", file=sys.stderr)
            worst = 2
            continue
        if not found.objects:
            print(f"baton: error: {file}: no recording: there is no object in it", file=sys.stderr)
            worst = 2
            continue
        _show(file, found)
        worst = max(worst, 1 if found.mismatches else 0)
    return worst


def _show(file: Path, found: Replayed) -> None:
    verdict = f"{len(found.mismatches)} differ" if found.mismatches else "all identical"
    cut = f", {found.bytes_unread} bytes of a cut record ignored" if found.bytes_unread else ""
    print(f"{file}: {', '.join(found.objects)}: {found.events} events, {verdict}{cut}")
    for mismatch in found.mismatches[:SHOWN_MAX]:
        print(f"  {mismatch}")
