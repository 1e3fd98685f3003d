"""Why a demo ends before its end."""

from __future__ import annotations


class DemoFailed(Exception):
    """Something that the demo shows did not work. ``str(error)`` says what."""


class Interrupted(Exception):
    """Somebody wants the demo to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"signal {signal_number}")
        self.exit_code = 128 + signal_number
