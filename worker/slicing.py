"""The values on which the gradient of a loop body depends, according to the script's source: a backward slice (Weiser,
1981).

The slice begins at calls of `backward()`, `run.clip()` and `clip_grad_norm_()`, at assignments to `.grad`, and where the
script seeds a generator or sets an option of an optimizer. A second one begins where the loop over epochs is left. A slice
follows assignments, calls of the script's own functions and methods, and the conditions under which these run; the order of
statements is left out. No code of the script runs. A value in the slice may act in a later step only, such as a counter that
is compared with a threshold, or a memory that is read from some epoch on.

Not all that is in the slice and differs is a fault: entries of a cache follow from their keys, and scratch memory is
written before it is read. So a value is kept only if a statement makes it from its previous one, or an item is read before it
is bound, or the value is bound under a condition that does not hold in each body and is read also where it need not hold; and
no statement makes it anew each time.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .assigned import read_first
from .kept import Difference, Kind, is_function_type, path_of_function
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
_KEPT = (Kind.PLAIN, Kind.TENSOR, Kind.ARRAY, Kind.CONTAINER, Kind.ITERATOR)
_SIZES = frozenset({"device", "dtype", "ndim", "numel", "shape", "size"})  # of a tensor; not its values
_SEEDS = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_all", "seed_everything", "set_seed"})
_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm", "clip_gradients"})
_ENDS = _SEEDS | _CLIPS  # functions with arguments on which gradients depend
_CALLED = ("forward", "__call__")
_OF_RUN = frozenset({"prepare", "epochs", "join"})  # of the runtime: what is handed over there, the job carries
_ARGUMENT = re.compile(r"(\w+)\((\w+)\)(?:\[([^\]]*)\])?")
_OF_TYPES = frozenset({"getattr", "hasattr", "isinstance", "len"})
_COUNTING = frozenset({"count", "range", "trange"})
_TRAINS = frozenset({"training"})  # attributes that have one value in all loop bodies
_Leaving = ast.Return | ast.Continue | ast.Break | ast.Raise


class Key(NamedTuple):
    """A variable (owner: its function or module; name with "()": what a call of it runs), or an attribute (owner: the name
    of its class, one of the script's own, or else the source of the object, with a dot).
    """

    owner: ast.AST | str
    name: str


class Change(NamedTuple):
    """A statement that binds a key, or changes a part of its value."""

    reads: tuple[ast.AST, ...]  # expressions that determine the new value
    scope: _Scope
    tests: tuple[ast.expr, ...]  # conditions under which it runs
    made_of_itself: bool  # the new value contains the previous one
    empties: bool  # nothing of the previous value is left
    is_item: bool = False  # only an item is bound, of which the source does not show whether it had a value
    repeats: bool = True  # it may run in several loop bodies
    line: int = 0
    of_part: bool = False  # only an attribute of the object is bound


@dataclass(frozen=True)
class _Scope:
    """A function or module, with the functions and the class around it."""

    node: ast.AST
    names: frozenset[str]  # bound in it
    outer: _Scope | None = None
    of_class: str | None = None  # a method's class
    own: str = ""  # a method's name for its object
    path: tuple[str, ...] = ()  # names of the functions and classes around it, the outermost first, and its own

    def key(self, name: str) -> Key:
        scope: _Scope = self
        while scope.outer is not None and name not in scope.names:
            scope = scope.outer
        return Key(scope.node, name)


class _Read(NamedTuple):
    """A place in a slice where a key is read."""

    scope: _Scope
    tests: tuple[ast.expr, ...]  # conditions under which it is
    line: int


class _Test(NamedTuple):
    """The source of a condition, and whether it has to hold."""

    text: str
    holds: bool

    @staticmethod
    def of(test: ast.expr) -> _Test:
        holds = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        return _Test(ast.unparse(test), holds)

    def negated(self) -> _Test:
        return self._replace(holds=not self.holds)


class Slice:
    """The backward slice of the gradient in these files."""

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
        self._loops: list[tuple[ast.For | ast.While, _Scope]] = []
        self._changes: dict[Key, list[Change]] = defaultdict(list)
        self._functions: dict[Key, ast.AST] = {}
        self._methods: dict[str, list[tuple[str, _Scope]]] = defaultdict(list)  # by name: classes and scopes
        self._scopes: dict[ast.AST, _Scope] = {}
        self._returns: dict[ast.AST, list[Change]] = defaultdict(list)
        self._items: dict[ast.AST, list[Sequence[ast.expr]]] = defaultdict(
            list
        )  # of the tuples that a function returns
        self._classes: dict[str, ast.ClassDef] = {}
        self._attributes: dict[str, set[str]] = {}  # by class
        self._instances: dict[Key, list[str]] = defaultdict(list)  # classes of a variable's values
        self._foreign: set[Key] = set()  # variables with values that other libraries make
        self._sinks: list[Change] = []
        self._leaves: list[Change] = []  # of the loop over epochs
        self._calls: list[tuple[ast.Call, _Scope, tuple[ast.expr, ...]]] = []
        for tree in trees:
            self._declare(tree.body, _Scope(tree, frozenset()), None)
        for tree in trees:
            self._block(tree.body, _Scope(tree, frozenset()), ())
        for scope in list(self._scopes.values()):
            self._block(scope.node.body, scope, ())  # type: ignore[attr-defined]
        for call, scope, tests in self._calls:
            self._bind_arguments(call, scope, tests)
        for key, changes in list(
            self._changes.items()
        ):  # attributes of an object of others' class are not read by a call
            self._changes[key._replace(name=f"{key.name}()")] = [each for each in changes if not each.of_part]
        self._reads: dict[Key, list[_Read]] = defaultdict(list)
        self._of_gradient = self._follow(self._sinks, places=self._reads)  # with the first line that reads the key
        self._of_end = self._follow(self._leaves, places=self._reads)

    @property
    def names(self) -> frozenset[str]:
        """The names of the variables and attributes on which the gradient depends."""
        return frozenset(key.name for key in self._of_gradient)

    def reads(self, difference: Difference) -> bool:
        """Return whether the gradient, or the end of the loop, depends on this value."""
        keys = {key for each in difference.by_each_name for key in self._keys_of_name(each)}
        return not keys.isdisjoint(self._of_gradient) or not keys.isdisjoint(self._of_end)

    def carries(self, difference: Difference) -> bool:
        """Return whether the gradient depends on this value, and a loop body makes the value from its previous one."""
        return self._is_kept(difference, self._of_gradient, self._sinks)

    def ends(self, difference: Difference) -> bool:
        """Return whether the same holds for the end of the loop: it is left under a condition that depends on the value."""
        return self._is_kept(difference, self._of_end, self._leaves)

    def follows_from_bodies(self, difference: Difference, places: Collection[tuple[ast.AST, int]]) -> bool:
        """Return whether the value depends on what the bodies of a worker add up, such as a sum of losses. A loop that also
        evaluates, since it computes gradients under a condition alone, does not count: the source does not show which
        of its results is used.

        places: of the headers of the loops over batches, by module and line.
        """
        keys = [key for each in difference.by_each_name for key in self._keys_of_name(each)]
        changes = [change for key in keys for change in self._changes_of(key)]
        loops = self._loops_at(places)
        return any(self._is_added_up(key, loops) for key in {*keys, *self._follow(changes)})

    def added_up(self, places: Collection[tuple[ast.AST, int]]) -> list[tuple[str, ast.AST, int]]:
        """Return the variables in which bodies add up values of batches, such as a number of correct answers, and on which the
        gradient or the end of the loop depends: name, and module and line of the change. places: as for
        `follows_from_bodies`. Attributes are left out, which may be those of `run.state`.
        """
        found = []
        for key in {**self._of_gradient, **self._of_end}:
            for loop in self._loops_at(places) if isinstance(key.owner, ast.AST) else ():
                changes = [each for each in self._changes.get(key, ()) if not each.of_part]
                added = [
                    each
                    for each in changes
                    if each.made_of_itself
                    and loop.iter in each.tests
                    and not all(isinstance(value, ast.Constant) for value in each.reads)
                ]
                renewed = any(
                    loop.iter in each.tests and not each.made_of_itself and self._renews(each) for each in changes
                )
                if added and not renewed and self._is_added_up(key, [loop]):
                    found.append((key.name, _module(added[0].scope), added[0].line))
        return found

    def bound_at_times(self, places: Collection[tuple[ast.AST, int]]) -> list[tuple[str, ast.AST, int]]:
        """As `added_up`: the variables, and attributes of the script's own classes, that bodies bind under a condition."""
        found = []
        for key in self._of_gradient:
            own = isinstance(key.owner, ast.AST) or key.owner in self._classes
            for loop in self._loops_at(places) if own else ():
                changes = [each for each in self._changes.get(key, ()) if each.repeats and not each.of_part]
                bound = [each for each in changes if loop.iter in each.tests and not _fills(each, key.name)]
                if bound and len(bound) == len(changes) and self._is_bound_at_times(key, bound):
                    found.append((key.name, _module(bound[0].scope), bound[0].line))
        return found

    def left_in_pass(self, place: tuple[ast.AST, int], carried: Collection[str]) -> list[tuple[Key, ast.AST, int]]:
        """Return the variables, and attributes of the script's own classes, that bodies leave to later bodies of the same pass,
        and on which the gradient or the end of the loop depends: key, and module and line of the change. The numbers that
        a loop's header counts are among them.

        place: where the pass begins, by module and line: at the header of the loop, or where its iterator is made. carried:
        names of variables, and of attributes, to leave out: the process has their values.
        """
        module, line = place
        around = [each for each in self._loops if _module(each[1]) is module and _reads_batches(each[0], line)]
        loop, scope = max(around, key=lambda each: each[0].lineno, default=(None, None))
        if loop is None or scope is None:
            return []
        header = loop.iter if isinstance(loop, ast.For) else loop.test
        within = self._reached(loop.body, scope)
        found = {}
        counted = {scope.key(name): (module, loop.lineno) for name in counted_by(loop)}
        given = (
            {each.id for each in walk(loop.target) if isinstance(each, ast.Name)}
            if isinstance(loop, ast.For)
            else set()
        )
        left = {scope.key(name) for name in read_first(loop.body) - given}
        for key in {**self._of_gradient, **self._of_end}:
            changes = [each for each in self._changes.get(key, ()) if not each.of_part]
            inside = [each for each in changes if header in each.tests or each.scope.node in within]
            renewed = any(not each.made_of_itself and self._renews(each) for each in inside)
            if key in self._stepped:
                continue
            is_left = key in left or (key.owner in self._classes and not renewed)
            own = [each for each in inside if each.reads and (key in left or each.made_of_itself)]
            if key in counted:
                found[key] = counted[key]
            elif is_left and own and key.name not in carried:
                found[key] = _module(own[0].scope), own[0].line
        return [(key, *place) for key, place in found.items()]

    def positions_of_bars(self) -> list[tuple[Key, ast.AST, int]]:
        """Return the positions of progress bars on which the gradient depends, as `left_in_pass` returns keys."""
        roots = {key.owner for key in self._of_gradient if isinstance(key.owner, str) and key.name == "n"}
        made = [(key, each) for key, changes in self._changes.items() if f"{key.name}." in roots for each in changes]
        bars = [
            (key, each)
            for key, each in made
            if any(isinstance(one, ast.Call) and called_name(one) in ("tqdm", "trange") for one in each.reads)
        ]
        return [(key, _module(each.scope), each.line) for key, each in bars]

    def _reached(self, body: Iterable[ast.stmt], scope: _Scope) -> set[ast.AST]:
        """Return the script's own functions that these statements of a function or module call, directly or indirectly."""
        found: set[ast.AST] = set()
        todo: list[tuple[ast.AST, _Scope]] = [(each, scope) for each in body]
        while todo:
            node, scope = todo.pop()
            for call in (each for each in walk(node) if isinstance(each, ast.Call)):
                news = [inner for inner, _ in self._called(call, scope) if inner.node not in found]
                found.update(each.node for each in news)
                todo += [(each.node, each) for each in news]
        return found

    def _loops_at(self, places: Collection[tuple[ast.AST, int]]) -> list[ast.For]:
        """Return the loops of which each body computes a gradient, and whose headers are at these places."""
        return [
            loop
            for loop, module in self._training
            if any(module is one and loop.lineno <= line <= (loop.iter.end_lineno or 0) for one, line in places)
        ]

    def _is_added_up(self, key: Key, training: Sequence[ast.For]) -> bool:
        """Return whether loop bodies add to a value that is not made anew behind their loop."""
        changes = self._changes.get(key, ())
        if key in self._stepped or key.name in self._imported:
            return False
        if any(self._iterables.intersection(each.reads) for each in changes):
            return False  # an item of what a loop iterates over
        added = [
            (each, loop) for each in changes if each.made_of_itself for loop in training if loop.iter in each.tests
        ]
        return any(
            not any(
                each.scope is one.scope and each.line > (loop.end_lineno or 0)
                for each in changes
                if not each.made_of_itself
            )
            for one, loop in added
        )

    def _is_kept(self, difference: Difference, found: Mapping[Key, int], sinks: Sequence[Change]) -> bool:
        """found: the slice that begins at the sinks."""
        keys = [key for each in difference.by_each_name for key in self._keys_of_name(each)]
        foreign = all(isinstance(key.owner, str) and key.owner.endswith(".") for key in keys)
        if foreign and None in (difference.ones, difference.others):
            found = self._follow(
                sinks, parts=False
            )  # the script has added the attribute, which others' code does not know
        kind = difference.node.kind
        if found.keys().isdisjoint(keys) or difference.in_data or kind not in _KEPT:
            return False
        made = [(change, key) for key in keys for change in self._changes_of(key)]
        made = [(each, key) for each, key in made if each.repeats and not _fills(each, key.name)]
        made = [(each, key) for each, key in made if not self._is_greatest_size(each, key.name)]
        itself = {id(each) for each, key in made if each.made_of_itself or key in self._follow([each])}
        if any(id(each) not in itself and self._renews(each) for each, _ in made):
            return False
        in_container = kind is Kind.CONTAINER or "[" in difference.name
        if in_container and any(each.empties and self._iterables.issuperset(each.tests) for each, _ in made):
            return False
        read_at = min(found[key] for key in keys if key in found)
        return (
            bool(itself)
            or any(each.is_item and read_at < each.line for each, _ in made)
            or any(self._is_bound_at_times(key, [each for each, one in made if one == key]) for key in keys)
        )

    def _is_bound_at_times(self, key: Key, changes: Sequence[Change]) -> bool:
        """Return whether each of these changes binds the key under a condition that does not hold in each body, and a body reads
        the key in which none of them need have run, so that it has the value of an earlier body.
        """
        bound = [(each, self._changing_tests(each.tests, each.scope)) for each in changes]
        if not bound or any(each.is_item or each.empties or not each.line or not tests for each, tests in bound):
            return False
        if _in_every_case([tests for _, tests in bound]):
            return False
        for change, tests in bound:
            for scope, around, line in self._reads.get(key, ()):
                others = {
                    each
                    for each in self._changing_tests(around, scope)
                    if not re.search(rf"\b{re.escape(key.name)}\b", each.text)
                }
                before = scope is change.scope and line < change.line and not others >= set(tests)
                if before or others < set(tests) or any(each.negated() in tests for each in others):
                    return True
        return False

    def _changing_tests(self, tests: Iterable[ast.expr], scope: _Scope) -> tuple[_Test, ...]:
        """Return those of these conditions that need not be the same in all bodies."""
        found = [each for each in tests if each not in self._iterables and self._varies(each, scope)]
        return tuple(map(_Test.of, found))

    def _varies(self, test: ast.expr, scope: _Scope, depth: int = 4) -> bool:
        """Return whether a loop body, or the loop's course, changes what the condition reads, other than sizes of tensors."""
        match test:
            case ast.Attribute(attr=attribute) if attribute in _TRAINS:
                return False
            case ast.UnaryOp(operand=operand):
                return self._varies(operand, scope, depth)
            case ast.BoolOp(values=values):
                return any(self._varies(each, scope, depth) for each in values)
            case ast.Compare(left=left, comparators=others) if any(
                self._is_size(each, scope) for each in (left, *others)
            ):
                return False
        for each in self._read(test, scope):
            if not isinstance(each, Key):
                return True
            for change in self._changes.get(each, ()):
                if change.line and (change.repeats or not self._iterables.isdisjoint(change.reads)):
                    return True
                if (
                    not change.line
                    and depth
                    and any(  # an argument
                        self._varies(value, change.scope, depth - 1)
                        for value in change.reads
                        if isinstance(value, ast.expr)
                    )
                ):
                    return True
        return any(isinstance(each, ast.Call) and called_name(each) not in _OF_TYPES for each in walk(test))

    def _is_greatest_size(self, change: Change, name: str) -> bool:
        """Return whether a change keeps for which size something was made: `if n > self.cached_n: self.cached_n = n`."""
        compared = [test for test in change.tests if any(name in _names_of(each) for each in walk(test))]
        return bool(compared) and bool(change.reads) and all(self._is_size(each, change.scope) for each in change.reads)

    def _is_size(self, node: ast.AST, scope: _Scope, depth: int = 4) -> bool:
        """Return whether an expression is a size of tensors, also by way of variables and parameters."""
        match node:
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(attr="size" | "numel") as inner):
                return self._is_size(inner, scope, depth)
            case ast.Attribute(attr=attribute):
                return attribute in _SIZES
            case ast.Call(func=ast.Name(id="len")):
                return True
            case ast.Name(id=name) if depth:
                changes = self._changes.get(scope.key(name), [])
                reads = [(each, change.scope) for change in changes for each in change.reads]
                return bool(reads) and all(self._is_size(each, inner, depth - 1) for each, inner in reads)
        return False

    def _changes_of(self, key: Key) -> list[Change]:
        """Return the changes of a key. A function that gives its variable to inner functions makes another one when it is
        called again, so only theirs count.
        """
        changes = self._changes.get(key, [])
        if key.owner not in self._scopes or key.owner is self._places[0]:
            return changes
        return [each for each in changes if each.scope.node is not key.owner] or changes

    def _renews(self, change: Change) -> bool:
        """Return whether a statement makes the value anew in each loop body, or in each call of a function."""
        return not change.is_item and not change.empties and self._iterables.issuperset(change.tests)

    def _keys_of_name(self, difference: Difference) -> list[Key]:
        """Return the keys to which this name may belong."""
        bound = _ARGUMENT.match(difference.name)
        if bound is not None:
            return self._keys_of_argument(*bound.groups())
        name = difference.name.partition("[")[0]
        root, _, attribute = name.rpartition(".")
        if not root:
            return [Key(each, name) for each in dict.fromkeys(self._places)]
        if not difference.owners:  # of another module
            return [Key(tree, attribute) for tree in self._trees if attribute in self._globals[tree]]
        owners = difference.owners[name.count(".") - 1 : name.count(".")]
        keys = [Key(kind, attribute) for owner in owners for kind in self._with_bases([owner]) or (f"{root}.",)]
        for owner in owners:
            if is_function_type(owner):
                keys += self._keys_of_closure(path_of_function(owner), attribute)
        return keys

    def _keys_of_closure(self, path: tuple[str, ...], name: str) -> list[Key]:
        """Return the keys of a variable that a function with this path has from the functions around it.

        A lambda expression has no scope of its own: its path without the last names is the one of a function.
        """
        for length in range(len(path), 0, -1):
            found = [scope.key(name) for scope in self._scopes.values() if scope.path == path[:length]]
            if found:
                return found
        return []

    def _keys_of_argument(self, root: str, argument: str, item: str | None) -> list[Key]:
        """Return the parameters for a default value `root(argument)`, or for what a `functools.partial` binds:
        `root(args)[0]`, `root(keywords)['scale']`.
        """
        keys: list[Key] = []
        for place in dict.fromkeys(self._places):
            key = Key(place, root)
            if key in self._functions:
                keys.append(Key(self._functions[key], argument))
            for change in self._changes.get(key, ()):
                for function in self._functions_in(change):
                    names = [each.arg for each in parameters(function)]
                    if argument == "args" and item is not None and item.isdigit():
                        keys += [Key(function, name) for name in names[int(item) :][:1]]
                    elif item is not None:
                        keys.append(Key(function, item.strip("'\"")))
        return keys

    def _functions_in(self, change: Change) -> Iterator[ast.AST]:
        """Yield the script's functions to which the new value refers by name."""
        for each in (node for value in change.reads for node in walk(value) if isinstance(node, ast.Name)):
            if (key := change.scope.key(each.id)) in self._functions:
                yield self._functions[key]

    # -- reading the source

    def _declare(self, body: Iterable[ast.stmt], scope: _Scope, of_class: str | None) -> None:
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
                inner = _Scope(
                    node, frozenset(bound_names(node)), scope, of_class or scope.of_class, own or scope.own, path
                )
                self._scopes[node] = inner
                if of_class:
                    self._methods[node.name].append((of_class, inner))
                else:
                    self._functions[scope.key(node.name)] = node
                self._declare(node.body, inner, None)

    def _block(self, body: Sequence[ast.stmt], scope: _Scope, tests: tuple[ast.expr, ...]) -> None:
        """Record the changes, returns and calls of these statements."""
        for node in body:
            self._statement(node, scope, tests)
            if isinstance(node, ast.If) and isinstance(node.body[-1], _Leaving):
                tests = (*tests, _negated(node.test))  # what follows runs only if the condition does not hold

    def _statement(self, node: ast.stmt, scope: _Scope, tests: tuple[ast.expr, ...]) -> None:
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
            case ast.Break() | ast.Return() if any(_is_epochs(each) for each in tests):
                self._leaves.append(Change((), scope, tests, False, False))
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
                self._training.append((node, _module(scope)))
        for name in ("body", "orelse", "finalbody"):
            otherwise = isinstance(node, ast.If) and name == "orelse"
            self._block(getattr(node, name, ()), scope, (*tests[:-1], _negated(tests[-1])) if otherwise else tests)
        for handler in getattr(node, "handlers", ()):
            self._block(handler.body, scope, (*tests, ast.Name("KeyError", ast.Load())))

    def _expression(self, node: ast.AST, scope: _Scope, tests: tuple[ast.expr, ...]) -> None:
        """Note the calls in an expression, and what they change."""
        for each in walk(node):
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
                if function.attr in ("backward", "clip"):
                    self._sinks.append(Change((function.value, *arguments), scope, tests, False, False))
                elif function.attr in _ENDS:
                    self._sinks.append(Change(arguments, scope, tests, False, False))
                elif function.attr == "send":
                    self._note(function.value, arguments, scope, tests, made_of_itself=True)
                elif function.attr not in self._methods and mutates(function.attr):
                    empties = function.attr in _EMPTIES
                    if function.attr == "step" and isinstance(stem := _stem(function.value), ast.Name | ast.Attribute):
                        self._stepped.update(self._keys_of(stem, scope))
                    self._note(function.value, arguments, scope, tests, made_of_itself=not empties, empties=empties)
                    if function.attr == "step" and arguments:  # of a scheduler: a value by which it sets options
                        self._sinks.append(Change(arguments, scope, tests, False, False))
            elif isinstance(function, ast.Name) and function.id == "next" and arguments:
                self._note(arguments[0], (), scope, tests, made_of_itself=True)
            elif isinstance(function, ast.Name) and function.id == "setattr" and arguments:  # some attribute
                self._note(arguments[0], arguments[1:], scope, tests, made_of_itself=False, is_item=True)
            elif isinstance(function, ast.Name) and self._imported.get(function.id, function.id) in _ENDS:
                self._sinks.append(Change(arguments, scope, tests, False, False))

    def _assign(
        self, target: ast.expr, value: ast.expr, scope: _Scope, tests: tuple[ast.expr, ...], whole: bool = False
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
        itself = _contains(value, _stem(target))
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
        self._note(target, (value,), scope, tests, made_of_itself=itself)
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            self._sinks.append(Change((value,), scope, tests, False, False))
        call = value.value if isinstance(value, ast.Subscript) else value  # of an item: what makes all of them
        if isinstance(target, ast.Name) and isinstance(call, ast.Call):
            name, key = ast.unparse(call.func), scope.key(target.id)
            if name in self._classes:
                self._instances[key].append(name)
            elif isinstance(call.func, ast.Attribute) and self._is_foreign(call.func):
                self._foreign.add(key)

    def _note_option(self, target: ast.expr, value: ast.expr, scope: _Scope, tests: tuple[ast.expr, ...]) -> None:
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
        return method.attr not in _OF_RUN and (_is_run(method.value) or method.attr not in self._methods)

    def _note(
        self,
        target: ast.expr,
        reads: Iterable[ast.AST],
        scope: _Scope,
        tests: tuple[ast.expr, ...],
        *,
        made_of_itself: bool,
        empties: bool = False,
        is_item: bool = False,
    ) -> None:
        repeats = self._repeats(scope, tests)
        line = getattr(target, "lineno", 0)
        change = Change(tuple(reads), scope, tests, made_of_itself, empties, is_item, repeats, line)
        stem = _stem(target)
        for key in self._keys_of(stem, scope) if isinstance(stem, ast.Name | ast.Attribute) else ():
            self._changes[key].append(change)
        while isinstance(stem, ast.Attribute) and not self._kinds(stem.value, scope):
            stem = _stem(stem.value)  # an attribute of an object of another's class is a part of that object
            if isinstance(stem, ast.Name):
                self._changes[scope.key(stem.id)].append(change._replace(of_part=True))

    def _repeats(self, scope: _Scope, tests: tuple[ast.expr, ...]) -> bool:
        """Return whether a statement may run in several loop bodies: in a loop, or in a function that one calls."""
        called = scope.outer is not None and scope.node is not self._places[0]
        return not self._iterables.isdisjoint(tests) or (called and getattr(scope.node, "name", "") != "__init__")

    def _bind_arguments(self, call: ast.Call, scope: _Scope, tests: tuple[ast.expr, ...]) -> None:
        """Note that the arguments of a call become the parameters of the script's own functions."""
        for function, skipped in self._called(call, scope):
            names = [each.arg for each in parameters(function.node)][skipped:]
            pairs = [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
            for name, value in pairs:
                if name is not None:
                    self._changes[Key(function.node, name)].append(Change((value,), scope, tests, False, False))

    def _called(self, call: ast.Call, scope: _Scope) -> list[tuple[_Scope, int]]:
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
            if _is_run(function.value):
                return []
            imported = isinstance(function.value, ast.Name) and function.value.id in self._imported
            if imported and (found := self._functions_of_others(function.attr, scope)):
                return found
            kinds = self._kinds(function.value, scope)
            return [(inner, 1) for kind, inner in self._methods.get(function.attr, ()) if not kinds or kind in kinds]
        return []

    def _functions_of_others(self, name: str, scope: _Scope) -> list[tuple[_Scope, int]]:
        """Return the functions of this name that the script's other modules have."""
        keys = [Key(tree, name) for tree in self._trees if tree is not _module(scope)]
        return [(self._scopes[self._functions[key]], 0) for key in keys if key in self._functions]

    def _kinds(self, node: ast.expr, scope: _Scope) -> list[str]:
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

    def _keys_of(self, node: ast.Name | ast.Attribute, scope: _Scope) -> list[Key]:
        """Return the keys of a variable, or of an attribute: of its class, or of the script's classes that have one of
        this name.
        """
        if isinstance(node, ast.Name):
            return [scope.key(node.id)]
        kinds = self._kinds(node.value, scope)
        if kinds:
            return [Key(kind, node.attr) for kind in kinds]
        if isinstance(node.value, ast.Name) and node.value.id in self._imported:
            trees = [tree for tree in self._trees if node.attr in self._globals[tree] and tree is not _module(scope)]
            return [*(Key(tree, node.attr) for tree in trees), Key(f"{node.value.id}.", node.attr)]
        foreign = isinstance(node.value, ast.Name) and scope.key(node.value.id) in self._foreign
        having = [] if foreign else [kind for kind, names in self._attributes.items() if node.attr in names]
        return [*(Key(kind, node.attr) for kind in having), Key(f"{ast.unparse(node.value)}.", node.attr)]

    # -- the slice

    def _follow(
        self, sinks: Sequence[Change], parts: bool = True, places: dict[Key, list[_Read]] | None = None
    ) -> dict[Key, int]:
        """Return the keys on which these depend, with the first line of the slice that reads each. parts: an object of
        others' class depends on its attributes. places: to which all places of the slice are added that read a key.
        """
        found: dict[Key, int] = {}
        returned: set[ast.AST | tuple[ast.AST, int]] = set()
        changes = list(sinks)
        while changes:
            change = changes.pop()
            for number, expression in enumerate((*change.reads, *change.tests), -len(change.reads)):
                line = getattr(expression, "lineno", 0) if change.repeats else sys.maxsize
                around = change.tests if number < 0 else change.tests[:number]
                for each in self._read(expression, change.scope):
                    if not isinstance(each, Key):
                        changes += self._results(each) if each not in returned else ()
                        returned.add(each)
                        continue
                    more = self._changes.get(each, ()) if each not in found else ()
                    changes += [one for one in more if parts or not one.of_part]
                    found[each] = min(found.get(each, line), line)
                    if places is not None:
                        places[each].append(_Read(change.scope, around, line))
        return found

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
        self, node: ast.AST, scope: _Scope, item: int | None = None
    ) -> Iterator[Key | ast.AST | tuple[ast.AST, int]]:
        """Yield the keys that an expression reads, and the functions whose results it reads. item: of the results, the
        one that is read.
        """
        match node:
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(number))):
                yield from self._read(call, scope, number)
                return
        if isinstance(node, ast.Name):
            key = scope.key(node.id)
            yield key
            if key in self._functions:  # handed on, and called later
                yield self._functions[key]
            return
        if isinstance(node, ast.Attribute):
            yield from self._keys_of(node, scope)
            yield from (each.node for each in self._properties(node, scope))
            yield from self._read(node.value, scope)
            return
        parts = children(node)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_RUN:
                return
            called = self._called(node, scope)
            for function, _ in called:
                yield function.node if item is None else (function.node, item)
            own = isinstance(node.func, ast.Name) and scope.key(node.func.id) in self._functions
            if isinstance(node.func, ast.Attribute):
                yield from self._read(node.func.value, scope)
            elif called and isinstance(node.func, ast.Name):
                key = scope.key(node.func.id)
                yield from (() if own else (key._replace(name=f"{key.name}()"),))
            else:
                yield from self._read(node.func, scope)
            if called and own:
                return  # the arguments count where the function reads its parameters
            parts = [*node.args, *(each.value for each in node.keywords)]
        for child in parts:
            yield from self._read(child, scope)

    def _properties(self, node: ast.Attribute, scope: _Scope) -> list[_Scope]:
        """Return the properties of the script's own classes that this attribute may read."""
        kinds = self._kinds(node.value, scope)
        found = [inner for kind, inner in self._methods.get(node.attr, ()) if not kinds or kind in kinds]
        return [each for each in found if _is_property(each.node)]


