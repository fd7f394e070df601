"""Greedy answers that transformers gave in float32, ours and, where they are laid beside, the others'."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "reference" / "smollm2_greedy_float32.json"
BESIDE = ROOT.parent / "shared" / "reference" / "smollm2_greedy_fp32.json"


def own() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(OWN.read_text())
    return found


def beside() -> list[dict[str, Any]]:
    """Skips, saying why, where the file is not there."""
    if not BESIDE.exists():
        pytest.skip(f"no {BESIDE.name} beside the checkout")
    found: list[dict[str, Any]] = json.loads(BESIDE.read_text())
    return found
