"""Tables that are readable on a terminal of any width. Pure.

A table is wider than most terminals. These parts give way, in this order, until it fits:

* the note of a row (why a job waits, the trouble of a server) is moved to lines of its own below the row;
* the first column, which names the row, loses the middle of long names, but not their end, which distinguishes them;
* columns with `words` join a line of details below the row, the least wanted first.

So no number or note is ever shortened, and no value is left out. A program that reads a pipe gets one line for each
row, of any length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GAP = "  "
INDENT = "  "
NARROW_NOTE = 30  # least width of a note in a column of its own, if the note needs that much
NAMED = 16  # width to which the first column shrinks before others give way
SHORTEST = 10  # width to which it shrinks if no other column can give way
ELLIPSIS = "…"
COLUMN = re.compile(r"(?:^|(?<=\S)) {2,}(?=\S)")  # the gap before a column

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}


@dataclass(frozen=True)
class Column:
    """A column of a table. `words`: template of a value in a row's line of details, such as "{} old"; empty: always a
    column.
    """

    title: str
    right: bool = False
    words: str = ""
    wanted: int = 0  # importance: of the columns with `words`, the least wanted gives way first


@dataclass(frozen=True)
class Cell:
    """A value. Empty values ("-") do not appear among details."""

    text: str
    style: str = ""

    @property
    def tells(self) -> bool:
        return self.text not in ("", "-")


@dataclass(frozen=True)
class Row:
    """A row. `notes`: sentences about it, each on a new line where they do not stand in a column."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table. The first column names the row."""

    columns: tuple[Column, ...]
    rows: Sequence[Row]
    note_title: str = "NOTE"


def lines(table: Table, width: int | None, colour: bool) -> Iterator[str]:
    """Yield the table's lines for a terminal of `width` columns; None: for a program."""
    for part in parts(table, width, colour):
        yield from part


def parts(table: Table, width: int | None, colour: bool) -> Iterator[Iterator[str]]:
    """Yield the lines of the table's head, then those of each row, which are made when they are asked for."""
    widths = [
        max([cell_len(column.title), *(cell_len(row.cells[at].text) for row in table.rows)])
        for at, column in enumerate(table.columns)
    ]
    note = max((cell_len("; ".join(row.notes)) for row in table.rows), default=0)
    used = sum(widths) + len(GAP) * (len(widths) - 1) + (len(GAP) + min(note, NARROW_NOTE) if note else 0)
    beside = width is None or used <= width
    shown = list(range(len(widths))) if width is None or beside else _fitted(table.columns, widths, width)
    yield iter([_head(table, shown, widths, beside and note > 0, colour)])
    for row in table.rows:
        yield _row(table, row, shown, widths, width, beside, colour)


def _fitted(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Return the columns that stay in the row; reduces `widths[0]` if necessary."""
    shown = list(range(len(widths)))

    def excess() -> int:
        return sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1) - width

    def shorten(least: int) -> None:
        widths[0] = min(widths[0], max(least, widths[0] - max(0, excess())))

    shorten(NAMED)
    for at in sorted((at for at in shown if columns[at].words), key=lambda at: columns[at].wanted):
        if excess() > 0:
            shown.remove(at)
    shorten(max(SHORTEST, cell_len(columns[0].title)))
    return shown


def _head(table: Table, shown: Sequence[int], widths: Sequence[int], noted: bool, colour: bool) -> str:
    cells = [_padded(table.columns[at].title, widths[at], table.columns[at].right) for at in shown]
    return painted(GAP.join([*cells, *([table.note_title] if noted else [])]).rstrip(), "bold", colour)


def _row(
    table: Table, row: Row, shown: Sequence[int], widths: Sequence[int], width: int | None, beside: bool, colour: bool
) -> Iterator[str]:
    columns = table.columns
    cells = []
    for at in shown:
        text = middle(row.cells[at].text, widths[at]) if at == 0 else row.cells[at].text
        cells.append(_padded(text, widths[at], columns[at].right, row.cells[at].style, colour))
    first = GAP.join(cells)
    if beside:
        yield from _beside(first, sum(widths) + len(GAP) * len(widths), row.notes, width)
        return
    yield first.rstrip()
    assert width is not None
    hidden = [at for at in range(len(columns)) if at not in shown and row.cells[at].tells]
    details = ", ".join(columns[at].words.format(row.cells[at].text) for at in hidden)
    for text in filter(None, (details, *row.notes)):
        for line in wrapped(text, max(SHORTEST, width - len(INDENT))):
            yield INDENT + line


def _beside(first: str, used: int, notes: Sequence[str], width: int | None) -> Iterator[str]:
    """Yield a row with its notes in a column of their own, wrapped there."""
    text = "; ".join(notes)
    if not text:
        yield first.rstrip()
        return
    lines = [text] if width is None else wrapped(text, max(SHORTEST, width - used))
    yield f"{first}{GAP}{lines[0]}"
    for line in lines[1:]:
        yield f"{'':{used}}{line}"


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` columns, broken between words, and within a word that is longer than a
    line.
    """
    found, line, used = [], "", 0
    for word in text.split(" "):
        long = cell_len(word)
        if line and used + 1 + long > width:
            found.append(line)
            line, used = "", 0
        while long > width:
            head = _head_of(word, width)
            found.append(head)
            word = word[len(head) :]
            long = cell_len(word)
        line, used = (f"{line} {word}", used + 1 + long) if line else (word, long)
    return [*found, line] if line or not found else found


def hung(line: str, width: int) -> Iterator[str]:
    """Yield a line of columns for a terminal of `width` columns: broken between words, the rest below where its last
    column begins. A word that is longer than a line, such as a path, stays whole, so that it can be copied.
    """
    if cell_len(line) <= width:
        yield line
        return
    column = max((found.end() for found in COLUMN.finditer(line) if found.end() <= width // 2), default=len(INDENT))
    head, indent = line[:column], " " * column
    words, text = line[column:].split(" "), head
    for at, word in enumerate(words):
        joined = f"{text} {word}" if at else text + word
        if text.strip() and text != head and cell_len(joined) > width:
            yield text.rstrip()
            text = indent + word
        else:
            text = joined
    yield text.rstrip()


def middle(text: str, width: int) -> str:
    """Return `text`, without a part of its middle if it is too long. A number at its end stays whole where there is
    room for it.
    """
    if cell_len(text) <= width:
        return text
    number = len(text) - len(text.rstrip("0123456789"))
    end = _head_of(text[::-1], max((width - 1) // 2, min(number + 1, width - 2)))[::-1]
    return _head_of(text, width - 1 - cell_len(end)) + ELLIPSIS + end


def painted(text: str, style: str, colour: bool) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if colour and style else text


def _padded(text: str, width: int, right: bool, style: str = "", colour: bool = False) -> str:
    room = " " * (width - cell_len(text))
    shown = painted(text, style, colour)
    return room + shown if right else shown + room


def _head_of(text: str, width: int) -> str:
    """Return the longest prefix that fits, at least one character."""
    used = 0
    for at, character in enumerate(text):
        used += cell_len(character)
        if used > width:
            return text[: max(1, at)]
    return text


def cell_len(text: str) -> int:
    """Return the number of terminal columns that `text` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)
