"""Structured logs: one line per record, ``time level process message key=value``, to stderr or a file."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {self._process} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(process: str, level: str = "INFO", file: Path | None = None) -> None:
    """Send all log records of this process to `file`, or to stderr. `process` names it in every line."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file)
    handler.setFormatter(_Formatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
