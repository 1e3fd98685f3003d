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


@pytest.fixture(scope="session")
def scripts() -> Iterator[Scripts]:
    scripts = Scripts()
    yield scripts
    scripts.close()
