"""Which of a script's functions change what outlives their call, read from the source: an attribute, an item, a global variable.

A call by a name may reach each function and method of that name. A call of an object, as `criterion(x, y)`, may reach each
`forward` and `__call__`, each inner function, and each function that the script hands on. No code of the script runs.
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
_CALLED = frozenset({"forward", "__call__"})


class Effects:
    """The effects of the functions in these files."""

    def __init__(self, trees: Sequence[ast.Module], of_gradient: Callable[[], Collection[str]] = frozenset) -> None:
        """of_gradient: returns the names of the variables and attributes on which the gradient depends."""
        self._of_gradient = of_gradient
        self._functions: dict[str, list[ast.AST]] = {}
        self._objects: set[str] = (
            set()
        )  # names of variables and attributes, which may refer to an object that is called
        self._handed_on: list[ast.AST] = []
        self._imported = {name for tree in trees for name, _ in imports(tree)}
        self._changed: dict[ast.AST, frozenset[str]] = {}
        nodes = [node for tree in trees for node in walk(tree)]
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        loaded = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in called
        }
        for node in nodes:
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
                self._objects |= {each.arg for each in parameters(node)}
                self._handed_on += [each for each in statements(node.body) if isinstance(each, Function)]
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                self._objects.add(node.id if isinstance(node, ast.Name) else node.attr)
        self._handed_on += [each for name in loaded | _CALLED for each in self._functions.get(name, ())]

    def lasts(self, call: ast.Call) -> bool:
        """Return whether a call may change what outlives it, by the script's functions. Functions that log may keep what they
        show.
        """
        changed = self.of(call)
        return bool(changed) and not (called_name(call) in LOGS and changed.isdisjoint(self._of_gradient()))

    def of(self, call: ast.Call) -> frozenset[str]:
        """Return the names of the variables and attributes that a call may change beyond itself, by the script's functions."""
        name = called_name(call)
        reached = self._functions.get(name, [])
        if not reached and (not name or name in self._objects):
            reached = self._handed_on
        return frozenset(each for function in reached for each in self._of_function(function))

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
