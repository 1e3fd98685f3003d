"""python dying.py LOG NUMBER HOW MODULE [ARGUMENTS]: a daemon that kills itself at one of its operations on what is durable.

Starts the daemon's own `main`, with the functions wrapped through which it writes: the end of a transaction of SQLite, the calls
to etcd that change something, and, of an agent, what replaces, removes or starts something. Each operation is a line in LOG. At
number NUMBER (0: at none) the process gets SIGKILL from itself, HOW: "before" the operation or "after" it.
"""

from __future__ import annotations

import functools
import itertools
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from elasticd.agent import disk
from elasticd.controller.store import sqlite
from elasticd.controller.store.etcd_connection import Connection

SINCE = itertools.count(1)
LOCK = threading.Lock()


class Dying:
    """Counts operations; the process dies at one of them."""

    def __init__(self, log: str, number: int, how: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._number, self._how = number, how

    def around(self, what: str, act: Callable[[], Any]) -> Any:
        with LOCK:
            mine = next(SINCE)
            os.write(self._log, f"{mine} {what}\n".encode())
        if mine == self._number and self._how == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = act()
        if mine == self._number and self._how == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def wrap(self, holder: Any, name: str, what: Callable[..., str]) -> None:
        """`what`: of the arguments, what this call is; empty: no operation."""
        real = getattr(holder, name)

        @functools.wraps(real)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            text = what(*arguments, **named)
            if not text:
                return real(*arguments, **named)
            return self.around(text, lambda: real(*arguments, **named))

        setattr(holder, name, wrapped)


def of_etcd(connection: Any, method: Any, request: Any, *_: Any, **__: Any) -> str:
    """What a call changes."""
    kind = type(request).__name__
    if kind in ("LeaseGrantRequest", "LeaseRevokeRequest"):
        return kind
    if kind != "TxnRequest":
        return ""
    keys = [operation.request_put.key.decode() for operation in request.success if operation.HasField("request_put")]
    keys += ["-" for operation in request.success if operation.HasField("request_delete_range")]
    return f"writes {' '.join(keys)}" if keys else ""


def of_file(path: Any, *arguments: Any, **_: Any) -> str:
    """Only what is there: nothing is removed otherwise."""
    target = str(arguments[0] if arguments else path)
    known = target.endswith((".json", ".exit")) and isinstance(path, str | os.PathLike) and os.path.exists(path)
    return target if known else ""


def main() -> None:
    log, number, how, module, *arguments = sys.argv[1:]
    dying = Dying(log, int(number), how)
    if module == "elasticd.controller":
        dying.wrap(sqlite.SqliteStore, "_end", lambda store, db, word: "commits" if word == "commit" else "")
        dying.wrap(Connection, "_call", of_etcd)
    else:
        dying.wrap(os, "replace", of_file)
        dying.wrap(os, "unlink", of_file)
        dying.wrap(disk.Disk, "execute", lambda own, start, *_: f"starts {start.worker}")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