def _in_every_case(conditions: Iterable[tuple[_Test, ...]]) -> bool:
    """Return whether one of these conditions holds in any case, such as those of `if` and `else`."""
    found = set(conditions)
    while both := [each for each in found if each and (*each[:-1], each[-1].negated()) in found]:
        for each in both:
            found.discard(each)
            found.add(each[:-1])
    return () in found


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


def _reads_batches(loop: ast.For | ast.While, line: int) -> bool:
    """Return whether the loop's header is on this line, or the loop takes batches by `next()` from what is made there."""
    if isinstance(loop, ast.For) and loop.lineno <= line <= (loop.iter.end_lineno or 0):
        return True
    calls = [each for each in walk(loop) if isinstance(each, ast.Call)]
    return line <= (loop.end_lineno or 0) and any(called_name(each) == "next" and each.lineno >= line for each in calls)


def counted_by(loop: ast.For | ast.While) -> Iterator[str]:
    """Yield the variables that the header of a loop counts, by `enumerate`, `range` or `itertools.count`."""
    if not isinstance(loop, ast.For):
        return
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    for call in (each for each in walk(loop.iter) if isinstance(each, ast.Call)):
        match called_name(call):
            case "enumerate":
                counted = [True]
            case "zip":
                counted = [isinstance(each, ast.Call) and called_name(each) in _COUNTING for each in call.args]
            case name:
                counted = [name in _COUNTING and call is loop.iter]
        pairs = zip(targets, counted, strict=False)
        yield from (target.id for target, counts in pairs if counts and isinstance(target, ast.Name))


