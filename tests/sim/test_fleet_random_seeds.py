"""Random fleets under random faults; a failing seed prints the command that shows it again."""

import pytest

from sim.runs import RunConfig, run


@pytest.mark.parametrize("seed", range(16))
def test_laws_hold_under_random_faults(seed: int) -> None:
    run(RunConfig(seed=seed, requests=30, faults=seed % 9))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2_000))
def test_laws_hold_under_random_faults_for_long(seed: int) -> None:
    run(RunConfig(seed=seed, requests=60, faults=seed % 9))
