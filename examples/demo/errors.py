"""Exceptions that end the demo early."""

from __future__ import annotations


class DemoFailed(Exception):
    """A part of the demo did not work. ``str(error)`` names the part."""


class Interrupted(Exception):
    """A signal has asked for the end of the demo."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"signal {signal_number}")
        self.exit_code = 128 + signal_number
