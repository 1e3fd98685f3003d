"""Output of the demo: a live screen on a terminal, else one plain line for each event."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live

from elasticd.protocol.messages import JobView

from .descriptions import changes
from .screen import Scene, render

SCREEN_INTERVAL_S = 0.2
ECHO_COLUMNS = 3  # left free at the right, so that the terminal's "^C" does not push the screen up by a line


class Output:
    """Sink of scenes and lines. A closed pipe (``demo | head``) ends the demo by BrokenPipeError, once."""

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
        """Show an action of the demo, or an answer of `elasticctl`."""
        self._notes.append(text)
        if self._live is None:
            self.line(f"{time.monotonic() - self._began_s:6.1f} s  {text}")

    def scene(self, scene: Scene) -> None:
        """Show the newest state."""
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
        """Print a permanent line. Only the first failure to write raises, so that the cleanup goes on."""
        if self._gone:
            return
        try:
            print(text, flush=True)
        except OSError:
            self._gone = True
            # Output still in the buffer must not fail again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise BrokenPipeError from None
