"""Which tests run: those marked soak only where they are asked for, and then for as long as they take."""

import os

import pytest

SOAK = os.environ.get("BATON_SOAK") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soaks = [item for item in items if item.get_closest_marker("soak")]
    for item in soaks:
        item.add_marker(pytest.mark.timeout(0))
    if soaks and not SOAK:
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
