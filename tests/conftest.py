"""Which tests run, and in which order: those marked soak only where they are asked for, long files first."""

import os
from pathlib import Path

import pytest

SOAK = os.environ.get("BATON_SOAK") == "1"
FIRST = (
    "model/test_law_of_exactness.py",
    "model/test_native_backend_default_model.py",
    "model/test_exactness.py",
    "model/test_structured_exactness.py",
    "model/test_structured_schemas.py",
    "live/test_launcher.py",
    "scenarios/test_fault_matrix.py",
    "laws/test_engine_laws.py",
    "sim/test_router_policies.py",
    "live/test_gloo_lane.py",
    "scenarios/test_engine_scheduling.py",
    "scenarios/test_interactive_over_batch.py",
    "laws/test_engine_soak.py",
    "sim/test_fleet_random_seeds.py",
    "laws/test_speculation_exactness_laws.py",
)
"""Where files share the cores, no core is to be idle at the end for one that began late; those of model/ use
every core, and are not to be beside what waits for less than a second."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    soaks = [item for item in items if item.get_closest_marker("soak")]
    for item in soaks:
        item.add_marker(pytest.mark.timeout(0))
    if soaks and not SOAK:
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
