"""The cause of a command's end, in one line, from its output to stderr. The standard library alone: the shim uses this
module.

Theory of operation
-------------------
The last line of a log is seldom the cause. Launchers (torchrun, accelerate, deepspeed) end with a traceback and a
summary of their own; progress bars, warnings of NCCL, and the last messages of libraries follow an exception. So, in
this order:

* the message in the error file of the process that failed first (`TORCHELASTIC_ERROR_FILE`), for scripts that write one;
* the last exception of a Python traceback that is no launcher's, of the process that failed first where its lines are marked;
* the last line that is neither a ruler nor a progress bar, nor one of those warnings; in the end the last line.

torchrun's summary names the rank that failed first, and the signal where one has ended it. Each line is examined once,
when it is written, and a few are kept. An exception that is far from the end of the log was survived, and is not the
cause.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections import deque

LOOKED_AT = 1000  # bytes of a line
LAST_LINES = 64  # lines kept, to find the last one that is not noise
MOST_RANKS = 64  # ranks with their last exceptions kept
NEAR_THE_END = 50  # lines from the end, for an exception before an end that is not Python's own
SURVIVED = 1000  # lines from the end: an exception farther away did not end the command
ERROR_FILE_BYTES = 256 << 10
LIBRARY = range(77, 90)  # exit codes of the library's own ends, which print their reason last (`protocol.exits`)
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

_MARK = re.compile(r"\[(?:rank|default)(\d{1,6})\]:[ ]?")  # torch's mark of a rank, and torchrun's with --tee
_IN_GROUP = re.compile(r"\s*\| ?")  # of an exception group
_FRAME = re.compile(r'\s+File ".*", line \d+')
_EXCEPTION = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?::\s.*|:)?")
_LAUNCHERS = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError|RunFailed|SignalException)\b")
_RANK = re.compile(r"\s+rank\s*: (\d{1,6})\b")
_EXIT_CODE = re.compile(r"\s+exitcode\s*: (-?\d{1,4})\b")
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'")
_WHAT = re.compile(r"\s+what\(\):\s+(.+)")
_RULER = re.compile(r"[\s=\-*_#~|+.]*")
_NOISE = re.compile(  # each alternative begins with its own letters, so that a long line is scanned once
    r"\d%\||\bit/s\b|\bs/it\b"  # progress bars
    r"|\bNCCL (?:WARN|INFO)\b|\bdestroy_process_group\b"
    r"|^[WIE]\d{4} \d\d:|^\[[WIE]\d{3,4} "  # torch's own log
    r"|Warning: |^\s+warnings\.warn\(|\bresource_tracker\b"
    r"|^wandb: |Segmentation fault|^Aborted\b"
)


class Cause:
    """Analyser of one command's stderr, line by line. The tracebacks of several ranks may be interleaved."""

    def __init__(self) -> None:
        self._lines = 0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._within: dict[str, bool] = {}  # by rank, "" unmarked: whether its next lines belong to a traceback
        self._found: dict[str, tuple[str, int]] = {}  # by rank: its last exception, and the number of its line
        self._newest = ""  # the rank with the latest exception
        self._launcher = ""  # a launcher's own exception
        self._continues = ""  # the rank with an exception that continues on the next line
        self._summary = False  # the lines belong to torchrun's summary
        self._root = False  # of the process that failed first
        self._rank = ""
        self._signal = 0
        self._thrown = ""

    def take(self, line: bytes) -> None:
        """Take the next line, without its end."""
        text = line[:LOOKED_AT].decode(errors="replace").rstrip()
        if not text.strip():
            return
        self._lines += 1
        self._last.append(text)
        if self._summary and not text.startswith("Traceback (most recent call last):"):
            self._summarize(text)
            return
        self._summary = False
        rank = ""
        while mark := _MARK.match(text):
            rank, text = mark[1], text[mark.end() :]
        self._look(rank, text)

    def _look(self, rank: str, text: str) -> None:
        if self._continues == rank and rank in self._found:
            self._note(rank, f"{self._found[rank][0]} {text.strip()}")
            self._continues = "-"
            return
        self._continues = "-"
        if self._within.get(rank) and (inner := _IN_GROUP.match(text)):
            text = text[inner.end() :]
        if "Traceback (most recent call last):" in text or _FRAME.match(text):
            if rank in self._within or len(self._within) < MOST_RANKS:
                self._within[rank] = True
        elif self._within.get(rank) and not text[:1].isspace() and _EXCEPTION.fullmatch(text):
            self._within[rank] = False
            self._raised(rank, text)
        elif thrown := _THROWN.match(text):
            self._thrown = thrown[1]
        elif self._thrown and (what := _WHAT.match(text)):
            self._note(rank, f"{self._thrown}: {what[1]}")
            self._thrown = ""

    def _raised(self, rank: str, text: str) -> None:
        if _LAUNCHERS.match(text):
            self._launcher = text
            self._summary = "ChildFailedError" in text
            return
        self._note(rank, text)
        if text.endswith(":"):
            self._continues = rank

    def _note(self, rank: str, text: str) -> None:
        if rank in self._found or len(self._found) < MOST_RANKS:
            self._found[rank] = (text, self._lines)
            self._newest = rank

    def _summarize(self, text: str) -> None:
        """Take a line of torchrun's summary."""
        if text.startswith("Root Cause"):
            self._root = True
        elif self._root and not self._rank and (rank := _RANK.match(text)):
            self._rank = rank[1]
        elif self._root and self._rank and not self._signal and (code := _EXIT_CODE.match(text)):
            self._signal = max(0, -int(code[1]))

    def text(self, exit_code: int, recorded: str = "") -> str:
        """Return the cause of an end with this exit code, or minus the signal; "": unknown. `recorded`: the message in
        the error file.
        """
        if exit_code in LIBRARY:
            return self._last[-1].strip() if self._last else ""
        rank = self._rank or self._newest
        of_rank = f"rank {rank}: " if rank else ""
        if recorded:
            return of_rank + recorded
        if self._signal:
            return f"{of_rank}killed by {signal_name(self._signal)}"
        exception = self._exception(SURVIVED if exit_code == 1 or self._rank else NEAR_THE_END)
        if exit_code < 0:
            return exception if -exit_code in CRASHES else ""
        if exception:
            return of_rank + exception
        return self._launcher or self._said()

    def _said(self) -> str:
        """Return the last line that is not noise; if all lines are, the last one."""
        words = (line for line in reversed(self._last) if not _RULER.fullmatch(line) and not _NOISE.search(line))
        return next(words, self._last[-1] if self._last else "").strip()

    def _exception(self, within: int) -> str:
        """Return the last exception of the process that failed first, else of any, if it is within `within` lines of
        the end.
        """
        text, at = self._found.get(self._rank) or self._found.get(self._newest) or ("", 0)
        return text if self._lines - at <= within else ""


def recorded(path: str, since_s: float) -> str:
    """Return the message in an error file that torch.distributed.elastic has written since `since_s` (Unix time, s);
    "": none.

    The file belongs to the command: it may be a link, a pipe, another user's file, or endless.
    """
    try:
        data = _read(path, since_s)
        message = json.loads(data)["message"] if data else ""
        if isinstance(message, dict):
            message = message["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    lines = [line.strip() for line in str(message).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return " ".join(lines[:2]) if first.endswith(":") else first


def _read(path: str, since_s: float) -> bytes:
    """Return a small file of this process's account. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        fits = found.st_size <= ERROR_FILE_BYTES and found.st_mtime >= since_s - 1
        return os.read(descriptor, ERROR_FILE_BYTES) if own and fits else b""
    finally:
        os.close(descriptor)


def signal_name(number: int) -> str:
    """Return "SIGKILL", or "signal 40" for real-time signals, which have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
