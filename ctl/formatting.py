"""Formatting of times and texts for people."""

from __future__ import annotations

import re
import time

from ..protocol.texts import span as span

# Escape sequences (colours, titles, cursor movements), other control characters, C1 included, and characters that write
# backwards or take no room: they would move the text beside them.
CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])?"
    r"|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def printable(text: str) -> str:
    """Return `text` on one line, without control sequences for the terminal: a reason may quote a job's output."""
    if text.isprintable():  # none of those characters is; most texts have none
        return text
    return CONTROL.sub(lambda found: " " if found[0] in "\t\n\r" else "", text)


def for_spreadsheet(text: str) -> str:
    """Return `text` as `printable` does, and so that a spreadsheet does not take it for a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.lstrip().startswith(("=", "+", "-", "@")) else shown


def clock(unix_s: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
