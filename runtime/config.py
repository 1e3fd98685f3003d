"""Configuration files: YAML read into a frozen struct; all mistakes are reported at once, each with file, line and field.

A daemon reads its file when it starts, and again on SIGHUP; `taken` returns the options that then hold.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..protocol.errors import ElasticError, OperatorError

log = logging.getLogger(__name__)

C = TypeVar("C")
S = TypeVar("S", bound=msgspec.Struct)

Look = Callable[[yaml.Node], None]

MOST_CHARACTERS = 2 << 20  # of a file
MOST_VALUES = 200_000
MOST_BRACKETS = 100  # open at one place

_FIELD = re.compile(r"(.+?): (?!line \d)(\w[\w.\[\]]*): ")
_STEP = re.compile(r"([^.\[\]]+)(?!\])|\[(\d+)\]")  # of a field's path


class _Loader(yaml.SafeLoader):
    """Without YAML 1.1's numbers to the base 60 (a range of GPUs written as 2:8 is text, not 128), and with a limit on nested
    brackets: PyYAML's time is quadratic in their number, seconds for 1,000 of them.
    """

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level >= MOST_BRACKETS:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)


def _without_colons(tag: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    return re.compile(f"(?!.*:)(?:{pattern.pattern})", pattern.flags) if number else pattern


_Loader.yaml_implicit_resolvers = {
    first: [(tag, _without_colons(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(path: Path, kind: type[ElasticError] = OperatorError, look: Look | None = None) -> object:
    """Return the document in `path` as plain values; an empty file is an empty mapping. Raises `kind`, naming file and line.

    look: receives the nodes of the document before they are converted to values, and may change them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise kind(f"{path}: no such file") from None
    except IsADirectoryError:
        raise kind(f"{path}: is a directory, not a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise kind(f"{path}: cannot be read: {error}") from None
    return parse_yaml(text, str(path), kind, look)


def parse_yaml(text: str, path: str, kind: type[ElasticError] = OperatorError, look: Look | None = None) -> object:
    """Return the document in a file's text, as `load_yaml`. Refuses short texts that expand to many values or nest deeply."""
    if len(text) > MOST_CHARACTERS:
        raise kind(f"{path}: is longer than {MOST_CHARACTERS} characters")
    try:
        document = _document(text, look)
        if _values_in(document, {}) > MOST_VALUES:
            raise kind(f"{path}: stands for more than {MOST_VALUES} values")
    except RecursionError:
        raise kind(f"{path}: is nested too deeply, or holds itself") from None
    except ValueError as error:  # scalars that PyYAML cannot convert: an impossible date, thousands of digits
        raise kind(f"{path}: holds a value that YAML cannot read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown line"
        problem = getattr(error, "problem", None) or "not YAML"
        if "another document" in problem:  # the second half of PyYAML's sentence
            problem = "holds another document behind ---; write each to a file of its own"
        raise kind(f"{path}: {where}: {problem}") from None
    return {} if document is None else document


def _document(text: str, look: Look | None) -> object:
    """As `yaml.safe_load`, with a look at the nodes in between. Raises yaml.YAMLError, ValueError, RecursionError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if look is not None:
            look(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _values_in(document: object, known: dict[int, int]) -> int:
    """Return the number of values in a document, each counted once per alias that refers to it."""
    if not isinstance(document, dict | list | set | tuple):
        return 1
    found = known.get(id(document))
    if found is None:
        inner = (*document.keys(), *document.values()) if isinstance(document, dict) else document
        found = known[id(document)] = 1 + sum(_values_in(each, known) for each in inner)
    return found


def load(path: Path, into: type[C], kind: type[ElasticError] = OperatorError) -> C:
    """Read the file `path` into the struct `into`. Raises `kind`: a line for each mistake, with file, line and field."""
    document = load_yaml(path, kind)
    mistakes = [mistake.sentence(path) for mistake in examine(document, into, path)]
    if mistakes:
        raise kind("\n".join(mistakes))
    try:
        return convert(document, into, str(path), kind)
    except ElasticError as error:
        raise kind(with_line(str(error))) from None


@dataclass(frozen=True)
class Mistake:
    """One wrong option. `field` is its path from the top: "measuring.steps"; "" for the whole document."""

    line: int | None
    field: str
    text: str

    def sentence(self, path: Path) -> str:
        """Return the mistake as a sentence with file, line and field."""
        where = f"{path}: line {self.line}" if self.line is not None else str(path)
        return f"{where}: {self.field}: {self.text}" if self.field else f"{where}: {self.text}"


def examine(document: object, into: type, path: Path) -> list[Mistake]:
    """Return all options in `document`, read from `path`, that are unknown to the struct `into`, invalid or repeated."""
    if not isinstance(document, dict):
        return [Mistake(None, "", "must be options, one on a line: NAME: VALUE")]
    found = [Mistake(line, name, "is given twice") for line, name in _repeated(path)]
    found += [Mistake(line_of(path, field), field, text) for field, text in _wrong(document, into, "")]
    return sorted(found, key=lambda mistake: mistake.line or 0)


def _wrong(document: Mapping[object, object], into: type, at: str) -> Iterator[tuple[str, str]]:
    known = {field.encode_name: field.type for field in msgspec.structs.fields(into)}
    for name, value in document.items():
        field = f"{at}{name}"
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            yield field, "is unknown" + (f"; {near[0]} is meant?" if near else f"; known are {', '.join(known)}")
        elif isinstance(value, dict) and isinstance(known[name], type) and issubclass(known[name], msgspec.Struct):
            yield from _wrong(value, known[name], f"{field}.")
        elif isinstance(value, float) and not math.isfinite(value):
            yield field, f"{value} is not allowed: a finite number"
        else:
            try:
                msgspec.convert(value, known[name], strict=True)
            except msgspec.ValidationError as error:
                message, _, where = str(error).partition(" - at ")
                yield field + where.strip("`").removeprefix("$"), message[:1].lower() + message[1:]


def _repeated(path: Path) -> Iterator[tuple[int, str]]:
    """Yield names that occur twice in one mapping of a YAML file, each with its line. PyYAML would take the last one."""
    yield from repeated(_nodes_of(path))


def _nodes_of(path: Path) -> yaml.Node | None:
    """Return the nodes of a YAML file; None if it is empty or cannot be read."""
    try:
        return _composed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return None


@functools.lru_cache(maxsize=1)
def _composed(text: str) -> yaml.Node | None:
    """Parse a text once, however many mistakes in it need their line. The nodes must not be changed."""
    node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return node


def repeated(document: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield the line of each name that occurs twice in one mapping of a parsed document, and the name."""
    nodes, known = [("", document)], set[int]()
    while nodes:
        at, node = nodes.pop()
        if not isinstance(node, yaml.MappingNode) or id(node) in known:
            continue
        known.add(id(node))
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                yield key.start_mark.line + 1, f"{at}{key.value}"
            seen.add(key.value)
            nodes.append((f"{at}{key.value}.", value))


def with_line(message: str) -> str:
    """Add the line of the field to a sentence "FILE: FIELD: ...", if the file has the field: for checks that know no lines."""
    found = _FIELD.match(message)
    line = line_of(Path(found[1]), found[2]) if found is not None else None
    return message if found is None or line is None else f"{found[1]}: line {line}: {message[found.start(2) :]}"


def taken(present: S, new: S, safe: frozenset[str]) -> S:
    """Return the options that hold after `new` was read while `present` held: only those in `safe` change in a running daemon.

    Logs each change, and each option that needs a restart.
    """
    names = [name for name in new.__struct_fields__ if getattr(new, name) != getattr(present, name)]
    for name in names:
        if name not in safe:
            log.warning("%s has changed in the configuration: that needs a restart", name)
        elif isinstance(value := getattr(new, name), str | int | float | None):
            log.info("%s is %s now, was %s", name, value, getattr(present, name))
        else:  # the value may hold secrets, as a worker's environment does
            log.info("%s has changed", name)
    return msgspec.structs.replace(present, **{name: getattr(new, name) for name in names if name in safe})


def host_and_port(field: str, address: str) -> tuple[str, int]:
    """Split "127.0.0.1:9464" or "[::1]:9464" into host and port. Raises OperatorError, naming `field`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise OperatorError(f"{field}: {address[:200]!r} is not HOST:PORT, such as 127.0.0.1:9464")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise OperatorError(f"{field}: {address[:200]!r}: an IPv6 address stands in brackets, such as [::1]:9464")
    return host, int(port)


def log_refusal(error: ElasticError) -> None:
    """Log why a new configuration is refused: a running daemon keeps its present one."""
    for line in str(error).splitlines():
        log.error("the configuration is not taken: %s", with_line(line))


def report(path: Path, mistakes: Sequence[str]) -> int:
    """Print the mistakes for ``--check``, and return its exit code."""
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    if not mistakes:
        print(f"{path}: right")
    return 2 if mistakes else 0


def convert(document: object, into: type[C], source: str, kind: type[ElasticError] = OperatorError) -> C:
    """Convert `document` (plain values) to the struct `into`. Raises `kind`, naming `source` and the field."""
    try:
        return msgspec.convert(document, into, strict=True)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$.") if where else ""
        raise kind(f"{source}: {field + ': ' if field else ''}{message}") from None


def line_of(path: Path, field: str) -> int | None:
    """Return the line of `field` ("parameters.thresholds_gpu_s[1]") in the YAML file `path`; None if it is not there.

    For a missing field, return the line of the mapping that lacks it.
    """
    node, line = _nodes_of(path), None
    for name, index in _STEP.findall(field):
        if isinstance(node, yaml.MappingNode):
            pair = next(
                ((key, value) for key, value in reversed(node.value) if key.value == name), None
            )  # the last counts
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = node.start_mark.line + 1
    return line
