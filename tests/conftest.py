"""Property tests try the same examples in every run, so that a test fails because of a change. `make hunt` tries others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from .forked import Scripts

# A busy machine is no failure.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("hunt", UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("same")


LONGEST = ("cluster", "worker")  # folders whose files take longest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first: one that came last would run alone while the other processes have nothing to do."""
    items.sort(key=lambda item: item.path.parent.name not in LONGEST)


@pytest.fixture(scope="session")
def scripts() -> Iterator[Scripts]:
    scripts = Scripts()
    yield scripts
    scripts.close()
