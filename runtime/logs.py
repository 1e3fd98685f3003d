"""Structured logs: one line per record, ``time level process message key=value``, to stderr or a file.

A log is read by people, and has room for a while. So a record is one line whatever is in it: what peers say may contain line
feeds, and megabytes. And of warnings and errors that come again and again only some are written, with how many were not: no peer
can fill the disk, or make the line that matters hard to find, by being wrong very often.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from ..protocol.errors import OperatorError
from ..protocol.sparing import Sparing

LONGEST = 2000  # characters of a message
AT_ONCE = 20  # warnings of one kind, and then
INTERVAL_S = 10.0  # one in so many seconds
KEPT_KINDS = 500  # of warnings

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = one_line(record.getMessage())
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {self._process} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def one_line(text: str) -> str:
    """`text` as it can stand in a log: no control characters, and not too much of it."""
    shown = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text[: LONGEST + 1])
    return f"{shown[:LONGEST]} ..." if len(shown) > LONGEST else shown


class Spared(logging.Filter):
    """Lets some of many warnings or errors of one kind through: those of one line of the program that begin alike."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: OrderedDict[tuple[str, int, str], Sparing] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        kind = (record.pathname, record.lineno, " ".join(record.getMessage()[:80].split(" ")[:2]))
        sparing = self._kinds.pop(kind, None) or Sparing(AT_ONCE, INTERVAL_S)
        self._kinds[kind] = sparing
        if len(self._kinds) > KEPT_KINDS:
            self._kinds.popitem(last=False)
        before = sparing.held_back
        if not sparing.lets(self._now()):
            return False
        if before:
            record.msg, record.args = f"{one_line(record.getMessage())} (and {before} more of its kind before)", ()
        return True


def configure(process: str, level: str = "INFO", file: str | None = None) -> None:
    """Send all log records of this process to `file`, or to stderr. `process` names it in every line.

    Called again, it opens the file anew: the old one may have been moved away. Raises OperatorError; then nothing has changed.
    """
    try:
        handler: logging.Handler = (
            logging.FileHandler(Path(file).expanduser()) if file else logging.StreamHandler(sys.stderr)
        )
    except OSError as error:
        raise OperatorError(f"log_file: {file}: {error.strerror}") from None
    handler.setFormatter(_Formatter(process))
    handler.addFilter(Spared())
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers[:] = [handler]
    root.setLevel(level)
    for old in before:
        if isinstance(old, logging.FileHandler):
            old.close()
