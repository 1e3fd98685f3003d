"""Words by which messages show a value of a script."""

from __future__ import annotations

from typing import Any

SHOWN = 48  # characters of a value's text in messages


def shown(value: Any) -> str:
    """Return a few words for a plain value."""
    return short(repr(value[: 2 * SHOWN] if type(value) in (str, bytes) else value if _is_small(value) else "…"))


def element(value: Any) -> str:
    """Return the text of a tensor's element, with the digits of a 32-bit float."""
    return f"{value:.7g}" if type(value) is float else shown(value)


def _is_small(value: Any) -> bool:
    return type(value) is not int or value.bit_length() < 4096  # Python refuses to print larger integers


def short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def a_kind(kind: type) -> str:
    name = kind.__name__
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def counted(kind: type, count: int) -> str:
    return f"{'an' if kind.__name__[:1] in 'aeiouAEIOU' else 'a'} {kind.__name__} of {count}"


def key_suffix(key: Any) -> str | None:
    """Return the suffix that a key adds to the name of its mapping."""
    if type(key) is str and len(key) <= SHOWN:
        return f"[{key!r}]"
    return f"[{shown(key)}]" if type(key) in (int, bool) else None
