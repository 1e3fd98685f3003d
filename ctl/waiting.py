"""Waiting for a change in the cluster, with a limit, and a sentence about the wait."""

from __future__ import annotations

import re
import sys
import time

from ..protocol.errors import RequestRefused, UserError
from . import render
from .context import say

POLL_S = 0.1
SAID_AFTER_S = 2.0  # a shorter wait is not announced
SECONDS = re.compile(r"\d+ s\b")  # a reason that differs only in a countdown is not a new one


class Waiting:
    """A wait for `what` ("digits-1 to train on 3 GPUs"), for at most `limit_s` seconds; None: until Ctrl-C."""

    def __init__(self, what: str, limit_s: float | None, after: str = "", always: bool = False) -> None:
        """`after`: a sentence to add when the time is up. `always`: announce the wait even without a terminal."""
        self._what = what
        self._limit_s = limit_s
        self._after = after
        self._tells = always or sys.stderr.isatty()
        self._began = time.monotonic()
        self._said: str | None = None

    def pause(self, detail: str = "") -> None:
        """Wait a moment. `detail`: the present obstacle. Raises RequestRefused when the time is up,
        with `what`, `detail` and `after` in its text."""
        waited_s = time.monotonic() - self._began
        in_the_way = f": {render.printable(detail)}" if detail else ""
        if self._limit_s is not None and waited_s >= self._limit_s:
            raise RequestRefused(f"waited {render.span(self._limit_s)} for {self._what}{in_the_way}{self._after}")
        words = SECONDS.sub("", detail)
        if waited_s >= SAID_AFTER_S and self._tells and words != self._said:
            limit = "Ctrl-C ends the waiting" if self._limit_s is None else f"at most {render.span(self._limit_s)}"
            if self._said is None:
                say(f"elasticctl: waits for {self._what} ({limit}){in_the_way}")
            elif detail:
                say(f"elasticctl: still waits{in_the_way}")
            self._said = words
        time.sleep(POLL_S)


def limit_s(text: str | None) -> float | None:
    """Return the seconds of `--timeout`; None: not given. Raises UserError."""
    from ..protocol.durations import duration_s

    if text is None:
        return None
    if len(text) > 40:
        raise UserError("--timeout: is too long for a duration")
    return duration_s(text, "--timeout")
