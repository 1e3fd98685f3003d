"""Configuration files: YAML, read once at the start into a frozen struct; every mistake is named with file and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from ..protocol.errors import ElasticError, OperatorError

C = TypeVar("C")

_STEP = re.compile(r"([^.\[\]]+)(?!\])|\[(\d+)\]")  # of the way to a field


def load_yaml(path: Path, kind: type[ElasticError] = OperatorError) -> object:
    """The document in `path` as plain values; an empty file is an empty mapping. Raises `kind`, naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise kind(f"{path}: no such file") from None
    except IsADirectoryError:
        raise kind(f"{path}: is a directory, not a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise kind(f"{path}: cannot be read: {error}") from None
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown line"
        problem = getattr(error, "problem", None) or "not YAML"
        raise kind(f"{path}: {where}: {problem}") from None
    return {} if document is None else document


def load(path: Path, into: type[C], kind: type[ElasticError] = OperatorError) -> C:
    """The file `path` as a value of `into`, a frozen struct. Raises `kind`, naming file, field, what is wrong.

    Declare `into` with ``forbid_unknown_fields=True``: a mistyped option must not be silently without effect.
    """
    return convert(load_yaml(path, kind), into, str(path), kind)


def convert(document: object, into: type[C], source: str, kind: type[ElasticError] = OperatorError) -> C:
    """`document` (plain values) as a value of `into`. Raises `kind`, naming `source` and the field."""
    try:
        return msgspec.convert(document, into, strict=True)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$.") if where else ""
        raise kind(f"{source}: {field + ': ' if field else ''}{message}") from None


def line_of(path: Path, field: str) -> int | None:
    """The line on which `field` ("parameters.thresholds_gpu_s[1]") stands in the YAML file `path`; None: it is not there.

    Of a field that is missing it is the line of what it is missing in.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    line = None
    for name, index in _STEP.findall(field):
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == name), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = node.start_mark.line + 1
    return line
