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
                self._branches([body, orelse])
            case (
                ast.For(target=target, iter=iterable, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=iterable, body=body, orelse=orelse)
            ):
                self._expression(iterable)
                self._perhaps(body, set(target_names(target)))
                self._perhaps(orelse)
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
                self.block(body)
                if not all(isinstance(each.body[-1], LEAVING) for each in handlers):
                    self.bound = before  # a handler may go on although the body has not bound all
                for each in (*(handler.body for handler in handlers), orelse, final):
                    self._perhaps(each)
            case ast.Match(subject=subject, cases=cases):
                self._expression(subject)
                for case in cases:
                    self._perhaps(
                        case.body,
                        {node.name for node in walk(case.pattern) if isinstance(node, ast.MatchAs) and node.name},
                    )
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

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]]) -> None:
        """Take one of the branches.

        After a branch that continues with the next iteration, or ends, no statement reads its names.
        """
        before = set(self.bound)
        after: list[set[str]] = []
        for body in bodies:
            self.bound = set(before)
            self.block(body)
            if not (body and isinstance(body[-1], ast.Continue | ast.Return | ast.Raise)):
                after.append(self.bound)
        self.bound = set.intersection(*after) if after else before

    def _perhaps(self, body: Sequence[ast.stmt], bound: set[str] | frozenset[str] = frozenset()) -> None:
        before = set(self.bound)
        self.bound |= bound
        self.block(body)
        self.bound = before

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
