"""Variables that count loop bodies, such as `global_step += 1`: each body finds the value that one worker alone would have.

A loop body runs once for each virtual worker, and each worker runs only some of them, so such a variable would count a
worker's own bodies. One worker alone runs the bodies of a step in the order of their virtual workers. So the value in a
body follows from that of the step's beginning and from the number of the step's bodies before it, and the value after the
step from the number of all of them. The variable is set before each body, and after the step.

A counter is found in the source: a statement `x += 1` with a constant, which every body reaches once, and no other
statement of the loop over batches that changes the variable. What the source does not show, such as a method that
changes an attribute, is seen at the body's end: a variable with another value is no counter any more. Nor is a variable
by which bodies decide about what lasts (`if n % 100 == 0: memory.clear()`): the decision would be right, and its effect
on one worker alone. What bodies compute from a counter otherwise ends with them. A loop over a
generator of the script's own, which reads the batches, has a body for each batch if each pass of the generator's loop
has one `yield`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence, Set
from types import CodeType
from typing import NamedTuple

from .assigned import Source, of_iteration
from .frames import Variable, find
from .logged import LOGS
from .looking import Looking
from .syntax import PARSED, Function, bound_names, called_name, children, read_names, stored_names, walk


class Counter(NamedTuple):
    """A variable that each body increments once."""

    name: str  # of a variable or attribute, in its frame
    by: int  # increment in each body


class BodyCounters:
    """The counters of one script. For the thread that runs it."""

    def __init__(self, looking: Looking) -> None:
        self._looking = looking
        self._begun: dict[str, int] = {}  # values where the step in progress began
        self._expected: dict[str, int] = {}  # values where the body in progress should end
        self._others: set[str] = set()  # variables that have turned out to be no counters
        self._known: frozenset[int] = frozenset()  # ids of registered objects, of which the job carries the attributes

    def present(self) -> Iterator[tuple[str, Variable, int]]:
        """Yield the counters, with a name that is the same on all workers, and the increment."""
        frames = self._looking.frames(sys._getframe())
        for number, (prefix, frame) in enumerate(frames):
            inner = [each for _, each in frames[number + 1 :]]
            counters = _counters(frame.f_code, frame.f_lineno or 0)
            if not counters or not all(_gives_each_batch(each.f_code, each.f_lineno or 0) for each in inner):
                continue
            for name, by in counters:
                known = f"{prefix}{name}" in self._others
                variable = None if known else find(frame, name, inherits=True)
                if variable is not None and type(variable.value) is int and id(variable.owner) not in self._known:
                    yield f"{prefix}{name}", variable, by

    def step_begins(self) -> bool:
        """Begin a step, before its first body; return whether there is a counter."""
        self._known = frozenset(map(id, self._looking.state.registered.objects()))
        self._begun = {name: variable.value for name, variable, _ in self.present()}
        return bool(self._begun)

    def body_begins(self, before: int) -> None:
        """Begin a body. before: number of the step's bodies that one worker alone would have run before it."""
        self._set(before)
        self._expected = {name: variable.value + by for name, variable, by in self.present()}

    def body_ends(self) -> None:
        """End a body, when the script asks for the next batch."""
        found = {name: variable.value for name, variable, _ in self.present()}
        self._others |= {name for name, value in self._expected.items() if found.get(name) != value}

    def step_ends(self, bodies: int) -> None:
        """End a step with so many bodies on all workers; 0: it is given up."""
        self._set(bodies)
        self._begun = {}

    def step_passes(self, bodies: int) -> None:
        """Count the bodies of a step in which this worker has run none, since it has received the state."""
        self.step_begins()
        self.step_ends(bodies)

    def _set(self, bodies: int) -> None:
        for name, variable, by in self.present():
            value = self._begun.get(name)
            if value is not None and value + by * bodies != variable.value:
                variable.bind(value + by * bodies)


@functools.lru_cache(PARSED)
def _counters(code: CodeType, line: int) -> tuple[Counter, ...]:
    """Return the counters of the loop whose header is on this line of a function or module."""
    loops = _loops(code, line)
    calls = [each for loop in loops for each in walk(loop.iter) if isinstance(each, ast.Call)]
    if any(called_name(each) == "epochs" for each in calls):
        return ()
    source = Source.read(code.co_filename)
    if not loops or source is None:
        return ()
    loop = loops[-1]
    within = set(walk(loop))
    outside = {node.id for node in walk(source.tree) if node not in within and isinstance(node, ast.Name)}
    return tuple(each for each in counters_in(loop, outside) if not _is_read_elsewhere(source.tree, loop, each.name))


def _is_read_elsewhere(tree: ast.Module, loop: ast.For, name: str) -> bool:
    """Return whether a function reads the variable that is not around the loop: a body may call it."""
    for function in walk(tree):
        if isinstance(function, Function) and not any(node is loop for node in walk(function)):
            reads = [
                node for node in walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            ]
            if name.rpartition(".")[2] in {node.attr for node in reads} if "." in name else name in _free(function):
                return True
    return False


def _free(function: ast.AST) -> set[str]:
    return read_names(function) - bound_names(function)


