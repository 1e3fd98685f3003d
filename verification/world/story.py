"""The events of a history as text, recorded only on request."""

from __future__ import annotations

from .timeline import START_S, Timeline


class Story:
    """Lines with their times. `on` is False unless the story is wanted: callers check it before they format a text."""

    def __init__(self, timeline: Timeline, on: bool = False) -> None:
        self.on = on
        self.lines: list[str] = []
        self._timeline = timeline

    def say(self, text: str) -> None:
        if self.on:
            self.lines.append(f"{self._timeline.now - START_S:9.3f} {text}")
