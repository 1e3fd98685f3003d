"""Structured logs: one line per record, ``time level process message key=value``, to stderr or a file."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from ..protocol.errors import OperatorError


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {self._process} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


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
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers[:] = [handler]
    root.setLevel(level)
    for old in before:
        if isinstance(old, logging.FileHandler):
            old.close()