def _loops(code: CodeType, line: int) -> list[ast.For]:
    source = Source.read(code.co_filename)
    loops = [] if source is None else [node for node in walk(source.tree) if isinstance(node, ast.For)]
    return [each for each in loops if each.lineno <= line <= (each.iter.end_lineno or 0)]


@functools.lru_cache(PARSED)
def _gives_each_batch(code: CodeType, line: int) -> bool:
    """Return whether the loop on this line of a generator has one `yield` in each pass, so that a loop over the generator has
    a body for each batch. Other functions have no such loop.
    """
    if not code.co_flags & inspect.CO_GENERATOR:
        return True
    loops = _loops(code, line)
    return bool(loops) and yields_in(loops[-1].body) == 1


def yields_in(body: Sequence[ast.stmt]) -> int | None:
    """Return the number of `yield` that each pass through these statements runs; None if passes differ."""
    found = 0
    for position, statement in enumerate(body):
        if isinstance(statement, ast.If):
            numbers = {yields_in(statement.body), yields_in(statement.orelse)}
            number = numbers.pop() if len(numbers) == 1 else None
        elif isinstance(statement, ast.With):
            number = yields_in(statement.body)
        else:
            number = sum(isinstance(each, ast.Yield | ast.YieldFrom) for each in walk(statement))
            if number and not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign):
                return None
            if any(isinstance(each, ast.YieldFrom) for each in walk(statement)):
                return None
        if number is None:
            return None
        found += number
        if any(isinstance(each, ast.Continue) for each in walk(statement)):
            return found if yields_in(body[position + 1 :]) == 0 else None
    return found


def counters_in(loop: ast.For, read_elsewhere: Set[str]) -> Iterator[Counter]:
    """Yield the counters that the source of a loop over batches shows. read_elsewhere: variables that code outside reads."""
    for statement in _reached(loop.body):
        match statement:
            case ast.AugAssign(target=target, op=ast.Add(), value=ast.Constant(value=int(by))):
                pass
            case ast.Assign(
                targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=int(by)))
            ) if ast.unparse(left) == ast.unparse(target):
                pass
            case _:
                continue
        name = ast.unparse(target)
        if not _is_path(target) or isinstance(by, bool) or _changes(loop, name) != 1:
            continue
        if _Uses(loop, name, read_elsewhere).end_with_body(loop.body):
            yield Counter(name, by)


class _Uses:
    """How the body of a loop uses a counter, and numbers that follow from it alone."""

    def __init__(self, loop: ast.For, name: str, read_elsewhere: Set[str]) -> None:
        self._temporaries = of_iteration(loop.body, read_elsewhere)
        of_loop = stored_names([loop])
        self._counter, self._names = name, {name}
        assigned = [node for node in walk(loop) if isinstance(node, ast.Assign)]
        for _ in assigned:
            for node in assigned:
                others = read_names(node.value) & of_loop
                if self._reads(node.value) and others <= self._names:
                    self._names |= stored_names([node])

    def _reads(self, node: ast.AST) -> bool:
        found = [each for each in walk(node) if isinstance(each, ast.Name | ast.Attribute)]
        return any(isinstance(each.ctx, ast.Load) and ast.unparse(each) in self._names for each in found)

    def end_with_body(self, body: Sequence[ast.stmt], decided: bool = False) -> bool:
        """Return whether what these statements do by the counter lasts no longer than the body. decided: a condition on the
        counter is around them.
        """
        return all(self._ends_with_body(each, decided) for each in body)

    def _ends_with_body(self, node: ast.stmt, decided: bool) -> bool:
        match node:
            case ast.Pass():
                return True
            case ast.Expr(value=ast.Call() as call):
                return called_name(call) in (LOGS if decided else {*LOGS, "backward"}) or not (
                    decided or self._reads(call)
                )
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                lasting = [
                    each for each in targets if not (isinstance(each, ast.Name) and each.id in self._temporaries)
                ]
                is_counter = ast.unparse(targets[0]) == self._counter
                return not lasting or not (decided or self._reads(node)) or (is_counter and not decided)
            case ast.If(test=test, body=body, orelse=orelse):
                inside = decided or self._reads(test)
                return self.end_with_body(body, inside) and self.end_with_body(orelse, inside)
            case ast.With(body=body) | ast.For(body=body):
                head = [each for each in children(node) if not isinstance(each, ast.stmt)]
                return self.end_with_body(body, decided or any(map(self._reads, head)))
        return not decided and not self._reads(node)


def _reached(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that each pass through the body reaches."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _reached(statement.body)
        else:
            yield statement
        if any(isinstance(each, ast.Continue | ast.Break | ast.Return) for each in walk(statement)):
            return


def _is_path(node: ast.expr) -> bool:
    """Return whether the expression is a variable, or an attribute that is reached from one."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


def _changes(loop: ast.For, name: str) -> int:
    """Return the number of places in a loop that bind this variable or attribute."""
    nodes = [each for each in walk(loop) if isinstance(each, ast.Name | ast.Attribute)]
    return sum(not isinstance(each.ctx, ast.Load) and ast.unparse(each) == name for each in nodes)
