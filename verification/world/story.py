"""What happened in a history, in words; written only when somebody asks for it."""

from __future__ import annotations

from .timeline import START_S, Timeline


class Story:
    """Lines with their times. `on` is False unless somebody reads them: callers look before they make a text."""

    def __init__(self, timeline: Timeline, on: bool = False) -> None:
        self.on = on
        self.lines: list[str] = []
        self._timeline = timeline

    def say(self, text: str) -> None:
        """Add a line."""
        if self.on:
            self.lines.append(f"{self._timeline.now - START_S:9.3f} {text}")
