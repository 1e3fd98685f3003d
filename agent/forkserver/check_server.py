"""Warm process of `elasticctl check`: has torch loaded, and forks the processes of a check, which otherwise spend most of
their time on imports.

``python -m elasticd.agent.forkserver.check_server PARENT PRELUDE PADDING``, started by `ctl.check.warm`. It has no shims and asks
nobody: its client runs as the same user and waits for it. Each line of its input is a request, each line of its output one
of `{"ready": why}` (why: the reason why it forks nothing, or empty), `{"began": pid}` and `{"ended": pid, "code": code}`,
where a negative code is a signal. The processes end with this one, and this one with its client.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from typing import Any

from .. import shim
from .child import Script, become
from .server import import_prelude, show, unfit


def main(arguments: list[str]) -> None:
    """Load, then fork a process for each request; in a forked process, run the script."""
    parent, prelude, *_ = arguments
    shim.die_with(int(parent))
    paths = sys.path[1:]  # without the directory that this process was started in
    sys.path[:] = paths
    try:
        loaded = import_prelude(prelude)
        problem = unfit()
    except BaseException as error:  # outermost frame of the process: the client starts the script without it
        problem = f"{type(error).__name__}: {error}"
    _say(ready=problem or "")
    request = None if problem else _serve()
    if request is None:
        return
    command = request["command"]
    script = Script(sys.executable, command, request["module"], request["name"], request["arguments"])
    show(command)
    become(script, request["environment"], paths, loaded.renew)


def _serve() -> dict[str, Any] | None:
    """Serve requests. Returns None at the end of the input; in a forked process, its request."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    rest = b""
    mine = os.getpid()
    while True:
        ready, _, _ = select.select([0, read], [], [])
        if read in ready:
            os.read(read, 4096)
            _reap()
        if 0 not in ready:
            continue
        piece = os.read(0, 1 << 16)
        if not piece:
            return None
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if os.fork() == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, before)
                request: dict[str, Any] = json.loads(line)
                _begin(request, mine)
                return request


def _begin(request: Mapping[str, Any], parent: int) -> None:
    """Give a forked process a session, directory and files of its own."""
    shim.die_with(parent)
    os.setsid()
    _say(began=os.getpid())  # with its own process group: the client may signal it
    os.chdir(request["directory"])
    for target, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["log"], os.O_WRONLY | os.O_APPEND),
        (2, request["log"], os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags | os.O_CLOEXEC)
        os.dup2(opened, target)
        os.close(opened)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _say(ended=pid, code=os.waitstatus_to_exitcode(status))


def _say(**document: object) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
