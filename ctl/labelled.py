"""Texts with labels beside them, wrapped to the terminal, as `explain` shows them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .formatting import printable

LABEL = 12  # columns of a label


@dataclass(frozen=True)
class Part:
    """A text with a label; "": the text belongs to the last label. `command`: the text is a command line."""

    label: str
    text: str
    command: bool = False


class Page:
    """Page of labelled parts, with text wrapped beside the labels."""

    def __init__(self, width: int | None) -> None:
        self._width = width

    def lines(self, parts: Iterable[Part]) -> Iterator[str]:
        for part in parts:
            yield from self.whole(part.text) if part.command else self.part(part.label, part.text)

    def part(self, label: str, text: str) -> Iterator[str]:
        """Yield the lines of one part. `text` may come from a job or an operator."""
        indent = f"  {label:<{LABEL}}" if label or self._begun else ""
        self._begun = True
        if self._width is None:
            yield (indent + printable(text)).rstrip()
            return
        yield from textwrap.wrap(
            printable(text),
            max(self._width, 40),
            initial_indent=indent,
            subsequent_indent=" " * (len(indent) or 2),
            break_long_words=False,
            break_on_hyphens=False,
        )

    def whole(self, command: str) -> Iterator[str]:
        """Yield a command on one line, unbroken, so that it can be copied."""
        yield f"{'':<{2 + LABEL}}    {printable(command)}"

    _begun = False
