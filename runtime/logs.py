"""Structured logs: one line per record, to stderr or a file, as text or as JSON.

A record may name the job, generation, worker and server that it is `about`. Text has these before the message,
``time level process job=digits-1 generation=3 message``; JSON has them as fields of their own. Where systemd's journal reads
stderr, a line begins with its priority (``<3>`` is an error) instead of time and level, which the journal adds.

A record is one line of bounded length, because text from peers may contain line feeds, and megabytes. Of repeated warnings and
errors only some are written, with the number of those left out: so no peer can fill the disk or hide a relevant line by repeating
an error.
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
from ..protocol.rate_limit import RateLimiter

LONGEST = 2000  # characters of a message
AT_ONCE = 20  # warnings of one kind that are all written
INTERVAL_S = 10.0  # after those, one is written per interval
KEPT_KINDS = 500  # of warnings
# The journal's priorities (sd-daemon(3)): the least level of each number.
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))

_ABOUT = "about"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Form(Enum):
    """Format of a log line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Process:
    """Process that writes the log: "controller" of a cluster, "agent" of a server."""

    component: str
    names: Mapping[str, str] = field(default_factory=dict)  # such as {"server": "gpu1"}

    def __str__(self) -> str:
        return f"{self.component}[{','.join(self.names.values())}]" if self.names else self.component


def about(**fields: object) -> dict[str, object]:
    """Return the subject of a record, as `extra` of a call: ``log.info("started", extra=about(job=job, generation=3))``.

    Fields that are None or "" are left out.
    """
    return {_ABOUT: {name: value for name, value in fields.items() if value is not None and value != ""}}


def line(record: logging.LogRecord) -> str:
    """Return a record's subject and message in one line."""
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
    """Return whether the journal reads this process's stderr: JOURNAL_STREAM names its device and inode (systemd.exec)."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(sys.stderr.fileno())
        return (int(device), int(inode)) == (found.st_dev, found.st_ino)
    except (OSError, ValueError):
        return False


def one_line(text: str) -> str:
    """Return `text` with control characters escaped, cut after LONGEST characters."""
    shown = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text[: LONGEST + 1])
    return f"{shown[:LONGEST]} ..." if len(shown) > LONGEST else shown


class Spared(logging.Filter):
    """Rate limit of warnings and errors by kind: same line of code, same first two words."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._limiters: OrderedDict[tuple[str, int, str], RateLimiter] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        kind = (record.pathname, record.lineno, " ".join(record.getMessage()[:80].split(" ")[:2]))
        limiter = self._limiters.pop(kind, None) or RateLimiter(AT_ONCE, INTERVAL_S)
        self._limiters[kind] = limiter
        if len(self._limiters) > KEPT_KINDS:
            self._limiters.popitem(last=False)
        before = limiter.suppressed
        if not limiter.allow(self._now()):
            return False
        if before:
            record.msg, record.args = f"{one_line(record.getMessage())} (and {before} more of its kind before)", ()
        return True


def configure(process: Process, level: str = "INFO", file: str | None = None, form: Form = Form.TEXT) -> None:
    """Send all log records of this process to `file`, or to stderr. `process` is named in every line.

    A second call opens the file again, as log rotation may have moved the old one. Raises OperatorError, and then changes
    nothing.
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
