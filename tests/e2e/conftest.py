"""Fleets that several test files share: starting one costs ten seconds."""

from collections.abc import Iterator

import pytest

from tests.e2e.live_fleet import ROOMY, LiveFleet, running


@pytest.fixture(scope="session")
def exact_fleet() -> Iterator[LiveFleet]:
    """Float32, disaggregated, two gateway processes; laws asserted after every event."""
    with running(*ROOMY, "--no-sample", "--dtype", "float32", "--gateways", "2", "--check-laws") as fleet:
        yield fleet
