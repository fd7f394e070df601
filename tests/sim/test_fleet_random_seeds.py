"""Random fleets under random faults; a failing seed prints the command that shows it again."""

import os

import pytest

from sim.runs import RunConfig, run

SOAK = os.environ.get("BATON_SOAK") == "1"
SEEDS = 2_000 if SOAK else 16


@pytest.mark.parametrize("seed", range(SEEDS))
def test_laws_hold_under_random_faults(seed: int) -> None:
    run(RunConfig(seed=seed, requests=60 if SOAK else 30, faults=seed % 9))
