"""CSV tables of users, plain or gzip'd: columns by name, and errors with file, line, column and reason.

Whole columns are converted at once, since traces have tens of thousands of rows. Only after an error the wrong line is
searched.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ...protocol.errors import UserError
from ..arrays import Floats, Ints

GZIP = b"\x1f\x8b"
TAR, TAR_AT = b"ustar", 257
NEWLINE = "\n"
MOST_BYTES = 1 << 30  # limit of an unpacked table
DATE = "2017-10-09 07:01:55"  # an example
MOST = 1e15  # limit of values: no meaningful time, size or number is larger


@dataclass(frozen=True)
class Table:
    """Rows of a file by column, all as text; `lines`: the line of each row in the file."""

    source: str
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def wrong(self, row: int, column: str, reason: str) -> UserError:
        return UserError(f"{self.source}: line {self.lines[row]}, column {column}: {reason}")

    def texts(self, column: str) -> Sequence[str]:
        """Return the values of a column. Raises UserError if one is empty."""
        values = self.columns[column]
        if "" in values:
            raise self.wrong(values.index(""), column, "empty")
        return values

    def numbers(self, column: str, least: float = 0.0, wanted: str = "a number") -> Floats:
        """Return the values of a column as numbers. Raises UserError if one is not finite or below `least`.

        `wanted`: the name of a valid value in errors.
        """
        values = self.columns[column]
        try:
            numbers = np.array(values, dtype=np.str_).astype(np.float64)
        except ValueError:
            raise self.wrong(*self._first_text(column, wanted)) from None
        bad = ~(np.abs(numbers) <= MOST)  # nan and infinite too
        if bad.any():
            row = int(bad.argmax())
            raise self.wrong(row, column, f"{values[row]!r} is not a number that can be reckoned with")
        if (numbers < least).any():
            row = int((numbers < least).argmax())
            raise self.wrong(row, column, f"{values[row]} is below {least:g}")
        return numbers

    def whole(self, column: str, least: int = 1) -> Ints:
        """Return the values of a column as `numbers`, for counts."""
        numbers = self.numbers(column, least)
        broken = numbers != np.floor(numbers)
        if broken.any():
            row = int(broken.argmax())
            raise self.wrong(row, column, f"{self.columns[column][row]} is not a whole number")
        return numbers.astype(np.int64)

    def times(self, column: str) -> Floats:
        """Return the values of a column in seconds, from numbers, or from dates and times of day (taken as UTC without
        a time zone)."""
        values = self.columns[column]
        if values[0].count("-") < 2:
            return self.numbers(column, wanted=f"a number of seconds; either all times are, or all are like {DATE}")
        seconds = np.empty(len(values))
        zoned = None
        for row, value in enumerate(values):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                reason = f"{value!r} is not a date and time like {DATE}" if value else "empty"
                raise self.wrong(row, column, reason) from None
            if zoned is None:
                zoned = moment.tzinfo is not None
            elif zoned != (moment.tzinfo is not None):
                reason = f"{value} has {'no' if zoned else 'a'} time zone, unlike {values[0]} in line {self.lines[0]}"
                raise self.wrong(row, column, reason)
            seconds[row] = (moment if zoned else moment.replace(tzinfo=UTC)).timestamp()
        return seconds

    def where(self, conditions: Mapping[str, Sequence[str]]) -> Table:
        """Return the rows with one of the given values in each named column. Raises UserError if there are none."""
        keep = np.ones(len(self), dtype=np.bool_)
        for column, wanted in conditions.items():
            if column not in self.columns:
                known = ", ".join(self.columns)
                raise UserError(f"{self.source}: line 1: no column {column!r} to pick rows by; there are {known}")
            values = self.columns[column]
            allowed = set(wanted)
            keep &= np.fromiter((value in allowed for value in values), dtype=np.bool_, count=len(self))
            if not keep.any():
                some = listed(dict.fromkeys(values))
                raise UserError(f"{self.source}: column {column}: no row has {' or '.join(wanted)}; there are {some}")
        return self if keep.all() else self.only(np.flatnonzero(keep))

    def only(self, rows: Ints) -> Table:
        """Return these rows of the table."""
        chosen = rows.tolist()
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        return Table(self.source, columns, [self.lines[row] for row in chosen])

    def _first_text(self, column: str, wanted: str) -> tuple[int, str, str]:
        """Return row, column and reason of the first value that is not a number."""
        for row, value in enumerate(self.columns[column]):
            try:
                np.array([value], dtype=np.str_).astype(np.float64)
            except ValueError:
                return row, column, f"{value!r} is not {wanted}" if value else "empty"
        raise AssertionError("every value is a number by itself")


def read(path: Path) -> Table:
    """Return the table in `path`. Raises UserError, naming file and line, if the file is not a table."""
    return parse(path, text(path))


def parse(path: Path, content: str, delimiter: str = ",", header: Sequence[str] = (), quoted: bool = True) -> Table:
    """Return the table in `content`. header: of a table without one. quoted: values may stand in quotes. A first column
    without a name, as pandas writes its index, is left out.

    Raises UserError as `read`.
    """
    names = list(header)
    rows: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader(
        io.StringIO(content, newline=""),
        strict=True,
        skipinitialspace=True,
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    )
    try:
        for row in reader:
            if not row:
                continue  # an empty line
            if not names:
                names = [name.strip() for name in row]
                continue
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: not CSV: {error}") from None
    if not names:
        raise UserError(f"{path}: line 1: empty; a table with a header line is wanted")
    first = 1 if names[0] == "" and any(names) else 0
    named = [name for name in names if name]
    doubled = next((name for place, name in enumerate(named) if name in named[:place]), None)
    if doubled is not None:
        raise UserError(f"{path}: line 1: two columns are named {doubled!r}")
    if names[first : first + len(named)] != named:
        raise UserError(f"{path}: line 1: column {names.index('', first) + 1} has no name")
    _check_lengths(path, rows, lines, first + len(named), len(names))
    if not rows:
        raise UserError(f"{path}: line 1: a header, and no rows")
    columns = zip(*(row[first : first + len(named)] for row in rows), strict=True)
    return Table(str(path), dict(zip(named, columns, strict=True)), lines)


def listed(values: Iterable[object], most: int = 12) -> str:
    """Return the first `most` values as text for users."""
    texts = [str(value) for value in values]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _check_lengths(path: Path, rows: Sequence[Sequence[str]], lines: Sequence[int], least: int, most: int) -> None:
    """Raise UserError unless every row has a value for every named column; unnamed columns at the end (EasyScale's) may
    be missing."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    wrong = (lengths < least) | (lengths > most)
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(f"{path}: line {lines[row]}: {lengths[row]} values for {least} columns")


def text(path: Path) -> str:
    """Return the text in `path`, plain or gzip'd. Raises UserError, naming file and line, if there is none."""
    try:
        content = path.read_bytes()
        if content.startswith(GZIP):
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise UserError(f"{path}: unpacks to more than {MOST_BYTES} bytes")
        if content[TAR_AT : TAR_AT + len(TAR)] == TAR:
            raise UserError(f"{path}: a tar archive; unpack it first")
        found = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a file") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line}: not text (UTF-8)") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if (at := found.find("\0")) >= 0:
        raise UserError(f"{path}: line {found.count(NEWLINE, 0, at) + 1}: not text")
    return found
