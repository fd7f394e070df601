"""On what, and when, something was measured."""

import os
import time
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """To stand beside figures; load is the average number of runnable processes over the last minute."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_1_minute": round(os.getloadavg()[0], 2),
    }


def shown(found: dict[str, Any]) -> str:
    return (
        f"{found['processor']}, {found['cores']} cores, {found['date']}, "
        f"load {found['load_1_minute']} before it began"
    )


def _processor() -> str:
    """The model's name, with its family and model numbers: virtual machines hide the name."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    numbers = f"family {found.get('cpu family', '?')} model {found.get('model', '?')}"
    return f"{found.get('model name', 'unknown processor')} ({numbers})"
