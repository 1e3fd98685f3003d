"""Which of a script's functions change what outlives their call, read from the source: an attribute, an item, a global variable.

A call by a name may reach each function and method of that name. A call of a variable, as `criterion(x, y)`, may reach the
functions that the source assigns or hands over to a variable of this name, the `__call__` of classes likewise, and each
`forward`, since modules contain others. Scopes are left out. No code of the script runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence

from .logged import LOGS
from .syntax import (
    Function,
    called_name,
    children,
    imports,
    mutates,
    parameters,
    root_name,
    statements,
    stored_names,
    walk,
)

_OF_JOB = frozenset({"backward", "step", "zero_grad"})  # of the model's tensors and optimizers, which the job carries
_FRESH = ast.Call | ast.BinOp | ast.Constant | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
_WRAPPERS = frozenset({"checkpoint", "compile", "grad", "partial", "vmap"})  # whose results call the first argument
_OTHERS = ""  # what others' code makes, among the values of a variable


class Effects:
    """The effects of the functions in these files."""

    def __init__(self, trees: Sequence[ast.Module], of_gradient: Callable[[], Collection[str]] = frozenset) -> None:
        """of_gradient: returns the names of the variables and attributes on which the gradient depends."""
        self._of_gradient = of_gradient
        self._functions: dict[str, list[ast.AST]] = {}
        self._methods: dict[str, list[ast.AST]] = {}  # `__call__` by class, with "()" behind the name
        # Where the values of a variable, attribute or parameter may come from: others, results of functions as `make()`
        self._values: dict[str, set[str]] = {}
        self._imported = {name for tree in trees for name, _ in imports(tree)}
        self._changed: dict[ast.AST, frozenset[str]] = {}
        nodes = [node for tree in trees for node in walk(tree)]
        for node in nodes:
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                calls = [each for each in node.body if isinstance(each, Function) and each.name == "__call__"]
                self._methods.setdefault(f"{node.name}()", []).extend(calls)
        for node in nodes:
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        """Note which values a statement or a call gives to variables."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._give(target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
                | ast.withitem(optional_vars=ast.expr() as target, context_expr=value)
            ):
                self._give(target, value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                for each in statements(node.body):
                    if isinstance(each, ast.Return) and each.value is not None:
                        self._values.setdefault(f"{name}()", set()).update(self._sources(each.value))
            case ast.Call(args=arguments, keywords=keywords):
                for function in self._functions.get(called_name(node), ()):
                    names = [each.arg for each in parameters(function)]
                    for shifted in (names, names[1:]):  # a method has its object before
                        for name, value in zip(shifted, arguments, strict=False):
                            self._values.setdefault(name, set()).update(self._sources(value))
                    for word in keywords:
                        self._values.setdefault(word.arg or "", set()).update(self._sources(word.value))

    def _give(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for number, each in enumerate(target.elts):
                self._give(each, values[number] if len(values) == len(target.elts) else value)
            return
        self._values.setdefault(_last_name(target), set()).update(self._sources(value))

    def _sources(self, node: ast.expr) -> Iterator[str]:
        """Yield where the value of an expression may come from."""
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.NamedExpr(value=inner):
                yield from self._sources(inner)
            case ast.IfExp(body=first, orelse=second):
                yield from self._sources(first)
                yield from self._sources(second)
            case ast.BoolOp(values=values) | ast.List(elts=values) | ast.Tuple(elts=values) | ast.Dict(values=values):
                for each in values:
                    yield from self._sources(each)
            case ast.Call(args=[first, *_]) if called_name(node) in _WRAPPERS:
                yield from self._sources(first)
            case ast.Call() if (name := called_name(node)) in self._functions or f"{name}()" in self._methods:
                yield f"{name}()"
            case _:
                yield _OTHERS

    def _reached(self, call: ast.Call) -> Iterator[ast.AST]:
        """Yield the functions that a call may reach."""
        name = called_name(call)
        yield from self._functions.get(name, ())
        if name and name not in self._values:
            return
        found = set(self._sources(call.func))
        todo = list(found)
        while todo:
            more = self._values.get(todo.pop(), set()) - found
            found |= more
            todo += more
        yield from self._functions.get("forward", ())
        for each in found:
            yield from self._functions.get(each, ()) if each != name else ()
            yield from self._methods.get(each, ())
        if _OTHERS not in found and found.isdisjoint(self._methods) and found.isdisjoint(self._functions):
            yield from self._functions.get("__call__", ())  # of a parameter of which no call is known

    def lasts(self, call: ast.Call) -> bool:
        """Return whether a call may change what outlives it, by the script's functions. Functions that log may keep what they
        show.
        """
        changed = self.of(call)
        return bool(changed) and not (called_name(call) in LOGS and changed.isdisjoint(self._of_gradient()))

    def of(self, call: ast.Call) -> frozenset[str]:
        """Return the names of the variables and attributes that a call may change beyond itself, by the script's functions."""
        return frozenset(each for function in self._reached(call) for each in self._of_function(function))

    def in_place(self, call: ast.Call) -> str:
        """Return the variable of which a call of a method changes a part by its name, as `memory.append(x)`; "": of none."""
        name, function = called_name(call), call.func
        if not isinstance(function, ast.Attribute) or not mutates(name) or name in _OF_JOB or name in LOGS:
            return ""
        root = root_name(function.value)
        return "" if root in self._imported else root

    def _of_function(self, function: ast.AST) -> frozenset[str]:
        if function not in self._changed:
            self._changed[function] = frozenset()  # of a function that calls itself
            self._changed[function] = frozenset(self._changed_by(function))
        return self._changed[function]

    def _changed_by(self, function: ast.AST) -> Iterator[str]:
        assert isinstance(function, Function)
        inner = list(statements(function.body))
        declared = {name for each in inner if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
        own = _made_within(inner) - declared
        for node in (each for statement in function.body for each in walk(statement)):
            match node:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if name in declared:
                    yield name
                case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()) if root_name(node) not in own:
                    yield name
                case ast.Subscript(value=stem, ctx=ast.Store() | ast.Del()) if root_name(node) not in own:
                    yield _last_name(stem)
                case ast.Call(func=ast.Attribute(value=owner)) if (root := self.in_place(node)) and root not in own:
                    yield _last_name(owner)
            if isinstance(node, ast.Call):
                yield from self.of(node)


def _made_within(inner: Sequence[ast.stmt]) -> set[str]:
    """Return the variables to which a function binds nothing but new objects."""
    other: set[str] = set()
    for each in inner:
        if isinstance(each, ast.Assign) and isinstance(each.value, _FRESH):
            continue
        if isinstance(each, ast.AnnAssign) and isinstance(each.value, _FRESH):
            continue
        if not isinstance(each, ast.AugAssign):
            other |= {
                one.id
                for child in children(each)
                if isinstance(child, ast.expr | ast.withitem)
                for one in walk(child)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
    return stored_names(inner) - other


def _last_name(node: ast.expr) -> str:
    """Return the attribute or variable of which the expression is an item: `items` for `self.items[0]`."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
