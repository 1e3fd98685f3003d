"""Process that forks workers: `python -m verification.bits.nursery MODULE` has imported all that a worker needs, and forks one
per input line. MODULE defines the workers: its `warm_up()` is called once, in the nursery, and its `run(errand)` in each
worker.

The nursery must stay single-threaded, or its children would hang; therefore it is a separate process. Input lines are
`worker.Errand`s as JSON; output lines report the start and end of each. At the end of its input the nursery exits, with its
children.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO

from .worker import Errand

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True)
class Began:
    """A worker's process has started."""

    worker: str
    pid: int


@dataclass(frozen=True)
class Ended:
    """A worker's process has ended; a negative code is a signal."""

    worker: str
    code: int


class Nursery:
    """Driver's side of a nursery; a context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        """module: defines the workers. arguments: passed to the module in `sys.argv`."""
        self._words = (module, *arguments)

    def __enter__(self) -> Nursery:
        one_thread = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # as in the processes from which an agent forks workers
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            # For pyarrow, which Hugging Face's libraries import where it is installed.
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=one_thread,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self._rest = b""
        if self._out.readline() != b"ready\n":
            raise RuntimeError("the nursery has not come up")
        os.set_blocking(self._out.fileno(), False)
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        self._process.wait()

    @property
    def descriptor(self) -> int:
        """Descriptor that is readable when `news` has events."""
        return self._out.fileno()

    def start(self, errand: Errand) -> None:
        self._in.write(json.dumps(asdict(errand)).encode() + b"\n")
        self._in.flush()

    def news(self) -> Iterator[Began | Ended]:
        """Yield the starts and ends since the last call."""
        while piece := self._read():
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            document = json.loads(line)
            yield Began(**document) if "pid" in document else Ended(**document)

    def _read(self) -> bytes:
        try:
            piece = os.read(self._out.fileno(), 1 << 16)
        except BlockingIOError:
            return b""
        if not piece:
            raise RuntimeError("the nursery is gone")
        return piece


def _serve() -> Errand | None:
    """Serve requests. Returns an errand in each child, None in the nursery when all children have ended."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    running: dict[int, str] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([0, read], [], [])
        if read in ready:
            os.read(read, 4096)
            _reap(running)
        if 0 not in ready:
            continue
        piece = os.read(0, 1 << 16)
        if not piece:
            return None
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            errand = Errand(**json.loads(line))
            pid = os.fork()
            if pid == 0:
                end_with_parent()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(read)
                os.close(write)
                return errand
            running[pid] = errand.worker
            _say(Began(errand.worker, pid))


def _reap(running: dict[int, str]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _say(Ended(running.pop(pid), os.waitstatus_to_exitcode(status)))


def _say(what: Began | Ended) -> None:
    os.write(1, json.dumps(asdict(what)).encode() + b"\n")


def main() -> None:
    play = importlib.import_module(sys.argv[1])
    play.warm_up()
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    if (errand := _serve()) is not None:
        play.run(errand)


if __name__ == "__main__":
    main()
