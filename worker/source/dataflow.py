"""How values flow through a script, read from its source: which statements bind a variable or an attribute, from what, and
under which conditions.

Assignments, calls of the script's own functions and methods, and the headers of loops are followed. An assignment to
a variable counts for the reads that it reaches (`reaching`); for attributes, and variables of several functions, the order
of statements is left out. No code of the script runs.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .liveness import LEAVING
from .reaching import Reaching
from .syntax import (
    Function,
    bound_names,
    called_name,
    children,
    imports,
    mutates,
    parameters,
    statements,
    stored_names,
    walk,
)

_EMPTIES = frozenset({"clear", "zero_", "fill_", "copy_", "fill"})
_SEEDS = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_all", "seed_everything", "set_seed"})
_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm", "clip_gradients"})
_ENDS = _SEEDS | _CLIPS  # functions with arguments on which gradients depend
CALLS = 3  # of functions within each other through which a change of an object is followed back
_CALLED = ("forward", "__call__")
_BY_NAME = frozenset({"asdict", "astuple", "getattr", "vars"})  # functions that may read any attribute of an object
_OF_RUN = frozenset({"prepare", "epochs", "join"})  # of the runtime: what is handed over there, the job carries


class Key(NamedTuple):
    """A variable (owner: its function or module; name with "()": what a call of it runs), or an attribute (owner: the name
    of its class, one of the script's own, or else the source of the object, with a dot).
    """

    owner: ast.AST | str
    name: str

    @property
    def last_name(self) -> str:
        """The name as of `kept.last_name`."""
        return f".{self.name}" if isinstance(self.owner, str) else self.name


class Change(NamedTuple):
    """A statement that binds a key, or changes a part of its value."""

    reads: tuple[ast.AST, ...]  # expressions that determine the new value
    scope: Scope
    tests: tuple[ast.expr, ...]  # conditions under which it runs
    made_of_itself: bool  # the new value contains the previous one
    empties: bool  # nothing of the previous value is left
    is_item: bool = False  # only an item is bound, of which the source does not show whether it had a value
    repeats: bool = True  # it may run in several loop bodies
    line: int = 0
    of_part: bool = False  # only an attribute of the object is bound
    in_place: bool = False  # the object changes, and so the value of each of its names
    target: ast.Name | None = None  # of an assignment to a variable, after which other reads than its own see the value


@dataclass(frozen=True)
class Scope:
    """A function or module, with the functions and the class around it."""

    node: ast.AST
    names: frozenset[str]  # bound in it
    outer: Scope | None = None
    of_class: str | None = None  # a method's class
    own: str = ""  # a method's name for its object
    path: tuple[str, ...] = ()  # names of the functions and classes around it, the outermost first, and its own

    def key(self, name: str) -> Key:
        scope: Scope = self
        while scope.outer is not None and name not in scope.names:
            scope = scope.outer
        return Key(scope.node, name)


class Read(NamedTuple):
    """A place in a slice where a key is read."""

    scope: Scope
    tests: tuple[ast.expr, ...]  # conditions under which it is
    line: int


class Use(NamedTuple):
    """A place that reads a variable."""

    key: Key
    name: ast.Name


class DataFlow:
    """The flow of values in these files."""

    def __init__(self, trees: Sequence[ast.Module], loop_scope: ast.AST) -> None:
        """trees: the script's files, the one with the loop first. loop_scope: the function or module that contains it."""
        self._places = loop_scope, trees[0]
        self._trees = trees
        self._globals = {tree: stored_names(tree.body) for tree in trees}
        self._imported = dict(pair for tree in trees for pair in imports(tree))  # the original name of each
        self._iterables: set[ast.AST] = set()  # in headers of loops
        self._stepped: set[Key] = set()  # optimizers and schedulers, which the job carries
        self._training: list[
            tuple[ast.For, ast.AST]
        ] = []  # loops of which each body computes a gradient, and their modules
        self._loops: list[tuple[ast.For | ast.While, Scope]] = []
        self._changes: dict[Key, list[Change]] = defaultdict(list)
        self._reaching: dict[ast.AST, Mapping[ast.Name, Collection[ast.Name]]] = {}  # by function or module
        self._functions: dict[Key, ast.AST] = {}
        self._methods: dict[str, list[tuple[str, Scope]]] = defaultdict(list)  # by name: classes and scopes
        self._scopes: dict[ast.AST, Scope] = {}
        self._returns: dict[ast.AST, list[Change]] = defaultdict(list)
        self._items: dict[ast.AST, list[Sequence[ast.expr]]] = defaultdict(
            list
        )  # of the tuples that a function returns
        self._classes: dict[str, ast.ClassDef] = {}
        self._attributes: dict[str, set[str]] = {}  # by class
        self._instances: dict[Key, list[str]] = defaultdict(list)  # classes of a variable's values
        self._foreign: set[Key] = set()  # variables with values that other libraries make
        self._sinks: list[Change] = []
        self._leaves: list[Change] = []  # of the loop over epochs, also by `run.stop()`
        self._saves: list[Change] = []  # calls of `.save(what, path)`
        # Module and line of the first call of a variable's method, which may change it
        self._uses: dict[Key, tuple[ast.AST, int]] = {}
        self._calls: list[tuple[ast.Call, Scope, tuple[ast.expr, ...]]] = []
        self._statements: list[tuple[ast.stmt, Scope, tuple[ast.expr, ...]]] = []
        for tree in trees:
            self._declare(tree.body, Scope(tree, frozenset()), None)
        for tree in trees:
            self._block(tree.body, Scope(tree, frozenset()), ())
        for scope in list(self._scopes.values()):
            self._block(scope.node.body, scope, ())  # type: ignore[attr-defined]
        for call, scope, tests in self._calls:
            self._bind_arguments(call, scope, tests)
        for _ in range(CALLS):
            self._pass_back()
        for key, changes in list(
            self._changes.items()
        ):  # attributes of an object of others' class are not read by a call
            self._changes[key._replace(name=f"{key.name}()")] = [each for each in changes if not each.of_part]

    # -- reading the source

    def _declare(self, body: Iterable[ast.stmt], scope: Scope, of_class: str | None) -> None:
        """Find functions, methods and classes."""
        for node in statements(body):
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
                self._attributes[node.name] = set(_attributes(node))
                self._declare(node.body, scope, node.name)
            elif isinstance(node, Function):
                arguments = [each.arg for each in parameters(node)]
                own = arguments[0] if of_class and arguments else ""
                path = (*scope.path, *([of_class] if of_class else ()), node.name)
                inner = Scope(
                    node, frozenset(bound_names(node)), scope, of_class or scope.of_class, own or scope.own, path
                )
                self._scopes[node] = inner
                if of_class:
                    self._methods[node.name].append((of_class, inner))
                else:
                    self._functions[scope.key(node.name)] = node
                self._declare(node.body, inner, None)

    def _block(self, body: Sequence[ast.stmt], scope: Scope, tests: tuple[ast.expr, ...]) -> None:
        """Record the changes, returns and calls of these statements."""
        for node in body:
            self._statement(node, scope, tests)
            if isinstance(node, ast.If) and isinstance(node.body[-1], LEAVING):
                tests = (*tests, _negated(node.test))  # what follows runs only if the condition does not hold

    def _statement(self, node: ast.stmt, scope: Scope, tests: tuple[ast.expr, ...]) -> None:
        for expression in children(node):
            if isinstance(expression, ast.expr | ast.withitem):
                self._expression(expression, scope, tests)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, scope, tests)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, value, scope, tests)
            case ast.AugAssign(target=target, value=value):
                self._note(target, (value,), scope, tests, made_of_itself=True)
                self._note_option(target, value, scope, tests)
            case ast.Return(value=value) if value is not None:
                self._returns[scope.node].append(Change((value,), scope, tests, False, False))
                self._items[scope.node].append(value.elts if isinstance(value, ast.Tuple) else ())
            case ast.Break() | ast.Return() if any(is_epochs(each) for each in tests):
                self._leaves.append(Change((), scope, tests, False, False))
        self._statements.append((node, scope, tests))
        match node:
            case ast.If(test=test) | ast.While(test=test):
                tests = (*tests, test)
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self._assign(target, iterable, scope, tests, whole=True)
                tests = (*tests, iterable)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, item.context_expr, scope, tests, whole=True)
                tests = (*tests, *(each.context_expr for each in items if _decides(each.context_expr)))
            case ast.Match(subject=subject, cases=cases):
                for each in cases:
                    guards = () if each.guard is None else (each.guard,)
                    self._block(each.body, scope, (*tests, subject, *guards))
        if isinstance(node, Function | ast.ClassDef):
            return  # functions and methods are read by themselves
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._iterables.add(tests[-1])
            if not isinstance(node, ast.AsyncFor):
                self._loops.append((node, scope))
            if isinstance(node, ast.For) and _computes_gradients(node.body):
                self._training.append((node, module_of_scope(scope)))
        for name in ("body", "orelse", "finalbody"):
            otherwise = isinstance(node, ast.If) and name == "orelse"
            self._block(getattr(node, name, ()), scope, (*tests[:-1], _negated(tests[-1])) if otherwise else tests)
        for handler in getattr(node, "handlers", ()):
            self._block(handler.body, scope, (*tests, ast.Name("KeyError", ast.Load())))

    def _expression(self, node: ast.AST, scope: Scope, around: tuple[ast.expr, ...]) -> None:
        """Note the calls in an expression, and what they change."""
        for each, conditions in _conditional(node):
            tests = (*around, *conditions)
            self._iterables.update(inner.iter for inner in getattr(each, "generators", ()))  # of a comprehension
            if isinstance(each, ast.NamedExpr):
                self._assign(each.target, each.value, scope, tests)
            if isinstance(each, ast.Yield) and each.value is not None:
                self._returns[scope.node].append(Change((each.value,), scope, tests, False, False))
            if not isinstance(each, ast.Call):
                continue
            self._calls.append((each, scope, tests))
            arguments = (*each.args, *(keyword.value for keyword in each.keywords))
            function = each.func
            if isinstance(function, ast.Attribute):
                self._note_use(function.value, scope, tests)
                if function.attr in ("backward", "clip"):
                    self._sinks.append(Change((function.value, *arguments), scope, tests, False, False))
                elif function.attr in _ENDS:
                    self._sinks.append(Change(arguments, scope, tests, False, False))
                elif function.attr == "stop" and is_run(function.value):
                    self._leaves.append(Change((), scope, tests, False, False))
                elif function.attr == "save" and len(arguments) > 1:
                    self._saves.append(Change(arguments, scope, tests, False, False))
                elif function.attr == "send":
                    self._note(function.value, arguments, scope, tests, made_of_itself=True)
                elif function.attr not in self._methods and mutates(function.attr):
                    empties = function.attr in _EMPTIES
                    if function.attr == "step" and isinstance(
                        stem := stem_of(function.value), ast.Name | ast.Attribute
                    ):
                        self._stepped.update(self._keys_of(stem, scope))
                    self._note(
                        function.value,
                        arguments,
                        scope,
                        tests,
                        made_of_itself=not empties,
                        empties=empties,
                        in_place=True,
                    )
                    if function.attr == "step" and arguments:  # of a scheduler: a value by which it sets options
                        self._sinks.append(Change(arguments, scope, tests, False, False))
            elif isinstance(function, ast.Name) and function.id == "next" and arguments:
                self._note_use(arguments[0], scope, tests)
                self._note(arguments[0], (), scope, tests, made_of_itself=True)
            elif isinstance(function, ast.Name) and function.id == "setattr" and arguments:  # some attribute
                self._note(arguments[0], arguments[1:], scope, tests, made_of_itself=False, is_item=True)
            elif isinstance(function, ast.Name) and self._imported.get(function.id, function.id) in _ENDS:
                self._sinks.append(Change(arguments, scope, tests, False, False))

    def _assign(
        self, target: ast.expr, value: ast.expr, scope: Scope, tests: tuple[ast.expr, ...], whole: bool = False
    ) -> None:
        """Note an assignment. whole: an item of the value is assigned, as in the header of a loop."""
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple) and not whole else []
            starred = any(isinstance(each, ast.Starred) for each in target.elts)
            for number, each in enumerate(target.elts):
                inner = values[number] if len(values) == len(target.elts) else value
                if isinstance(value, ast.Call) and not whole and not starred:
                    inner = ast.copy_location(ast.Subscript(value, ast.Constant(number), ast.Load()), value)
                self._assign(each, inner, scope, tests, whole)
            return
        if (
            isinstance(value, ast.IfExp) and not whole
        ):  # `x = x if x.is_fit() else y` binds as `if not x.is_fit(): x = y`
            same = ast.unparse(target)
            others = [each for each in (value.body, value.orelse) if ast.unparse(each) != same]
            if len(others) == 1:
                self._assign(target, others[0], scope, (*tests, value.test))
                return
        itself = _contains(value, stem_of(target))
        self._note_option(target, value, scope, tests)
        if isinstance(target, ast.Subscript):
            everything = isinstance(target.slice, ast.Slice) and not itself
            self._note(
                target,
                (value, target.slice),
                scope,
                tests,
                made_of_itself=itself,
                empties=everything,
                is_item=not everything,
            )
            return
        self._note(target, (value,), scope, tests, made_of_itself=itself, assigns=True)
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            self._sinks.append(Change((value,), scope, tests, False, False))
        call = value.value if isinstance(value, ast.Subscript) else value  # of an item: what makes all of them
        if isinstance(target, ast.Name) and isinstance(call, ast.Call):
            name, key = ast.unparse(call.func), scope.key(target.id)
            if name in self._classes:
                self._instances[key].append(name)
            elif isinstance(call.func, ast.Attribute) and self._is_foreign(call.func):
                self._foreign.add(key)

    def _note_option(self, target: ast.expr, value: ast.expr, scope: Scope, tests: tuple[ast.expr, ...]) -> None:
        """Note an option of an optimizer, which acts in each later update: `for group in optimizer.param_groups:
        group["lr"] = value`.
        """
        if isinstance(target, ast.Subscript) and any(
            isinstance(node, ast.Attribute) and node.attr == "param_groups"
            for each in (target, *tests)
            for node in walk(each)
        ):
            self._sinks.append(Change((value,), scope, tests, False, False))

    def _is_foreign(self, method: ast.Attribute) -> bool:
        """Return whether a method makes its result by others' code, except for what the job carries."""
        return method.attr not in _OF_RUN and (is_run(method.value) or method.attr not in self._methods)

    def _note(
        self,
        target: ast.expr,
        reads: Iterable[ast.AST],
        scope: Scope,
        tests: tuple[ast.expr, ...],
        *,
        made_of_itself: bool,
        empties: bool = False,
        is_item: bool = False,
        in_place: bool = False,
        assigns: bool = False,
    ) -> None:
        repeats = self._repeats(scope, tests)
        line = getattr(target, "lineno", 0)
        in_place |= isinstance(target, ast.Subscript)
        change = Change(tuple(reads), scope, tests, made_of_itself, empties, is_item, repeats, line, in_place=in_place)
        stem = stem_of(target)
        if assigns and isinstance(stem, ast.Name):
            change = change._replace(target=stem)
        for key in self._keys_of(stem, scope) if isinstance(stem, ast.Name | ast.Attribute) else ():
            self._changes[key].append(change)
        while isinstance(stem, ast.Attribute) and not self._kinds(stem.value, scope):
            stem = stem_of(stem.value)  # an attribute of an object of another's class is a part of that object
            if isinstance(stem, ast.Name):
                self._changes[scope.key(stem.id)].append(change._replace(of_part=True))

    def _note_use(self, node: ast.expr, scope: Scope, tests: tuple[ast.expr, ...]) -> None:
        """Note that a statement, which may run in several loop bodies, calls a method of a variable or attribute."""
        if isinstance(node, ast.Name | ast.Attribute) and self._repeats(scope, tests):
            for key in self._keys_of(node, scope):
                self._uses.setdefault(key, (module_of_scope(scope), node.lineno))

    def _repeats(self, scope: Scope, tests: tuple[ast.expr, ...]) -> bool:
        """Return whether a statement may run in several loop bodies: in a loop, or in a function that one calls."""
        called = scope.outer is not None and scope.node is not self._places[0]
        return not self._iterables.isdisjoint(tests) or (called and getattr(scope.node, "name", "") != "__init__")

    def _bind_arguments(self, call: ast.Call, scope: Scope, tests: tuple[ast.expr, ...]) -> None:
        """Note that the arguments of a call become the parameters of the script's own functions."""
        for name, value, function in self._bound_by(call, scope):
            self._changes[Key(function, name)].append(Change((value,), scope, tests, False, False))

    def _bound_by(self, call: ast.Call, scope: Scope) -> Iterator[tuple[str, ast.expr, ast.AST]]:
        """Yield the parameters that a call binds, each with its value and the function."""
        for function, skipped in self._called(call, scope):
            for name, value in _bound(function.node, skipped, call):
                yield name, value, function.node

    def _pass_back(self) -> None:
        """Note that what a function changes in the object of a parameter, changes in the caller's variable."""
        for call, scope, _ in self._calls:
            for name, value, function in self._bound_by(call, scope):
                stem = stem_of(value)
                inner = [each for each in self._changes.get(Key(function, name), ()) if each.in_place]
                for key in self._keys_of(stem, scope) if inner and isinstance(stem, ast.Name | ast.Attribute) else ():
                    if key != Key(function, name):
                        self._changes[key] += [each for each in inner if each not in self._changes[key]]

    def _called(self, call: ast.Call, scope: Scope) -> list[tuple[Scope, int]]:
        """Return the script's own functions that a call may reach, each with the number of parameters that it binds
        itself.
        """
        function = call.func
        if isinstance(function, ast.Name):
            key = scope.key(function.id)
            if key in self._functions:
                return [(self._scopes[self._functions[key]], 0)]
            if function.id in self._classes:
                return [(inner, 1) for kind, inner in self._methods["__init__"] if kind == function.id]
            if function.id in self._imported and key not in self._changes:
                return self._functions_of_others(self._imported[function.id], scope)
            if isinstance(key.owner, ast.Module) and key not in self._changes:
                return []  # imported, or Python's own
            kinds = self._with_bases(self._instances.get(key, ()))
            names = _CALLED[:1] if key in self._foreign else _CALLED  # a module of others' code may contain own modules
            return [(inner, 1) for name in names for kind, inner in self._methods[name] if not kinds or kind in kinds]
        if isinstance(function, ast.Attribute):
            if is_run(function.value):
                return []
            imported = isinstance(function.value, ast.Name) and function.value.id in self._imported
            if imported and (found := self._functions_of_others(function.attr, scope)):
                return found
            kinds = self._kinds(function.value, scope)
            return [(inner, 1) for kind, inner in self._methods.get(function.attr, ()) if not kinds or kind in kinds]
        return []

    def _functions_of_others(self, name: str, scope: Scope) -> list[tuple[Scope, int]]:
        """Return the functions of this name that the script's other modules have."""
        keys = [Key(tree, name) for tree in self._trees if tree is not module_of_scope(scope)]
        return [(self._scopes[self._functions[key]], 0) for key in keys if key in self._functions]

    def _kinds(self, node: ast.expr, scope: Scope) -> list[str]:
        """Return the own classes of an expression's value, with their bases; none: unknown."""
        if not isinstance(node, ast.Name):
            return []
        if node.id == scope.own and scope.of_class:
            return self._with_bases([scope.of_class])
        return self._with_bases([node.id] if node.id in self._classes else self._instances.get(scope.key(node.id), ()))

    def _with_bases(self, names: Iterable[str]) -> list[str]:
        """Return those of these classes that are the script's own, and their bases."""
        kinds: list[str] = []
        todo = list(names)
        while todo:
            kind = todo.pop()
            if kind in self._classes and kind not in kinds:
                kinds.append(kind)
                todo += [base.id for base in self._classes[kind].bases if isinstance(base, ast.Name)]
        return kinds

    def _keys_of(self, node: ast.Name | ast.Attribute, scope: Scope) -> list[Key]:
        """Return the keys of a variable, or of an attribute: of its class, or of the script's classes that have one of
        this name.
        """
        if isinstance(node, ast.Name):
            return [scope.key(node.id)]
        kinds = self._kinds(node.value, scope)
        if kinds:
            return [Key(kind, node.attr) for kind in kinds]
        if isinstance(node.value, ast.Name) and node.value.id in self._imported:
            trees = [
                tree for tree in self._trees if node.attr in self._globals[tree] and tree is not module_of_scope(scope)
            ]
            return [*(Key(tree, node.attr) for tree in trees), Key(f"{node.value.id}.", node.attr)]
        foreign = isinstance(node.value, ast.Name) and scope.key(node.value.id) in self._foreign
        having = [] if foreign else [kind for kind, names in self._attributes.items() if node.attr in names]
        return [*(Key(kind, node.attr) for kind in having), Key(f"{ast.unparse(node.value)}.", node.attr)]

    # -- the slice

    def _follow(
        self,
        sinks: Sequence[Change],
        parts: bool = True,
        places: dict[Key, list[Read]] | None = None,
        calls: bool = False,
    ) -> dict[Key, int]:
        """Return the keys on which these depend, with the first line of the slice that reads each. parts: an object of
        others' class depends on its attributes. places: to which all places of the slice are added that read a key. calls:
        whether what a function does beside returning a value depends on the conditions under which it is called.
        """
        found: dict[Key, int] = {}
        taken: set[int] = set()  # changes, by identity
        assigned: dict[Key, bool] = defaultdict(bool)  # whether there are changes that have not reached a read so far
        returned: set[ast.AST | tuple[ast.AST, int]] = set()
        entered: set[ast.AST] = set()  # functions of which all calls have been followed
        changes = list(sinks)
        for sink in sinks if calls else ():
            changes += self._calls_of(sink.scope.node, entered)
        while changes:
            change = changes.pop()
            for number, expression in enumerate((*change.reads, *change.tests), -len(change.reads)):
                line = getattr(expression, "lineno", 0) if change.repeats else sys.maxsize
                around = change.tests if number < 0 else change.tests[:number]
                for each in self._read(expression, change.scope):
                    if not isinstance(each, Key | Use):
                        changes += self._results(each) if each not in returned else ()
                        returned.add(each)
                        continue
                    key, name = each if isinstance(each, Use) else (each, None)
                    for one in self._changes.get(key, ()) if key not in found or assigned[key] else ():
                        if id(one) in taken or (one.of_part and not parts):
                            continue
                        if self._reaches(one, name):
                            taken.add(id(one))
                            changes.append(one)
                            if calls and key.owner is not one.scope.node:  # no variable of the function's own
                                changes += self._calls_of(one.scope.node, entered)
                        else:
                            assigned[key] = True
                    found[key] = min(found.get(key, line), line)
                    if places is not None:
                        places[key].append(Read(change.scope, around, line))
        return found

    def _calls_of(self, function: ast.AST, entered: set[ast.AST]) -> list[Change]:
        """Return the calls that reach a function, also by way of others, as changes that depend on their conditions alone.

        entered: functions that are left out; those found are added.
        """
        found: list[Change] = []
        todo = [function]
        while todo:
            node = todo.pop()
            if node not in entered:
                entered.add(node)
                found += self._callers.get(node, ())
                todo += [each.scope.node for each in self._callers.get(node, ())]
        return found

    @functools.cached_property
    def _callers(self) -> Mapping[ast.AST, Sequence[Change]]:
        found: dict[ast.AST, list[Change]] = defaultdict(list)
        for call, scope, tests in self._calls:
            for inner, _ in self._called(call, scope):
                found[inner.node].append(Change((), scope, tests, False, False))
        return found

    def _reaches(self, change: Change, name: ast.Name | None) -> bool:
        """Return whether the value of a change may be the one that this place reads (`Reaching`)."""
        if change.target is None or name is None:
            return True
        scope = change.scope.node
        if scope not in self._reaching:
            self._reaching[scope] = Reaching(scope).of
        found = self._reaching[scope].get(name)
        return found is None or change.target in found

    def _results(self, function: ast.AST | tuple[ast.AST, int]) -> Sequence[Change]:
        """Return what a function returns, or one item of it, if all of its results are tuples in the source."""
        if not isinstance(function, tuple):
            return self._returns.get(function, ())
        of, item = function
        results, tuples = self._returns.get(of, ()), self._items.get(of, ())
        if len(tuples) < len(results) or any(len(each) <= item for each in tuples):
            return results
        return [each._replace(reads=(items[item],)) for each, items in zip(results, tuples, strict=True)]

    def _read(
        self, node: ast.AST, scope: Scope, item: int | None = None
    ) -> Iterator[Key | Use | ast.AST | tuple[ast.AST, int]]:
        """Yield the keys that an expression reads, and the functions whose results it reads. item: of the results, the
        one that is read.
        """
        match node:
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(number))):
                yield from self._read(call, scope, number)
                return
        if isinstance(node, ast.Name):
            key = scope.key(node.id)
            yield Use(key, node)
            if key in self._functions:  # handed on, and called later
                yield self._functions[key]
            return
        if isinstance(node, ast.Attribute):
            yield from self._every_attribute(node.value, scope) if node.attr == "__dict__" else ()
            yield from self._keys_of(node, scope)
            yield from (each.node for each in self._properties(node, scope))
            yield from self._read(node.value, scope)
            return
        parts = children(node)
        if isinstance(node, ast.Call):
            name = called_name(node) if isinstance(node.func, ast.Attribute) else ""
            if name in _OF_RUN and (name != "join" or not node.args):  # `os.path.join(…)` is another function
                return
            if called_name(node) in _BY_NAME and node.args:
                yield from self._every_attribute(node.args[0], scope)
            called = self._called(node, scope)
            for function, _ in called:
                yield function.node if item is None else (function.node, item)
            own = isinstance(node.func, ast.Name) and scope.key(node.func.id) in self._functions
            if isinstance(node.func, ast.Attribute):
                yield from self._read(node.func.value, scope)
            elif called and isinstance(node.func, ast.Name):
                key = scope.key(node.func.id)
                yield from (() if own else (Use(key._replace(name=f"{key.name}()"), node.func),))
            else:
                yield from self._read(node.func, scope)
            if called and own:
                return  # the arguments count where the function reads its parameters
            parts = [*node.args, *(each.value for each in node.keywords)]
        for child in parts:
            yield from self._read(child, scope)

    def _every_attribute(self, node: ast.expr, scope: Scope) -> Iterator[Key]:
        """Yield the attributes that an object may have of the script's own classes."""
        for kind in self._kinds(node, scope) or self._classes:
            yield from (Key(kind, name) for name in self._attributes[kind])

    def _properties(self, node: ast.Attribute, scope: Scope) -> list[Scope]:
        """Return the properties of the script's own classes that this attribute may read."""
        kinds = self._kinds(node.value, scope)
        found = [inner for kind, inner in self._methods.get(node.attr, ()) if not kinds or kind in kinds]
        return [each for each in found if is_property(each.node)]


