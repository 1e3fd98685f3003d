"""Property tests try the same examples in every run, so that a test fails because of a change. `make hunt` tries others."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import zmq
from hypothesis import HealthCheck, settings

from .forked import Scripts

# A busy machine is no failure.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("hunt", UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("same")


def pytest_collection_finish() -> None:
    """The tests themselves are a million objects, which nobody has to look through again and again."""
    gc.collect()
    gc.freeze()


LEFT: list[zmq.Context[zmq.Socket[bytes]]] = []  # contexts that tests have not closed, such as those that have failed


def _leave(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """When garbage is collected, a context waits for its open sockets, for ever: the run would hang in some later test."""
    if not context.closed:
        LEFT.append(context)


zmq.Context.__del__ = _leave  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def scripts() -> Iterator[Scripts]:
    scripts = Scripts()
    yield scripts
    scripts.close()
