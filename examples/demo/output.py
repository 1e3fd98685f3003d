"""Where the demo talks to: a live screen on a terminal, else one plain line for each thing that happened."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live

from elasticd.protocol.messages import JobView

from .screen import Scene, render
from .words import changes

SCREEN_INTERVAL_S = 0.2
ECHO_COLUMNS = 3  # left free at the right, so that the terminal's "^C" does not push the screen up by a line


class Output:
    """Takes scenes and lines. A reader that has gone away (``demo | head``) ends the demo by BrokenPipeError, once."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._shown_s = 0.0
        self._jobs: tuple[JobView, ...] = ()
        self._notes: list[str] = []
        self._began_s = time.monotonic()
        self._gone = False

    def __enter__(self) -> Output:
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def note(self, text: str) -> None:
        """Something that the demo does, or has been told by `elasticctl`."""
        self._notes.append(text)
        if self._live is None:
            self.line(f"{time.monotonic() - self._began_s:6.1f} s  {text}")

    def scene(self, scene: Scene) -> None:
        """The newest state of things."""
        for text in changes(self._jobs, scene.jobs):
            self.note(text)
        self._jobs = scene.jobs
        now = time.monotonic()
        if self._live is not None and now - self._shown_s >= SCREEN_INTERVAL_S:
            self._shown_s = now
            shown = Scene(scene.now_s, scene.began_s, scene.gpus, scene.jobs, tuple(self._notes), scene.doing)
            width = self._console.width - ECHO_COLUMNS
            self._live.update(Constrain(render(shown, width), width), refresh=True)

    def line(self, text: str) -> None:
        """A line that stays. Never lets anything but the first failure to write through: cleaning up goes on."""
        if self._gone:
            return
        try:
            print(text, flush=True)
        except OSError:
            self._gone = True
            # What is still buffered must not fail again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise BrokenPipeError from None
