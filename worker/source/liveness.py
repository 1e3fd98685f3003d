"""Names that statements read and bind, in the order of execution: which variables live from one loop body to the next."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence, Set

from .syntax import children, stored_names, walk

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
LEAVING = ast.Return | ast.Continue | ast.Break | ast.Raise
REMEMBERED = 1024  # functions of which the names are kept


def is_function(node: ast.AST) -> bool:
    return isinstance(node, FUNCTIONS)


def within(node: ast.AST, functions: bool = False) -> Iterator[ast.AST]:
    """Yield the node and its descendants in the order of the source.

    Inner functions and classes are entered only with `functions`.
    """
    yield node
    for child in children(node):
        if functions or not (is_function(child) or isinstance(child, ast.ClassDef)):
            yield from within(child, functions)
        else:
            yield child


def target_names(target: ast.AST) -> Iterator[str]:
    """Yield the variables that a target binds."""
    for node in walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id


@functools.lru_cache(REMEMBERED)
def local_names(function: ast.AST) -> set[str]:
    """Return the names that a function binds itself."""
    assert isinstance(function, FUNCTIONS)
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    bound = {each.arg for each in every if each is not None}
    declared: set[str] = set()
    for node in within(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            declared.update(node.names)
    return bound - declared


def free_names(function: ast.AST) -> set[str]:
    """Return the names that a function, or a function within it, reads from outside."""
    read: set[str] = set()
    for node in within(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            read.update(node.names)
        elif node is not function and (is_function(node) or isinstance(node, ast.ClassDef)):
            read |= free_names(node) if is_function(node) else {name for each in walk(node) for name in read_name(each)}
    return read - local_names(function)


def read_name(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id


def of_iteration(body: Sequence[ast.stmt], read_elsewhere: Set[str]) -> set[str]:
    """Return the variables that a loop's body binds before each read of them, so that no iteration reads the value of an
    earlier one. read_elsewhere: variables that code outside the loop reads: of these, those that are bound in every case.
    """
    flow = Flow()
    flow.block(body)
    return (flow.bound | (stored_names(body) - read_elsewhere)) - flow.read


def _counted_from_0(target: ast.expr, iterable: ast.expr) -> str | None:
    """Return the variable that a loop's header counts from 0, by `range(n)` or `enumerate(…)`."""
    match target, iterable:
        case ast.Name(id=name), ast.Call(func=ast.Name(id="range"), args=[_], keywords=[]):
            return name
        case ast.Tuple(elts=[ast.Name(id=name), _]), ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]):
            return name
    return None


def _has_items(iterable: ast.expr) -> bool:
    """Return whether the source shows that there are items to iterate over: `range(2)`, `("one", "two")`."""
    match iterable:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(number))], keywords=[]):
            return number > 0
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return not all(isinstance(each, ast.Starred) for each in items)
    return False