def _bound(function: ast.AST, skipped: int, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the parameters that a call binds, each with its value. What `*` and `**` unpack may belong to each parameter.

    skipped: how many parameters the call does not bind: `self`.
    """
    assert isinstance(function, Function)
    names = [each.arg for each in parameters(function)]
    positional = names[skipped : len(names) - len(function.args.kwonlyargs)]
    rest, options = ([each.arg] if each is not None else [] for each in (function.args.vararg, function.args.kwarg))
    for number, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            yield from ((name, value.value) for name in (*positional[number:], *rest))
        else:
            yield from ((name, value) for name in positional[number : number + 1] or rest)
    for keyword in call.keywords:
        some = (
            [*names[skipped:], *options] if keyword.arg is None else [keyword.arg] if keyword.arg in names else options
        )
        yield from ((name, keyword.value) for name in some)


def _conditional(node: ast.AST) -> Iterator[tuple[ast.AST, tuple[ast.expr, ...]]]:
    """Yield the nodes of an expression, each with the conditions within the expression under which it is computed: those of `x if
    y else z`, of `and` and `or`, and of comprehensions, with what these iterate over.
    """
    todo: list[tuple[ast.AST, tuple[ast.expr, ...]]] = [(node, ())]
    for each, tests in todo:
        yield each, tests
        match each:
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                todo += [(test, tests), (body, (*tests, test)), (otherwise, (*tests, _negated(test)))]
            case ast.BoolOp(op=op, values=values):
                for value in values:
                    todo.append((value, tests))
                    tests = (*tests, value if isinstance(op, ast.And) else _negated(value))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for inner in each.generators:
                    todo.append((inner.iter, tests))
                    tests = (*tests, inner.iter)
                    for test in inner.ifs:
                        todo.append((test, tests))
                        tests = (*tests, test)
                made = [each.key, each.value] if isinstance(each, ast.DictComp) else [each.elt]
                todo += [(value, tests) for value in made]
            case _:
                todo += [(inner, tests) for inner in children(each)]


def _negated(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _computes_gradients(body: Iterable[ast.stmt]) -> bool:
    """Return whether these statements call `backward()` on every way through them."""
    for node in body:
        if isinstance(node, ast.With) and _computes_gradients(node.body):
            return True
        calls = (
            [each for each in walk(node) if isinstance(each, ast.Call)]
            if isinstance(node, ast.Expr | ast.Assign)
            else []
        )
        if any(isinstance(each.func, ast.Attribute) and each.func.attr == "backward" for each in calls):
            return True
    return False


def module_of_scope(scope: Scope) -> ast.AST:
    while scope.outer is not None:
        scope = scope.outer
    return scope.node


def is_property(function: ast.AST) -> bool:
    return any(ast.unparse(each).endswith("property") for each in getattr(function, "decorator_list", ()))


def is_run(node: ast.expr) -> bool:
    """Return whether the expression is called as the pages call the runtime's object: `run`, `self.run`."""
    return (isinstance(node, ast.Name) and node.id == "run") or (isinstance(node, ast.Attribute) and node.attr == "run")


def is_epochs(node: ast.AST) -> bool:
    """Return whether the expression is `run.epochs(…)`, in the header of the loop over epochs."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "epochs"


def _decides(node: ast.expr) -> bool:
    """Return whether a context decides about gradients by a value: `torch.set_grad_enabled(step > 10)`."""
    enabled = any(
        isinstance(each, ast.Call)
        and (
            any(word.arg == "enabled" for word in each.keywords) or ast.unparse(each.func).endswith("set_grad_enabled")
        )
        for each in walk(node)
    )
    return enabled or any(isinstance(each, ast.IfExp) for each in walk(node))


def stem_of(node: ast.expr) -> ast.expr:
    """Return the variable or attribute of which the expression is an item."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    return node


def _contains(value: ast.expr, stem: ast.expr) -> bool:
    """Return whether an expression reads this variable or attribute."""
    if isinstance(stem, ast.Name):
        return any(isinstance(each, ast.Name) and each.id == stem.id for each in walk(value))
    if not isinstance(stem, ast.Attribute):
        return False
    same = [each for each in walk(value) if isinstance(each, ast.Attribute) and each.attr == stem.attr]
    return bool(same) and ast.unparse(stem) in map(ast.unparse, same)


def _attributes(kind: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class, or a method of it, binds."""
    for node in walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for statement in kind.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (each.id for each in walk(statement) if isinstance(each, ast.Name))
