"""The widget that shows items: one of them is current, and only visible lines are drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from .views import Item

GUTTER = 2  # columns before each line, which mark the current item
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CURRENT = Style(bold=True, underline=True)


class Lines(ScrollView, can_focus=True):
    """Widget with items below each other."""

    DEFAULT_CSS = "Lines { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; overflow-x: hidden; }"

    def __init__(self) -> None:
        super().__init__()
        self._items: Sequence[Item] = ()
        self._words: tuple[str, ...] = ()
        self._shown: list[Item] = []
        self._rows: list[tuple[int, str]] = []  # index of the item among the shown ones, and the line
        self._choosable: list[int] = []  # numbers of shown items that can be current
        self._current = 0
        self.points = True  # whether an item is current; else keys only scroll

    @property
    def room(self) -> int:
        """Return the columns of a line."""
        return max(20, self.size.width - GUTTER - 1)

    @property
    def current(self) -> Item | None:
        return self._shown[self._current] if self.points and self._current < len(self._shown) else None

    def put(self, items: Sequence[Item], anew: bool, ends: bool = False, at: str = "") -> None:
        """Show other items. `anew`: of another page, with the job `at` as the current one. `ends`: go on showing the last
        line if it is shown now.
        """
        at_end = ends and (anew or self.scroll_offset.y >= self.max_scroll_y)
        job = at if anew else self.current.job if self.current is not None else ""
        if anew:
            self._current = 0
        self._items = items
        self._arrange(job)
        if anew:
            self.scroll_to(y=0, animate=False)
            if at:
                self.call_after_refresh(self._reveal)
        if at_end:
            self.call_after_refresh(self.scroll_to, y=len(self._rows), animate=False)

    def filter(self, text: str) -> None:
        """Show only titles, and items that contain all words of `text`."""
        self._words = tuple(text.lower().split())
        self._arrange(self.current.job if self.current is not None else "")

    def _arrange(self, job: str) -> None:
        """Determine the shown items. The item of `job` stays the current one, at its new place."""
        self._shown = [item for item in self._items if item.fixed or not self._words or self._matches(item)]
        if job:
            same = (at for at, item in enumerate(self._shown) if item.job == job)
            self._current = next(same, self._current)
        self._choosable = [at for at, item in enumerate(self._shown) if item.job and not item.fixed]
        if self._choosable:
            self._current = min(self._choosable, key=lambda at: (abs(at - self._current), at))
        self._flatten()

    def _matches(self, item: Item) -> bool:
        text = COLOURS.sub("", " ".join(item.lines)).lower()
        return all(word in text for word in self._words)

    def _flatten(self) -> None:
        rows: list[tuple[int, str]] = []
        for number, item in enumerate(self._shown):
            if item.folded and (number != self._current or not self.points):
                rows.append((number, item.first))
            else:
                rows += ((number, line) for line in item.lines)
        self._rows = rows
        self.virtual_size = Size(self.size.width, len(rows))
        self.refresh()

    def step(self, by: int) -> None:
        """Go to a later or earlier item, or scroll where there is no current one."""
        choosable = self._choosable
        if not self.points or not choosable:
            self.scroll_relative(y=by, animate=False)
            return
        place = choosable.index(self._current) if self._current in choosable else 0
        self._current = choosable[min(len(choosable) - 1, max(0, place + by))]
        self._flatten()
        self._reveal()

    def page(self, by: int) -> None:
        """Go to a later or earlier screen."""
        self.step(by * max(1, self.size.height - 2))

    def edge(self, last: bool) -> None:
        """Go to the first or last item."""
        if self.points:
            self.step(len(self._shown) * (1 if last else -1))
        self.scroll_to(y=len(self._rows) if last else 0, animate=False)

    def _reveal(self) -> None:
        """Scroll so that the current item is visible; at the first one so that the page's beginning is."""
        places = [place for place, (number, _) in enumerate(self._rows) if number == self._current]
        if not places:
            return
        top, height = self.scroll_offset.y, self.size.height
        if places[0] < top:
            self.scroll_to(y=places[0], animate=False)
        elif places[-1] >= top + height:
            self.scroll_to(y=places[-1] - height + 1, animate=False)

    def render_line(self, y: int) -> Strip:
        place = self.scroll_offset.y + y
        width = self.size.width
        if place >= len(self._rows):
            return Strip.blank(width)
        number, line = self._rows[place]
        chosen = self.points and number == self._current and bool(self._shown[number].job)
        first = place == 0 or self._rows[place - 1][0] != number
        text = Text.from_ansi(line, no_wrap=True, end="")
        if chosen and first:
            text.stylize(CURRENT)
        whole = Text("> " if chosen and first else "  ", no_wrap=True, end="").append_text(text)
        return Strip(whole.render(self.app.console)).crop_extend(0, width, None)

    def texts(self) -> list[str]:
        """Return the shown lines without colours."""
        return [COLOURS.sub("", line) for _, line in self._rows]
