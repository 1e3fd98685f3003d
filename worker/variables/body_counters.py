"""Variables that count loop bodies, such as `global_step += 1`: each body finds the value that one worker alone would have.

A loop body runs once for each virtual worker, and each worker runs only some of them, so such a variable would count a
worker's own bodies. One worker alone runs the bodies of a step in the order of their virtual workers. So the value in a
body follows from that of the step's beginning and from the number of the step's bodies before it, and the value after the
step from the number of all of them. The variable is set before each body, and after the step.

A counter is found in the source: a statement `x += 1` with a constant, which every body reaches once, and no other
statement of the loop over batches that changes the variable. What the source does not show, such as a method that
changes an attribute, is seen at the body's end: a variable with another value is no counter any more, and the next steps
are checked (`crosscheck`), since no other worker has run that body. Nor is a variable by which bodies decide about what
lasts (`if n % 100 == 0: memory.clear()`), also by way of a function (`loss = criterion(output, y, n)`, `effects`): the
decision would be right, and its effect on one worker alone. What bodies compute from a counter otherwise ends with them.
A loop over a generator of the script's own, which reads the batches, has a body for each batch if each pass of the
generator's loop has one `yield`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence, Set
from types import CodeType
from typing import NamedTuple

from ..source.assigned import Source
from ..source.effects import Effects
from ..source.liveness import of_iteration
from ..source.logged import LOGS
from ..source.syntax import PARSED, Function, bound_names, called_name, children, read_names, stored_names, walk
from .frames import Variable, find
from .looking import Looking


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
        self._effects: Effects | None = None  # of the script's functions; made when first used
        self._in_loops: dict[tuple[CodeType, int], tuple[Counter, ...]] = {}  # by function and line of the header
        self._has_lost = False  # whether a counter has turned out to be none since the last question

    def present(self) -> Iterator[tuple[str, Variable, int]]:
        """Yield the counters, with a name that is the same on all workers, and the increment."""
        frames = self._looking.frames(sys._getframe())
        for number, (prefix, frame) in enumerate(frames):
            inner = [each for _, each in frames[number + 1 :]]
            counters = self._counters(frame.f_code, frame.f_lineno or 0)
            if not counters or not all(_gives_each_batch(each.f_code, each.f_lineno or 0) for each in inner):
                continue
            for name, by in counters:
                known = f"{prefix}{name}" in self._others
                variable = None if known else find(frame, name, inherits=True)
                if variable is not None and type(variable.value) is int and id(variable.owner) not in self._known:
                    yield f"{prefix}{name}", variable, by

    def names(self) -> frozenset[str]:
        """Return the names of the counters that are variables of the loop's function, of a module or of an object."""
        return frozenset(name for name, _, _ in self.present())

    def _counters(self, code: CodeType, line: int) -> tuple[Counter, ...]:
        if (found := self._in_loops.get((code, line))) is None:
            trees = self._looking.trees
            if self._effects is None:
                self._effects = Effects(trees, self._looking.gradient_names)
            found = self._in_loops[code, line] = _counters(code, line, self._effects, trees)
        return found

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
        lost = {name for name, value in self._expected.items() if found.get(name) != value} - self._others
        self._others |= lost
        self._has_lost |= bool(lost)

    def has_lost(self) -> bool:
        """Return whether a counter has turned out to be none in a body of this worker, since the last call."""
        lost, self._has_lost = self._has_lost, False
        return lost

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


def _counters(code: CodeType, line: int, effects: Effects, trees: Sequence[ast.Module]) -> tuple[Counter, ...]:
    """Return the counters of the loop whose header is on this line of a function or module. trees: the script's files."""
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
    files = dict.fromkeys((source.tree, *trees))
    return tuple(
        each
        for each in counters_in(loop, outside, effects)
        if not any(_is_read_elsewhere(tree, loop, each.name, tree is source.tree) for tree in files)
    )


def _is_read_elsewhere(tree: ast.Module, loop: ast.For, name: str, is_of_loop: bool) -> bool:
    """Return whether a function reads the variable that is not around the loop: a body may call it. is_of_loop: the tree is
    that of the loop's file, of which alone functions read a variable without a dot.
    """
    attribute = name.rpartition(".")[2]
    is_global = name == attribute if is_of_loop else name != attribute and attribute in stored_names(tree.body)
    for function in walk(tree):
        if not isinstance(function, Function | ast.Lambda) or any(node is loop for node in walk(function)):
            continue
        if (is_global and attribute in _free(function)) or (name != attribute and attribute in _attributes(function)):
            return True
    return False


