"""Which assignments of a variable may have made the value that a place of the source reads: reaching definitions (Aho et al.,
Compilers, 9.2.4).

Only variables of which a function or module sees every assignment and every read have them. Others, such as variables that
inner functions read when they are called, are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from .liveness import FUNCTIONS, free_names, is_function
from .syntax import bound_parameters, called_name, children, root_name, statements, stored_names, walk

_HIDDEN = frozenset({"eval", "exec", "globals", "locals", "vars"})  # functions that may read or bind any variable
SUPPRESSES = frozenset({"suppress", "raises"})  # contexts behind which a statement runs although one inside has failed

_State = dict[str, frozenset[ast.Name]]  # assignments by variable, as their targets


class Reaching:
    """Assignments that reach the reads in one function or module, without those in inner functions and classes."""

    def __init__(self, scope: ast.AST) -> None:
        """scope: a function or module."""
        body: Sequence[ast.stmt] = scope.body  # type: ignore[attr-defined]
        self.of: dict[ast.Name, frozenset[ast.Name]] = {}  # by the place that reads
        self._left_out = _seen_by_others(body)
        self._breaks: list[list[_State]] = []  # by loop, from the outermost inwards
        self._continues: list[list[_State]] = []
        self._state: _State | None = (
            {each.arg: frozenset() for each in bound_parameters(scope)} if is_function(scope) else {}
        )
        nodes = [each for statement in body for each in walk(statement)]
        if _HIDDEN.isdisjoint(each.id for each in nodes if isinstance(each, ast.Name)):
            self._block(body)

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if self._state is None:
                return  # no way leads here
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._reads(value)
                for target in targets:
                    self._binds(target, kills=not _keeps(target, value))
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._reads(value)
                    self._binds(target)
            case ast.AugAssign(target=target, value=value):  # changes the value that other assignments have made
                self._reads(value)
                self._reads(target)
            case ast.If(test=test, body=body, orelse=orelse):
                self._reads(test)
                before = self._state
                self._block(body)
                after, self._state = self._state, before
                self._block(orelse)
                self._state = _joined(after, self._state)
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self._reads(iterable)
                self._loop(node, target)
            case ast.While():
                self._loop(node)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    self._reads(item.context_expr)
                    if item.optional_vars is not None:
                        self._binds(item.optional_vars)
                calls = [each for item in items for each in walk(item.context_expr) if isinstance(each, ast.Call)]
                anywhere = self._anywhere_in(body)
                self._block(body)
                if any(called_name(each) in SUPPRESSES for each in calls):
                    self._state = _joined(self._state, anywhere)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                anywhere = self._anywhere_in([*body, *orelse, *(one for each in handlers for one in each.body)])
                self._block([*body, *orelse])
                after = self._state
                for handler in handlers:
                    self._state = _without(anywhere, handler.name)
                    if handler.type is not None:
                        self._reads(handler.type)
                    self._block(handler.body)
                    after = _joined(after, self._state)
                if final:
                    self._state = _joined(after, anywhere)
                    self._block(final)
                    after = self._state if after is not None else None
                self._state = after
            case ast.Match(subject=subject, cases=cases):
                self._reads(subject)
                before, after = self._state, self._state
                for case in cases:
                    self._state = before
                    for each in walk(case.pattern):
                        self._state = _without(self._state, getattr(each, "name", None))
                    if case.guard is not None:
                        self._reads(case.guard)
                    self._block(case.body)
                    after = _joined(after, self._state)
                self._state = after
            case ast.Break() | ast.Continue():
                ended = self._breaks if isinstance(node, ast.Break) else self._continues
                if ended and self._state is not None:
                    ended[-1].append(self._state)
                self._state = None
            case ast.Return() | ast.Raise():
                self._reads(node)
                self._state = None
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._state = _without(self._state, name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    self._state = _without(self._state, (alias.asname or alias.name).partition(".")[0])
            case _:
                self._reads(node)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, target: ast.expr | None = None) -> None:
        """Take the body of a loop until no further assignment reaches its beginning."""
        test = node.test if isinstance(node, ast.While) else None
        endless = isinstance(test, ast.Constant) and bool(test.value)
        begin: _State | None = self._state
        while True:
            self._state = begin
            if test is not None:
                self._reads(test)
            left = None if endless else self._state
            if target is not None:
                self._binds(target)
            self._breaks.append([])
            self._continues.append([])
            self._block(node.body)
            again = _joined(begin, self._state, *self._continues.pop())
            breaks = self._breaks.pop()
            if again == begin:
                break
            begin = again
        self._state = left
        self._block(node.orelse)
        self._state = _joined(self._state, *breaks)

    def _anywhere_in(self, body: Iterable[ast.stmt]) -> _State | None:
        """Return the present state with all assignments in these statements, of which each may be the last one that runs."""
        state = dict(self._state or {})
        for statement in statements(body):
            for each in walk(statement):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id not in self._left_out:
                    state[each.id] = state.get(each.id, frozenset()) | {each}
        return state

    def _reads(self, node: ast.AST) -> None:
        """Note the reads in an expression, and what it binds by `:=`."""
        if isinstance(node, FUNCTIONS | ast.ClassDef) or self._state is None:
            return
        if isinstance(node, ast.Name):
            if node.id not in self._left_out:
                self.of[node] = self.of.get(node, frozenset()) | self._state.get(node.id, frozenset())
            return
        if isinstance(node, ast.NamedExpr):
            self._reads(node.value)
            self._binds(node.target, kills=False)  # the expression may be left before
            return
        for child in children(node):
            self._reads(child)

    def _binds(self, target: ast.expr, kills: bool = True) -> None:
        """kills: whether no earlier assignment reaches what follows."""
        if self._state is None:
            return
        if isinstance(target, ast.Name):
            if target.id not in self._left_out:
                earlier = frozenset[ast.Name]() if kills else self._state.get(target.id, frozenset())
                self._state = {**self._state, target.id: earlier | {target}}
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._binds(each, kills)
        elif isinstance(target, ast.Starred):
            self._binds(target.value, kills)
        else:
            self._reads(target)


def _seen_by_others(body: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that are left out: code inside reads or binds them at another time, or has one of this name of its
    own, or statements remove them, or bind them on the way out.
    """
    nodes = [each for statement in body for each in walk(statement)]
    at_once = {id(each) for call in nodes if isinstance(call, ast.Call) for each in call.args}
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                found |= free_names(node)
            case ast.ClassDef():
                found |= _names(node)
            case ast.GeneratorExp() if id(node) not in at_once:
                found |= _names(node)
            case ast.comprehension(target=target):
                found |= _names(target)
            case ast.Try(finalbody=final):
                found |= stored_names(final)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
            case ast.Delete(targets=targets):
                found.update(map(root_name, targets))
    return found


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _keeps(target: ast.expr, value: ast.expr) -> bool:
    """Return whether an assignment may leave the earlier value: `x = x if x.is_fit() else y`."""
    same = ast.unparse(target)
    return isinstance(value, ast.IfExp) and same in (ast.unparse(value.body), ast.unparse(value.orelse))


def _without(state: _State | None, name: str | None) -> _State | None:
    return state if state is None or name is None else {**state, name: frozenset()}


def _joined(*states: _State | None) -> _State | None:
    """Return the state behind several ways; None for a way that leads nowhere."""
    found: dict[str, frozenset[ast.Name]] | None = None
    for state in states:
        if state is not None:
            found = {} if found is None else found
            for name, targets in state.items():
                found[name] = found.get(name, frozenset()) | targets
    return found
