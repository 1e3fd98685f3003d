"""Threads that keep a worker's process alive when its script has come to its end.

Python waits at its end for every thread that is no daemon: for an upload that has to be finished, but also for an
endless loop. Meanwhile the worker keeps its GPU and its job does not end, without a visible reason. So after some
seconds the remaining threads are named in the job's log and among its events. They may run as long as the script's own
code between two steps may take (`pause_timeout`), since they may be writing results. Then each is asked to end, by a
SystemExit raised in its Python code. If that does not help, the process ends without them, with a message.

The hook is `threading._register_atexit`, as `concurrent.futures` uses it: functions of `atexit` run after the threads
have ended.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from ..protocol.texts import span

LOOK_S = 0.1
TOLD_AFTER_S = 10.0
LIBRARY, OTHERS = os.path.dirname(threading.__file__) + os.sep, f"{os.sep}site-packages{os.sep}"
OBEYS_WITHIN_S = 5.0  # time that a thread has to end after SystemExit


@dataclass(frozen=True)
class Patience:
    """Limits of the wait for remaining threads, in seconds from the end of the script. 0 < told_after_s < limit_s."""

    told_after_s: float
    limit_s: float
    obeys_within_s: float = OBEYS_WITHIN_S  # after the limit

    @classmethod
    def of(cls, limit_s: float) -> Patience:
        """Return the times for a limit in seconds (> 0)."""
        return cls(min(TOLD_AFTER_S, limit_s / 2), limit_s)


def watch(patience: Patience, tell: Callable[[str], None], failed: Callable[[], bool]) -> None:
    """Watch threads that are left at the end of this process's script.

    tell: reports a sentence as an event of the job. failed: whether the script has failed. A process that has to be
    ended then ends with exit code 1, else with 0.
    """

    def script_ended() -> None:
        if left():
            name, arguments = "elasticd-left-threads", (patience, tell, failed)
            threading.Thread(target=_wait, args=arguments, name=name, daemon=True).start()

    at_script_end(script_ended)


def at_script_end(function: Callable[[], None]) -> None:
    """Call `function` when the main thread has come to its end, before Python waits for other threads.

    Functions run in reverse order of registration. Not called in a forked process, nor if this Python has no such hook.
    """
    owner = os.getpid()
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(lambda: function() if os.getpid() == owner else None)


def left() -> list[threading.Thread]:
    """Return the threads other than the main thread for which Python waits."""
    main = threading.main_thread()
    return [each for each in threading.enumerate() if not each.daemon and each is not main and each.is_alive()]


def described(threads: Sequence[threading.Thread]) -> str:
    """Return the threads' names and places: "thread 'upload' (in send, train.py:37)"."""
    frames = sys._current_frames()
    words = [f"{each.name!r}{_place(frames.get(each.ident or 0))}" for each in threads]
    return f"thread{'s' if len(words) > 1 else ''} {', '.join(words)}"


def _place(innermost: FrameType | None) -> str:
    """Return the place of a thread, in code outside of Python's own library if there is any."""
    frame = innermost
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY) and OTHERS not in frame.f_code.co_filename:
        frame = frame.f_back
    shown = frame or innermost
    if shown is None:
        return ""
    return f" (in {shown.f_code.co_name}, {os.path.basename(shown.f_code.co_filename)}:{shown.f_lineno})"


def _wait(patience: Patience, tell: Callable[[str], None], failed: Callable[[], bool]) -> None:
    began = time.monotonic()
    if _gone_by(began + patience.told_after_s):
        return
    limit = f"at most {span(patience.limit_s)} from the end on (pause_timeout)"
    text = f"the script has come to its end, but not its {described(left())}: the worker waits for that, {limit}"
    _say(text)
    tell(text)
    if _gone_by(began + patience.limit_s):
        return
    _say(
        f"{described(left())} has not ended within {span(patience.limit_s)} of the script's end: it is asked to (SystemExit)"
    )
    for thread in left():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    if _gone_by(time.monotonic() + patience.obeys_within_s):
        return
    _say(f"the worker ends without its {described(left())}: what that has not written yet is lost")
    os._exit(1 if failed() else 0)


def _gone_by(deadline: float) -> bool:
    """Wait until no such thread is left, until `deadline` (monotonic, s) at most. Returns whether none is left."""
    while left():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_S)
    return True


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())  # not `sys.stderr`, which a remaining thread may have locked
