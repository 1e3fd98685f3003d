"""Property tests try the same examples in every run, so that only a change makes a test fail. `make hunt` tries others."""

from __future__ import annotations

import gc
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import HealthCheck, settings

from .forked import Scripts

# `verification`, `benchmarks` and `examples` are not installed. Appended, so that folders here never hide an installed module.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# torch's threads wait for each other asleep, not in loops that keep a processor from other tests. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell starts a command in the background with Ctrl-C ignored, and so would be what the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("hunt", UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="only the Kth of N parts of the tests, which part by their names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part: adding a test moves no other one to another part."""
    if (part := config.getoption("--part")) is None:
        return
    number, of = (int(each) for each in part.split("/"))
    if not 1 <= number <= of:
        raise pytest.UsageError(f"--part {part}: the first number is 1 to {of}")
    kept = [each for each in items if zlib.crc32(each.nodeid.encode()) % of == number - 1]
    config.hook.pytest_deselected(items=[each for each in items if each not in set(kept)])
    items[:] = kept


gc.disable()  # until the tests are collected: searching their modules for garbage takes a fifth of the imports' time


def pytest_collection_finish() -> None:
    """Freeze the million objects of the collected tests, so that the garbage collector does not scan them again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


LEFT: list[zmq.Context[zmq.Socket[bytes]]] = []  # contexts that tests have not closed, such as those that have failed


def _leave(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """A garbage-collected context would wait for its open sockets forever, and hang the run in a later test."""
    if not context.closed:
        LEFT.append(context)


zmq.Context.__del__ = _leave  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def scripts() -> Iterator[Scripts]:
    scripts = Scripts()
    yield scripts
    scripts.close()
