"""One clock per process: Unix time that never jumps."""

from __future__ import annotations

import time


class Clock:
    """Unix time in seconds, read once at the start and carried on by the monotonic clock, so that it never goes back."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset_s + time.monotonic()
