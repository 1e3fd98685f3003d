"""Calls of `run.save` in a script's source: the variables that they read, and the calls that only the leader reaches.

Only the source's syntax is read. A condition that names a leader, a rank or a main process is assumed to hold on one
worker only: `if run.is_leader:`, `if rank == 0:`, `if not args.is_main_process: return`.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType

from .own_code import directories, is_own_file
from .syntax import PARSED, children, parse, walk

_LEADER = re.compile(r"\b(is_)?(leader|leads|master|main|chief)\b|rank\b|main_process\b|_zero\b")
_KEEPING = frozenset({"dict", "list", "tuple", "vars", "float", "int", "sum", "min", "max", "len", "copy", "deepcopy"})
ROUNDS = 4  # number of assignments that are followed backwards

_Block = Sequence[ast.stmt]


def is_for_leader(frame: FrameType | None) -> bool:
    """Return whether the script reaches this call only on the leader, according to its source.

    frame: of the call or inside it.
    """
    own = directories()
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_own_file(file, own) and any(line in lines for lines in _leaders_lines(file)):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _leaders_lines(file: str) -> tuple[range, ...]:
    try:
        return _of_leader(parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError, RecursionError):
        return ()


@functools.lru_cache(PARSED)
def _of_leader(tree: ast.Module) -> tuple[range, ...]:
    """Return the lines that only the leader reaches."""
    return tuple(_leaders(tree))


def _leaders(tree: ast.Module) -> Iterator[range]:
    for node in walk(tree):
        match node:
            case ast.If(test=test, body=body, orelse=orelse) if _names_leader(tree, test):
                yield _lines(orelse if _is_not(test) else body)
            case ast.IfExp(test=test, body=expression) if _names_leader(tree, test):
                yield range(expression.lineno, (expression.end_lineno or expression.lineno) + 1)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from _behind_return(tree, block)


def _behind_return(tree: ast.Module, block: _Block) -> Iterator[range]:
    """Yield the rest of a block after `if not run.is_leader: return`."""
    for position, statement in enumerate(block):
        if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return | ast.Continue):
            continue
        if _is_not(statement.test) and _names_leader(tree, statement.test):
            yield _lines(block[position + 1 :])


def _lines(block: _Block) -> range:
    return range(block[0].lineno, (block[-1].end_lineno or block[-1].lineno) + 1) if block else range(0)


def _is_not(test: ast.expr) -> bool:
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[ast.NotEq() | ast.Gt()]):
            return True
    return False


def _names_leader(tree: ast.Module, test: ast.expr) -> bool:
    """Return whether a condition, or the value of a variable in it, names a leader."""
    if _LEADER.search(ast.unparse(test)):
        return True
    return any(_LEADER.search(ast.unparse(value)) for name in _truths(test) for value in _assigned(tree).get(name, ()))


@functools.lru_cache(PARSED)
def _assigned(tree: ast.Module) -> Mapping[str, Sequence[ast.expr]]:
    """Return the values that each variable is assigned."""
    found: dict[str, list[ast.expr]] = {}
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def _truths(test: ast.expr) -> Iterator[str]:
    """Yield the variables of which a condition tests the truth, or equality to a value."""
    match test:
        case ast.Name(id=name) | ast.Compare(left=ast.Name(id=name), ops=[ast.Eq() | ast.NotEq()]):
            yield name
        case ast.UnaryOp(operand=operand):
            yield from _truths(operand)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _truths(value)


def saved_names(tree: ast.Module) -> frozenset[str]:
    """Return the variables and attributes (`history`, `self.best`) that determine saved files.

    These are the arguments of `.save(what, path)`, or of a function of the script that passes its argument to it; and
    the conditions under which it is called or the loop over epochs is left. Calls that only the leader reaches do not
    count.
    """
    leaders = _of_leader(tree)
    savers = {
        node.name
        for node in walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(_reads(call.args[0]) & {each.arg for each in node.args.args} for call, _ in _calls(node, (), {"save"}))
    }
    found: set[str] = set()
    for call, tests in _calls(tree, (), {"save"} | savers):
        if not any(call.lineno in lines for lines in leaders):
            for node in (*call.args, *(each.value for each in call.keywords), *tests):
                found.update(_kept(node))
    for test in _ends(tree):
        found.update(_kept(test))
    bindings = list(_bindings(tree))
    for _ in range(ROUNDS):
        more = {name for bound, value in bindings if is_part(bound, found) for name in _kept(value)}
        if more <= found:
            break
        found |= more
    return frozenset(found)


def _ends(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the conditions under which a loop over epochs is left."""
    for loop in walk(tree):
        if (
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Call)
            and ast.unparse(loop.iter.func).endswith("epochs")
        ):
            for node in walk(loop):
                if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break | ast.Return):
                    yield node.test


def _calls(
    node: ast.AST, tests: tuple[ast.expr, ...], names: Collection[str]
) -> Iterator[tuple[ast.Call, tuple[ast.expr, ...]]]:
    """Yield each call with arguments of a function or method with one of these names, with the conditions around it."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[_, *_]) if name in names:
            yield node, tests
    if isinstance(node, ast.If):
        tests = (*tests, node.test)
    for child in children(node):
        yield from _calls(child, tests, names)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield variables with the values that they or their items are bound to or load, and with the conditions around
    the binding.
    """
    for node in walk(tree):
        if isinstance(node, ast.If):
            for name in {
                each.id for each in walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }:
                yield name, node.test
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if path := _path(target):
                    yield path, node.value
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="load_state_dict"), args=[value, *_]):
                yield _path(owner), value


def is_part(name: str, names: Collection[str]) -> bool:
    """Return whether a name is one of these names, contains one, or belongs to one. `a.b` belongs to `a`."""
    return any(name == each or name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in names)


def _path(node: ast.expr) -> str:
    """Return a variable, or an attribute of one, up to the first item: `self.log` of `self.log[0].x`. "": the node is
    neither.
    """
    names: list[str] = []
    while isinstance(node, ast.Subscript | ast.Attribute):
        names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


def _kept(node: ast.AST) -> Iterator[str]:
    """Yield the variables and attributes of which an expression contains the values, as opposed to arguments of
    computations.
    """
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and (path := _path(node)):
        yield path
        if isinstance(node, ast.Subscript):
            yield from _kept(node.slice)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        yield from _kept(node.func.value)  # for example `x.state_dict()`
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for each in (*node.args, *(each.value for each in node.keywords)) if name in _KEEPING else ():
            yield from _kept(each)
    else:
        for child in children(node):
            yield from _kept(child)


def _reads(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
