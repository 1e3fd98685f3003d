"""Structured logs: one line per record, to stderr or a file, as text or as JSON.

A line says what it is `about`: the job, its generation, a worker, a server. Text has that before the message,
``time level process job=digits-1 generation=3 message``; JSON as fields of its own, for programs. Where the service manager's
journal reads stderr, lines begin with their priority (``<3>`` is an error) in place of time and level, which the journal has.

A log is read by people, and has room for a while. So a record is one line whatever is in it: what peers say may contain line
feeds, and megabytes. And of warnings and errors that come again and again only some are written, with how many were not: no peer
can fill the disk, or make the line that matters hard to find, by being wrong very often.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..protocol.errors import OperatorError
from ..protocol.sparing import Sparing

LONGEST = 2000  # characters of a message
AT_ONCE = 20  # warnings of one kind, and then
INTERVAL_S = 10.0  # one in so many seconds
KEPT_KINDS = 500  # of warnings
# Of the journal (sd-daemon(3)): from which level on which number.
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))

_ABOUT = "about"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Form(Enum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Process:
    """Whose log it is: "controller" of a cluster, "agent" of a server."""

    component: str
    names: Mapping[str, str] = field(default_factory=dict)  # such as {"server": "gpu1"}

    def __str__(self) -> str:
        return f"{self.component}[{','.join(self.names.values())}]" if self.names else self.component


def about(**fields: object) -> dict[str, object]:
    """What a line is about, as `extra` of a call: ``log.info("started", extra=about(job=job, generation=3))``.

    Fields that are None or "" are left out.
    """
    return {_ABOUT: {name: value for name, value in fields.items() if value is not None and value != ""}}


def line(record: logging.LogRecord) -> str:
    """What a record is about, and its message, in one line."""
    told = [f"{name}={value}" for name, value in getattr(record, _ABOUT, {}).items()]
    return one_line(" ".join([*told, record.getMessage()]))


class _Formatter(logging.Formatter):
    def __init__(self, process: Process, form: Form, journal: bool) -> None:
        super().__init__()
        self._process, self._form, self._journal = process, form, journal

    def format(self, record: logging.LogRecord) -> str:
        text = self._json(record) if self._form is Form.JSON else self._text(record)
        if not self._journal:
            return text
        priority = next(number for least, number in PRIORITIES if record.levelno >= least)
        return "\n".join(f"<{priority}>{each}" for each in text.split("\n"))

    def _text(self, record: logging.LogRecord) -> str:
        stamp = "" if self._journal else f"{_stamp(record)} {record.levelname.lower()} "
        text = f"{stamp}{self._process} {line(record)}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text

    def _json(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {"time": _stamp(record), "level": record.levelname.lower()}
        fields |= {"component": self._process.component, **self._process.names}
        for name, value in getattr(record, _ABOUT, {}).items():
            fields[name] = value if isinstance(value, int | float) else one_line(str(value))
        fields["message"] = one_line(record.getMessage())
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _stamp(record: logging.LogRecord) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{stamp}.{int(record.msecs):03d}Z"


def is_journal(environment: Mapping[str, str]) -> bool:
    """Does the journal read what this process writes to stderr? JOURNAL_STREAM names the device and inode (systemd.exec)."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(sys.stderr.fileno())
        return (int(device), int(inode)) == (found.st_dev, found.st_ino)
    except (OSError, ValueError):
        return False


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


def configure(process: Process, level: str = "INFO", file: str | None = None, form: Form = Form.TEXT) -> None:
    """Send all log records of this process to `file`, or to stderr. `process` is named in every line.

    Called again, it opens the file anew: the old one may have been moved away. Raises OperatorError; then nothing has changed.
    """
    try:
        handler: logging.Handler = (
            logging.FileHandler(Path(file).expanduser()) if file else logging.StreamHandler(sys.stderr)
        )
    except OSError as error:
        raise OperatorError(f"log_file: {file}: {error.strerror}") from None
    handler.setFormatter(_Formatter(process, form, journal=not file and is_journal(os.environ)))
    handler.addFilter(Spared())
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers[:] = [handler]
    root.setLevel(level)
    for old in before:
        if isinstance(old, logging.FileHandler):
            old.close()