def _attributes(node: ast.AST) -> set[str]:
    """Return the attributes that are read, except methods that are called."""
    called = {id(each.func) for each in walk(node) if isinstance(each, ast.Call)}
    found = [each for each in walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)]
    return {each.attr for each in found if id(each) not in called}


def _free(function: ast.AST) -> set[str]:
    if isinstance(function, ast.Lambda):
        arguments = function.args
        return read_names(function.body) - {
            each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
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


def counters_in(loop: ast.For, read_elsewhere: Set[str], effects: Effects) -> Iterator[Counter]:
    """Yield the counters that the source of a loop over batches shows. read_elsewhere: variables that code outside reads.
    effects: of the script's functions.
    """
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
        if _Uses(loop, name, read_elsewhere, effects).end_with_body(loop.body):
            yield Counter(name, by)


class _Uses:
    """How the body of a loop uses a counter, and numbers and decisions that follow from it."""

    def __init__(self, loop: ast.For, name: str, read_elsewhere: Set[str], effects: Effects) -> None:
        self._temporaries = of_iteration(loop.body, read_elsewhere)
        self._of_iteration = self._temporaries | {each.id for each in walk(loop.target) if isinstance(each, ast.Name)}
        self._effects = effects
        of_loop = stored_names([loop])
        self._counter, self._names = name, {name}
        assigned = [node for node in walk(loop) if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)]
        for _ in assigned:
            for node in assigned:
                if node.value is None or not self._reads(node.value):
                    continue
                others = read_names(node.value) & of_loop
                if others <= self._names or _is_decision(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self._names |= {
                        one.id
                        for each in targets
                        for one in walk(each)
                        if isinstance(one, ast.Name) and _is_stored(one)
                    }

    def _reads(self, node: ast.AST) -> bool:
        """Return whether a node reads the counter, also by another name of the object of which it is an attribute."""
        return any(
            isinstance(each, ast.Name) and not _is_stored(each) and each.id in self._names for each in walk(node)
        ) or ("." in self._counter and self._counter.rpartition(".")[2] in _attributes(node))

    def end_with_body(self, body: Sequence[ast.stmt], decided: bool = False) -> bool:
        """Return whether what these statements do by the counter lasts no longer than the body. decided: a condition on the
        counter is around them.
        """
        return all(self._ends_with_body(each, decided) for each in body)

    def _ends_with_body(self, node: ast.stmt, decided: bool) -> bool:
        match node:
            case ast.Pass() | ast.Raise():
                return True
            case ast.Expr(value=ast.Call() as call):
                if not (decided or self._reads(call)):
                    return True
                return called_name(call) in (LOGS if decided else {*LOGS, "backward"}) and not self._lasts(call)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                is_counter = ast.unparse(targets[0]) == self._counter
                if not (decided or self._reads(node)) or (is_counter and not decided):
                    return True
                of_body = all(isinstance(each, ast.Name) and each.id in self._temporaries for each in targets)
                return of_body and not self._lasts(node)
            case ast.If(test=test, body=body, orelse=orelse):
                inside = decided or self._reads(test)
                ends = self.end_with_body(body, inside) and self.end_with_body(orelse, inside)
                return ends and not (inside and self._lasts(test))
            case ast.With(body=body) | ast.For(body=body):
                head = [each for each in children(node) if not isinstance(each, ast.stmt)]
                inside = decided or any(map(self._reads, head))
                return self.end_with_body(body, inside) and not (inside and any(map(self._lasts, head)))
        return not decided and not self._reads(node)

    def _lasts(self, node: ast.AST) -> bool:
        """Return whether a call in a node may change what lasts longer than the body."""
        for call in (each for each in walk(node) if isinstance(each, ast.Call)):
            if self._effects.lasts(call) or ((root := self._effects.in_place(call)) and root not in self._of_iteration):
                return True
        return False


def _is_stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_decision(node: ast.expr) -> bool:
    """Return whether the value says yes or no: `n % 100 == 0 and good(x)`."""
    match node:
        case ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.IfExp():
            return True
        case ast.Call(func=ast.Name(id="bool" | "int" | "any" | "all"), args=[inner]):
            return _is_decision(inner)
    return False


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