def _module(scope: _Scope) -> ast.AST:
    while scope.outer is not None:
        scope = scope.outer
    return scope.node


def _is_property(function: ast.AST) -> bool:
    return any(ast.unparse(each).endswith("property") for each in getattr(function, "decorator_list", ()))


def _fills(change: Change, name: str) -> bool:
    """Return whether the change only adds what is missing, as a cache does: `if key not in cache: cache[key] = …`.

    Its condition may also read how large the value is, or on which device: `if cache is None or len(cache) < n:`. A condition
    that reads the value itself decides by what earlier bodies have left: `if best is None or loss < best:`.
    """
    for test in change.tests:
        if isinstance(test, ast.Name) and test.id == "KeyError":
            return True
        named = {id(each) for each in walk(test) if name in _names_of(each)}
        if named and named <= {id(each) for node in walk(test) for each in _presence(node, change.made_of_itself)}:
            return True
    return False


def _presence(node: ast.AST, made_of_itself: bool) -> Iterator[ast.AST]:
    """Yield what is within an expression that says whether there is a value, or how large it is."""
    match node:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[tested]):
            yield from walk(tested)
        case ast.Compare(left=tested, ops=[ast.Is() | ast.IsNot()]) if not made_of_itself:
            yield from walk(tested)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name() | ast.Attribute() | ast.Subscript() as tested):
            yield from walk(tested)
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, tested]) | ast.Call(func=ast.Name(id="len"), args=[tested]):
            yield from walk(tested)
        case ast.Attribute(value=tested, attr=attribute) if attribute in _SIZES:
            yield from walk(tested)


def _names_of(node: ast.AST) -> tuple[object, ...]:
    return getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "value", "")


def _is_run(node: ast.expr) -> bool:
    """Return whether the expression is called as the pages call the runtime's object: `run`, `self.run`."""
    return (isinstance(node, ast.Name) and node.id == "run") or (isinstance(node, ast.Attribute) and node.attr == "run")


def _is_epochs(node: ast.expr) -> bool:
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


def _stem(node: ast.expr) -> ast.expr:
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
