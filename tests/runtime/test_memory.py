"""Freed memory returns to the system."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys

import pytest

from elasticd.runtime import memory

needs_trim = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
FREES = """
import ctypes, logging, sys
from elasticd.runtime import memory
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
keeper = memory.Keeper()
keeper.look(0.0)
small = memory.resident_bytes()
kept = [libc.malloc(4000) for _ in range(10_000)]
for each in kept:
    ctypes.memset(each, 1, 4000)
keeper.look(1.0)  # all of it is in use
for each in kept[:-1]:  # the last one holds the heap up
    libc.free(each)
assert memory.resident_bytes() - small > 30_000_000, "what the C library keeps"
keeper.look(1.0 + memory.INTERVAL_S / 2)
assert memory.resident_bytes() - small > 30_000_000, "it was looked at a moment ago"
keeper.look(1.0 + memory.INTERVAL_S)
assert memory.resident_bytes() - small < 5_000_000
"""


@needs_trim
@pytest.mark.parametrize("idle_before", [True, False])
def test_what_is_free_below_something_that_lives_goes_back_and_the_log_says_so(idle_before: bool) -> None:
    """Also where the process is flooded from its start, so that it has never measured its memory while that was small."""
    script = FREES if idle_before else FREES.replace("keeper.look(0.0)\n", "")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "MB of memory were free, and are given back to the system" in done.stdout


def test_a_process_that_has_not_grown_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    keeper = memory.Keeper()
    for second in range(3):
        keeper.look(float(second))
    assert caplog.text == ""
