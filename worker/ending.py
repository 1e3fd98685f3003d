"""Exit of a worker's process, which has threads that cannot be ended.

A communicator's threads spend their time in C++ code: they connect, wait for an operation, destroy a group. When the interpreter
exits, Python (before 3.14) ends each daemon thread that returns from there by `pthread_exit`, which unwinds its stack. The
library's destructors do not permit that, so C++ calls `std::terminate`: SIGABRT kills the process, and a worker that had done all
of its work counts as lost. So from that moment on such a thread is frozen instead, as Python 3.14 does.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from typing import NoReturn

log = logging.getLogger(__name__)


def freeze_threads_at_exit() -> None:
    """Freeze threads that return from C++ at the interpreter's exit, until the process ends."""
    atexit.register(_freeze)


def _freeze() -> None:
    """Replace `std::terminate` in this process by `pause`. Genuine calls of it would have happened before the exit."""
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        pause = ctypes.CDLL(None).pause
    except (OSError, AttributeError) as error:  # another C++ library: leave the exit as it is
        log.debug("threads cannot be frozen: %s", error)
        return
    set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
    set_terminate(ctypes.cast(pause, ctypes.c_void_p))


def end_process(code: int, reason: str) -> NoReturn:
    """Exit at once with `code`, whatever other threads do. Writes `reason` to stderr."""
    os.write(2, f"{reason}\n".encode())  # not through `sys.stderr`, which a stuck thread may have locked
    os._exit(code)
