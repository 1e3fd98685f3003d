"""The last lines of jobs' output, numbered, and their last events; shared by all viewers."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from ...protocol.messages import Events, EventView, GetEvents
from ..context import Context
from ..formatting import printable
from ..logs import Follower, Line, Wanted

MOST_LINES = 2000  # kept lines of a job
MOST_CHARACTERS = 4000  # shown characters of a line
MOST_KEPT = 16  # jobs whose logs or events are kept
LAST_EVENTS = 200
EVENTS_PAGE = 1000


@dataclass(frozen=True)
class TailChunk:
    """The kept lines of a tail. The first one has the number `first`."""

    tail: str  # random id; line numbers are valid for this tail only
    first: int
    lines: tuple[list[Any], ...]  # [time_s, worker, stream, text]
    several: bool
    ended: bool
    troubles: tuple[str, ...]

    def after(self, tail: str, number: int) -> dict[str, Any]:
        """Return the lines from `number` on if `tail` is this one, else all lines. `number`: the viewer's next line."""
        known = tail == self.tail and self.first <= number
        skipped = max(0, number - self.first) if known else 0
        return {
            "tail": self.tail,
            "anew": not known,
            "next": self.first + len(self.lines),
            "lines": self.lines[skipped:],
            "several": self.several,
            "ended": self.ended,
            "troubles": self.troubles,
        }


class Tail:
    """Kept lines of a job's output, and the position of reading. For one thread."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._begin(None)

    def _begin(self, shared: Context | None) -> None:
        self._shared = shared
        self._name = secrets.token_hex(4)
        self._follower = Follower(Wanted(tail=MOST_LINES))
        self._lines: deque[list[Any]] = deque(maxlen=MOST_LINES)
        self._count = 0

    def read(self, shared: Context) -> TailChunk:
        """Read the new output, and return the kept lines. Raises the errors of `Context.ask`.

        After a reconnection the cluster may be another one, so its logs are read from their beginning.
        """
        if shared is not self._shared:
            self._begin(shared)
        view = shared.job(self._job)
        lines, came = self._follower.more(shared, view)
        self._lines.extend(map(_shown, lines))
        self._count += len(lines)
        return TailChunk(
            self._name,
            self._count - len(self._lines),
            tuple(self._lines),
            self._follower.several,
            view.phase.final and not came,
            tuple(map(printable, self._follower.troubles)),
        )


def _shown(line: Line) -> list[Any]:
    text = printable(line.text)
    more = len(text) - MOST_CHARACTERS
    shown = f"{text[:MOST_CHARACTERS]} … {more:,} characters more" if more > 0 else text
    return [line.time_s, line.worker.rpartition(".")[2], line.stream, shown]


class Tails:
    """Tails of the jobs that viewers have requested last."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, Tail] = OrderedDict()

    def of(self, job: str) -> Tail:
        found = self._tails.setdefault(job, Tail(job))
        self._tails.move_to_end(job)
        while len(self._tails) > MOST_KEPT:
            self._tails.popitem(last=False)
        return found


class Stories:
    """Last events of the requested jobs, and of the cluster (None). For one thread."""

    def __init__(self) -> None:
        self._shared: Context | None = None
        self._stories: OrderedDict[str | None, tuple[int, deque[EventView]]] = OrderedDict()

    def of(self, shared: Context, job: str | None) -> tuple[EventView, ...]:
        """Return the last events. After a reconnection all events are read again, as the cluster may be another one."""
        if shared is not self._shared:
            self._shared = shared
            self._stories.clear()
        last, events = self._stories.get(job, (0, deque[EventView](maxlen=LAST_EVENTS)))
        while True:
            page = shared.ask(GetEvents(after=last, job=job, limit=EVENTS_PAGE), Events).events
            events.extend(page)
            last = page[-1].number if page else last
            self._stories[job] = last, events
            if len(page) < EVENTS_PAGE:
                break
        self._stories.move_to_end(job)
        while len(self._stories) > MOST_KEPT:
            self._stories.popitem(last=False)
        return tuple(events)
