"""Variables of a script of which only logs need the values: what calls display, and times; read from the source.

No code of the script runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from .syntax import called_name, children, mutates, read_names, root_name, walk

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


def only_logged(tree: ast.Module, acts: Callable[[ast.Call], bool] = lambda call: False) -> frozenset[str]:
    """Return the variables that are read only in calls that display values, in changes of themselves, and in changes of
    other such variables.

    A condition counts as read by all statements under it. A change of a part of an object is one of each variable that may
    refer to the object: `for group in optimizer.param_groups: group["lr"] = rate` changes `optimizer`. acts: whether a call may
    change more than the variable to which its result is bound (`effects`).
    """
    changed: set[str] = set()
    aliases = _aliases(tree)
    reads: list[tuple[str, frozenset[str]]] = []  # a variable, and the variables that its value reaches

    def visit(node: ast.AST, targets: frozenset[str] | None) -> None:
        """targets: the variables that the value of this node reaches; None: anything."""
        match node:
            case ast.Expr(value=ast.Call() as call):
                function, name = call.func, called_name(call)
                own = root_name(function.value) if isinstance(function, ast.Attribute) else ""
                if acts(call):
                    targets = None
                elif name in LOGS:
                    targets = frozenset()
                elif own and mutates(name):
                    changed.add(own)
                    targets = frozenset({own, *aliases.get(own, ())})
                for child in children(call):
                    visit(child, targets)
                return
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                written = node.targets if isinstance(node, ast.Assign) else [node.target]
                roots = frozenset(root_name(each) for target in written for each in _leaves(target))
                if "" not in roots:
                    changed.update(roots)
                    targets = roots | _referring(written, aliases)
                for child in children(node):
                    visit(child, targets)
                return
            case ast.If(test=test, body=body, orelse=orelse):
                inside = [_effect(statement, aliases, acts) for statement in (*body, *orelse)]
                visit(test, None if None in inside else frozenset().union(*(each for each in inside if each)))
                for statement in (*body, *orelse):
                    visit(statement, None)
                return
            case ast.Call() if targets is not None and acts(node):
                targets = None
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                changed.add(name)
                visit(value, None if targets is None else targets | {name})
                return
            case ast.Name(id=name, ctx=ast.Load()):
                reads.append((name, frozenset({""}) if targets is None else targets))
        for child in children(node):
            visit(child, targets)

    visit(tree, None)
    logged = set(changed)
    while wrong := {name for name, reached in reads if name in logged and not reached <= logged | {name}}:
        logged -= wrong
    return frozenset(logged)


def _aliases(tree: ast.Module) -> dict[str, set[str]]:
    """Return the variables that refer to a part of another one's value, with those variables; "" for parameters of functions."""
    found: dict[str, set[str]] = {}

    def refers(target: ast.expr, value: ast.expr) -> None:
        for each in (one for leaf in _leaves(target) for one in walk(leaf) if isinstance(one, ast.Name)):
            found.setdefault(each.id, set()).update(read_names(value) - {each.id})

    for node in walk(tree):
        match node:
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                refers(target, value)
            case ast.comprehension(target=target, iter=value):
                refers(target, value)
            case ast.Assign(targets=targets, value=ast.Attribute() | ast.Subscript() | ast.Name() as value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        refers(target, value)
            case ast.arg(arg=name):
                found.setdefault(name, set()).add("")
    return found


def _referring(written: Sequence[ast.expr], aliases: Mapping[str, set[str]]) -> frozenset[str]:
    """Return the variables that refer, too, to objects of which these targets are parts."""
    parts = [each for target in written for each in _leaves(target) if not isinstance(each, ast.Name)]
    return frozenset(name for each in parts for name in aliases.get(root_name(each), ()))


def _effect(
    statement: ast.stmt, aliases: Mapping[str, set[str]], acts: Callable[[ast.Call], bool]
) -> frozenset[str] | None:
    """Return the variables that a statement changes if it does nothing else but display values; None: it may do more."""
    if any(isinstance(each, ast.Call) and acts(each) for each in walk(statement)):
        return None
    match statement:
        case ast.Assign() | ast.AugAssign():
            written = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            roots = frozenset(root_name(each) for target in written for each in _leaves(target))
            return roots | _referring(written, aliases)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name in LOGS:
            return frozenset()
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name))) if mutates(name) and root_name(owner):
            return frozenset({root_name(owner), *aliases.get(root_name(owner), ())})
    return None


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    """Yield the single targets of a target."""
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _leaves(each)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


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
