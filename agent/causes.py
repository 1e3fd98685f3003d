"""Why a command has ended, in one line, by what it has written to stderr. The standard library alone: the shim uses it.

Theory of operation
-------------------
The last line of a log is seldom the cause. Launchers (torchrun, accelerate, deepspeed) end with a traceback and a summary of
their own; progress bars, warnings of NCCL, and what libraries say at their end follow an exception. So, in this order:

* what a launcher has found in the error file of the process that failed first (`TORCHELASTIC_ERROR_FILE`), for scripts that write
  one;
* the last exception of a Python traceback that is no launcher's, of the process that failed first where its lines are marked;
* the last line that is neither a ruler nor a progress bar, nor one of those warnings; in the end the last line.

torchrun's summary names the rank that failed first, and the signal where one has ended it. Each line is looked at once, when it
is written, and a few are kept. An exception that is far from the end of the log was survived, and is not the cause.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections import deque

LOOKED_AT = 1000  # bytes of a line
LAST_LINES = 64  # among which the last one is looked for that is no noise
MOST_RANKS = 64  # whose last exceptions are kept
NEAR_THE_END = 50  # lines, of an exception before an end that is not Python's own
SURVIVED = 1000  # lines: an exception so far from the end is not what has ended a command
ERROR_FILE_BYTES = 256 << 10
LIBRARY = range(77, 90)  # exit codes of the library's own ends, which say their reason last (`protocol.exits`)
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
_NOISE = re.compile(  # each alternative begins with its own letters, so that a long line is looked through once
    r"\d%\||\bit/s\b|\bs/it\b"  # progress bars
    r"|\bNCCL (?:WARN|INFO)\b|\bdestroy_process_group\b"
    r"|^[WIE]\d{4} \d\d:|^\[[WIE]\d{3,4} "  # torch's own log
    r"|Warning: |^\s+warnings\.warn\(|\bresource_tracker\b"
    r"|^wandb: |Segmentation fault|^Aborted\b"
)


class Cause:
    """Looks at the lines of one command's stderr. A traceback of each rank may be among the lines of the others."""

    def __init__(self) -> None:
        self._lines = 0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._within: dict[str, bool] = {}  # by rank, "" unmarked: are its next lines those of a traceback?
        self._found: dict[str, tuple[str, int]] = {}  # by rank: its last exception, and in which line
        self._newest = ""  # the rank that has the last of all
        self._launcher = ""  # a launcher's own exception
        self._continues = ""  # the rank whose exception goes on in the next line
        self._summary = False  # the lines are those of torchrun's summary
        self._root = False  # of the process that failed first
        self._rank = ""
        self._signal = 0
        self._thrown = ""

    def take(self, line: bytes) -> None:
        """The next line, without its end."""
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
        """A line of torchrun's summary."""
        if text.startswith("Root Cause"):
            self._root = True
        elif self._root and not self._rank and (rank := _RANK.match(text)):
            self._rank = rank[1]
        elif self._root and self._rank and not self._signal and (code := _EXIT_CODE.match(text)):
            self._signal = max(0, -int(code[1]))

    def text(self, exit_code: int, recorded: str = "") -> str:
        """What has brought about an end with this exit code, or minus the signal; "": nothing tells. `recorded`: what stands in
        the error file."""
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
        """The last line that is no noise; if all are, the last one."""
        words = (line for line in reversed(self._last) if not _RULER.fullmatch(line) and not _NOISE.search(line))
        return next(words, self._last[-1] if self._last else "").strip()

    def _exception(self, within: int) -> str:
        """The last one of the process that failed first, else of any, if it is so near to the end."""
        text, at = self._found.get(self._rank) or self._found.get(self._newest) or ("", 0)
        return text if self._lines - at <= within else ""


def recorded(path: str, since_s: float) -> str:
    """The message in an error file that torch.distributed.elastic has written since then (Unix time, s); "": there is none.

    The file is the command's: it may be a link, a pipe, somebody else's, or without end.
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
    """A small file of this process's account. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        fits = found.st_size <= ERROR_FILE_BYTES and found.st_mtime >= since_s - 1
        return os.read(descriptor, ERROR_FILE_BYTES) if own and fits else b""
    finally:
        os.close(descriptor)


def signal_name(number: int) -> str:
    """ "SIGKILL"; real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
