"""The end of a worker's process, which has threads that cannot be ended.

A communicator's threads spend their time in the library's C++ code: they connect, wait for an operation, destroy a group. When
the interpreter ends, Python (before 3.14) ends each daemon thread that comes back from there with `pthread_exit`. That unwinds
its stack; the library's destructors forbid it, and C++ then calls `std::terminate`: SIGABRT kills the process, and a worker
that had done all of its work counts as lost. So from that moment on such a thread is frozen instead, as Python 3.14 does it.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from typing import NoReturn

log = logging.getLogger(__name__)


def freeze_threads_at_exit() -> None:
    """Let threads that return from C++ while the interpreter ends wait for the end of the process."""
    atexit.register(_freeze)


def _freeze() -> None:
    """Make `std::terminate` of this process `pause`. Whatever calls it otherwise has called it before."""
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        pause = ctypes.CDLL(None).pause
    except (OSError, AttributeError) as error:  # another C++ library; then the end is as it would be anyway
        log.debug("threads cannot be frozen: %s", error)
        return
    set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
    set_terminate(ctypes.cast(pause, ctypes.c_void_p))


def end_process(code: int, reason: str) -> NoReturn:
    """End this process at once, whatever its threads are doing."""
    os.write(2, f"{reason}\n".encode())  # not `sys.stderr`, which a thread that hangs may have locked
    os._exit(code)