def read_first(body: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that these statements possibly read before they bind them."""
    flow = Flow()
    flow.block(body)
    return flow.read


class Flow:
    """Names that statements bind before they read them."""

    def __init__(self) -> None:
        self.bound: set[str] = set()  # bound in every case
        self.read: set[str] = set()  # possibly read before they are bound

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                self._expression(value)
                for target in targets:
                    self._bind(target)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._expression(value)
                    self._bind(target)
            case ast.AugAssign(target=target, value=value):
                self._expression(value)
                self._reads(set(target_names(target)))
                self._expression(target)
                self._bind(target)
            case ast.If(test=test, body=body, orelse=orelse):
                self._expression(test)
                self._branches([(body, set()), (orelse, set())])
            case (
                ast.For(target=target, iter=iterable, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=iterable, body=body, orelse=orelse)
            ):
                self._expression(iterable)
                once = self._perhaps(body, set(target_names(target)), _counted_from_0(target, iterable))
                self.bound |= once if _has_items(iterable) else set()
                self._perhaps(orelse)
            case ast.While(test=ast.Constant(value=True), body=body):
                self._until_break(body)
            case ast.While(test=test, body=body, orelse=orelse):
                self._expression(test)
                self._perhaps(body)
                self._perhaps(orelse)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    self._expression(item.context_expr)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars)
                self.block(body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                before = set(self.bound)
                self.block([*body, *orelse])
                after = [self.bound]
                for handler in handlers:  # begins where the body may have bound nothing
                    self.bound = before | ({handler.name} if handler.name else set())
                    self.block(handler.body)
                    if not isinstance(handler.body[-1], LEAVING):
                        after.append(self.bound)
                self.bound = before
                self.block(final)
                self.bound |= set.intersection(*after)
            case ast.Match(subject=subject, cases=cases):
                self._expression(subject)
                branches: list[tuple[Sequence[ast.stmt], set[str]]] = []
                for case in cases:
                    guard = [] if case.guard is None else [ast.Expr(case.guard)]
                    names = {each.name for each in walk(case.pattern) if isinstance(each, ast.MatchAs) and each.name}
                    branches.append(([*guard, *case.body], names))
                if (
                    cases[-1].guard is not None or getattr(cases[-1].pattern, "pattern", cases) is not None
                ):  # no `case _:`
                    branches.append(([], set()))
                self._branches(branches)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._reads(free_names(statement))
                self.bound.add(name)
            case ast.ClassDef(name=name):
                self._reads({each for node in walk(statement) for each in read_name(node)})
                self.bound.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                self.bound.update((each.asname or each.name).partition(".")[0] for each in names)
            case _:
                self._expression(statement)

    def _branches(self, branches: Sequence[tuple[Sequence[ast.stmt], set[str]]]) -> None:
        """Take one of the branches, each with the names that are bound where it begins.

        After a branch that continues with the next iteration, or ends, no statement reads its names.
        """
        before = set(self.bound)
        after: list[set[str]] = []
        for body, names in branches:
            self.bound = before | names
            self.block(body)
            if not (body and isinstance(body[-1], ast.Continue | ast.Return | ast.Raise)):
                after.append(self.bound)
        self.bound = set.intersection(*after) if after else before

    def _perhaps(
        self, body: Sequence[ast.stmt], bound: set[str] | frozenset[str] = frozenset(), number: str | None = None
    ) -> set[str]:
        """Return the variables that are bound if the body runs once or more.

        number: the variable that counts the iterations from 0: what is bound `if number == 0:` is so in all of them.
        """
        before, once = set(self.bound), None
        self.bound |= bound
        for statement in body:
            match statement:
                case ast.If(
                    test=ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=0)])
                ) if name == number:
                    self.block(statement.body)
                    after = set(self.bound)
                    self.block(statement.orelse)
                    self.bound = after
                case _:
                    if once is None and any(isinstance(each, LEAVING) for each in walk(statement)):
                        number, once = None, set(self.bound)  # the first iteration may end here
                    self._statement(statement)
        self.bound, once = before, self.bound if once is None else once
        return once

    def _until_break(self, body: Sequence[ast.stmt]) -> None:
        """Take the body of `while True:`, which runs at least until its first `break`."""
        at_break: set[str] | None = None
        for statement in body:
            if at_break is None and any(isinstance(each, ast.Break) for each in within(statement)):
                at_break = set(self.bound)
            self._statement(statement)
        self.bound = self.bound if at_break is None else at_break

    def _bind(self, target: ast.expr) -> None:
        for node in walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._reads({node.id})
        self.bound.update(target_names(target))

    def _reads(self, names: set[str]) -> None:
        self.read |= names - self.bound

    def _expression(self, node: ast.AST, bound: frozenset[str] = frozenset()) -> None:
        if isinstance(node, ast.Lambda):
            self._reads(free_names(node) - bound)
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            bound |= {name for each in node.generators for name in target_names(each.target)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._reads({node.id} - bound)
        for child in children(node):
            self._expression(child, bound)
