"""Calls of a script that display values, what they read, and variables that have times as values; read from the source.

No code of the script runs.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from .syntax import called_name, read_names, walk

LOGS = frozenset(
    """
    print log info debug warning set_postfix set_description set_postfix_str add_scalar add_scalars report write flush
    """.split()  # noqa: SIM905
)
CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "process_time", "now", "today"})


def shown(tree: ast.Module) -> frozenset[str]:
    """Return the variables that a call reads that displays values."""
    calls = [node for node in walk(tree) if isinstance(node, ast.Call) and called_name(node) in LOGS]
    return frozenset(name for call in calls for name in read_names(call))


def times(tree: ast.Module) -> frozenset[str]:
    """Return the variables, and the attributes with a dot before, that have times or differences of times as values."""
    values: dict[str, list[ast.expr | None]] = {}

    def assigned(target: ast.expr, value: ast.expr | None) -> None:
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=inner) if len(targets) == len(inner):
                for each, its in zip(targets, inner, strict=True):
                    assigned(each, its)
            case ((ast.Tuple() | ast.List() | ast.Starred() | ast.Subscript()), _):
                for name in (_variable(each) for each in walk(target)):
                    values.setdefault(name, []).append(None)
            case _:
                values.setdefault(_variable(target), []).append(value)

    for node in walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    assigned(target, value)
            case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=value):
                assigned(target, value)
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                assigned(target, None)
            case ast.arg(arg=name):
                values.setdefault(name, []).append(None)
    found = {name for name, every in values.items() if name and None not in every}
    while wrong := {name for name in found if not all(_is_time(each, found) for each in values[name])}:
        found -= wrong
    read: set[str] = set()  # those of `found` that are not computed from constants alone
    while more := {name for name in found - read if any(_reads_clock(each, read) for each in values[name])}:
        read |= more
    return frozenset(read)


def _reads_clock(value: ast.expr | None, read: Collection[str]) -> bool:
    nodes = [] if value is None else walk(value)
    return any(called_name(each) in CLOCKS if isinstance(each, ast.Call) else _variable(each) in read for each in nodes)


def _is_time(value: ast.expr | None, times: Collection[str]) -> bool:
    """Return whether the value is a clock's, computed from such values, or a constant."""
    match value:
        case ast.Constant():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[]) if name in CLOCKS:
            return True
        case ast.Call(func=ast.Name(id="int" | "float" | "round"), args=[inner, *_]) | ast.UnaryOp(operand=inner):
            return _is_time(inner, times)
        case ast.Call(func=ast.Attribute(value=inner, attr="total_seconds"), args=[]):
            return _is_time(inner, times)
        case ast.BinOp(left=left, right=right):
            return _is_time(left, times) and _is_time(right, times)
        case ast.Name() | ast.Attribute():
            return _variable(value) in times
    return False


def _variable(node: ast.AST) -> str:
    """Return a variable, or the name of an attribute with a dot before; "" for other nodes."""
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
