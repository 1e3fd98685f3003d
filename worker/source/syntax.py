"""Python's syntax trees of a script's files, with access by a constant name written as plain access."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence

PARSED = 64  # files whose trees are kept, as each look at the script reads the same ones
MUTATING = frozenset(
    """
    add append appendleft clear difference_update discard extend extendleft fill fill_ insert intersection_update
    load_state_dict move_to_end pop popitem popleft push put put_nowait remove reset reverse rotate seek set set_state setdefault
    setstate shuffle sort step symmetric_difference_update update update_parameters
    """.split()  # noqa: SIM905
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_BY_NAME = re.compile(r"\b(setattr|getattr|vars|globals|__dict__)\b")


@functools.lru_cache(PARSED)
def parse(text: str) -> ast.Module:
    """Parse a file. Raises SyntaxError, ValueError and RecursionError. The tree is shared: nothing may change it.

    `setattr(a, "b", c)` becomes `a.b = c`, `getattr(a, "b", default)` and `vars(a)["b"]` become `a.b`, and
    `globals()["b"]` becomes `b`: analyses of the source know one way to read or bind a name.
    """
    tree = ast.parse(text)
    return _Plain().visit(tree) if _BY_NAME.search(text) else tree


def children(node: ast.AST) -> Sequence[ast.AST]:
    """As `ast.iter_child_nodes`, without `Load()` and the like. A node keeps its children, since analyses come to it dozens
    of times.
    """
    found: list[ast.AST] | None = vars(node).get("_children")
    if found is None:
        found = []
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
        vars(node)["_children"] = found
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """As `ast.walk`, and in its order, by `children`."""
    found = [node]
    for each in found:
        found += children(each)
    return found


@functools.lru_cache(PARSED)
def imports(tree: ast.Module) -> Sequence[tuple[str, str]]:
    """Return the names that a module imports, each with its original name."""
    found = [each for node in walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names]
    return tuple((each.asname or each.name.partition(".")[0], each.name) for each in found)


def called_name(call: ast.Call) -> str:
    """Return the name of the called function or method. "": the source has no name for it."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def root_name(node: ast.expr) -> str:
    """Return the variable of which the expression is a part; "": of none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def read_names(node: ast.AST | None) -> set[str]:
    """Return the variables that an expression reads, except those that it binds itself."""
    names = [each for each in walk(node) if isinstance(each, ast.Name)] if node is not None else []
    bound = {each.id for each in names if not isinstance(each.ctx, ast.Load)}
    return {each.id for each in names if isinstance(each.ctx, ast.Load)} - bound


def mutates(method: str) -> bool:
    """Return whether a method of this name changes its object.

    In PyTorch these are the names with a trailing underscore.
    """
    return method in MUTATING or (method.endswith("_") and not method.endswith("__"))


def parameters(function: ast.AST) -> list[ast.arg]:
    """Return the parameters of a function, without `*args` and `**kwargs`."""
    assert isinstance(function, Function)
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def bound_parameters(function: ast.AST) -> list[ast.arg]:
    """Return all parameters of a function, `*args` and `**kwargs` last."""
    assert isinstance(function, Function)
    others = (function.args.vararg, function.args.kwarg)
    return [*parameters(function), *(each for each in others if each is not None)]


def stored_names(body: Iterable[ast.stmt]) -> set[str]:
    """Return the names that these statements bind."""
    nodes = [each for node in statements(body) for each in children(node)]
    names = [one for each in nodes if isinstance(each, ast.expr | ast.withitem) for one in walk(each)]
    return {each.id for each in names if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def bound_names(function: ast.AST) -> set[str]:
    """Return the names that a function binds itself."""
    body = function.body  # type: ignore[attr-defined]
    bound = {each.arg for each in bound_parameters(function)} | stored_names(body)
    declared: set[str] = set()
    for node in statements(body):
        if isinstance(node, Function | ast.ClassDef):
            bound.add(node.name)
            continue
        if isinstance(node, ast.Global | ast.Nonlocal):
            declared.update(node.names)
    return bound - declared


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements and those within them, except in inner functions and classes."""
    for node in body:
        yield node
        if isinstance(node, Function | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, name, ()))
        for case in getattr(node, "cases", ()):
            yield from statements(case.body)
        for handler in getattr(node, "handlers", ()):
            yield from statements(handler.body)


class _Plain(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), value]):
                target = ast.copy_location(ast.Attribute(owner, name, ast.Store()), node)
                return ast.copy_location(ast.Assign([target], value), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
                return ast.copy_location(ast.Attribute(owner, name, ast.Load()), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="vars"), args=[owner]) | ast.Attribute(value=owner, attr="__dict__"),
                slice=ast.Constant(value=str(name)),
            ):
                return ast.copy_location(ast.Attribute(owner, name, node.ctx), node)
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="globals"), args=[]), slice=ast.Constant(value=str(name))
            ):
                return ast.copy_location(ast.Name(name, node.ctx), node)
        return node
