"""The values on which the gradient of a loop body depends, according to the script's source: a backward slice (Weiser,
1981).

The slice begins at calls of `backward()`, `run.clip()` and `clip_grad_norm_()`, at assignments to `.grad`, and where
the script seeds a generator or sets an option of an optimizer. A second one begins where the loop over epochs is left.
A slice follows assignments, calls of the script's own functions and methods, and the conditions under which these run.
The order of statements counts for variables of one function (`reaching`), not for attributes. No code of the script
runs. A value in the slice may act in a later step only, such as a counter that is compared with a threshold, or a
memory that is read from some epoch on.

Not all that is in the slice and differs is a fault: entries of a cache follow from their keys, and scratch memory is
written before it is read. So a value is kept only if a statement makes it from its previous one, or an item is read before it
is bound, or the value is bound under a condition that does not hold in each body and is read also where it need not hold; and
no statement makes it anew each time.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import NamedTuple

from ..kept import Difference, Kind, is_function_type, path_of_function
from .dataflow import Change, DataFlow, Key, Read, Scope, Use, is_epochs, module_of_scope, stem_of
from .liveness import read_first, target_names
from .syntax import called_name, children, parameters, stored_names, walk

_RESTORING = frozenset({"__init__", "__setstate__", "load_state_dict"})  # what calls these makes or restores an object
KEPT = (Kind.PLAIN, Kind.TENSOR, Kind.ARRAY, Kind.CONTAINER, Kind.ITERATOR)
_SIZES = frozenset({"device", "dtype", "ndim", "numel", "shape", "size"})  # of a tensor; not its values
_ARGUMENT = re.compile(r"(\w+)\((\w+)\)(?:\[([^\]]*)\])?")
_OF_TYPES = frozenset({"getattr", "hasattr", "isinstance", "len"})
_COUNTING = frozenset({"count", "range", "trange"})
_READING = frozenset({"load", "load_file", "loadtxt", "open", "read_bytes", "read_csv", "read_text"})
_WRITING = ("'w'", "'wb'", "'a'", "'ab'", "'x'")  # modes of `open`
_TEMPORARY = frozenset({"NamedTemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp", "mktemp"})
_OF_PROCESS = frozenset({"getpid", "uuid1", "uuid4"})
_OF_DATA = frozenset({"batch_sampler", "collate_fn", "dataset", "sampler"})  # arguments of `run.prepare`
_UPDATES = frozenset({"before_update", "after_update"})
_RUN_BY_OTHERS = ("__call__", "__getitem__", "__getitems__", "__iter__", "__next__")  # methods of objects
_HARMLESS = frozenset({"copy", "count", "get", "index", "item", "items", "keys", "mean", "values"})  # methods
MODES = frozenset({"eval", "train"})  # methods of modules
_TRAINS = frozenset({"training"})  # attributes that have one value in all loop bodies


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


class Slice(DataFlow):
    """The backward slice of the gradient in these files."""

    def __init__(
        self, trees: Sequence[ast.Module], loop_scope: ast.AST, statistics: bool = False, modes: bool = False
    ) -> None:
        """trees and loop_scope: as for `DataFlow`. statistics: whether a call of the model changes its buffers. modes: whether
        the model computes other values in training mode.
        """
        super().__init__(trees, loop_scope)
        # What acts on the model and not by the gradient, so in later loop bodies
        self._of_model = [*(self._model_calls() if statistics else ()), *(self._mode_changes() if modes else ())]
        self._sinks += self._of_model
        self._reads: dict[Key, list[Read]] = defaultdict(list)
        self._of_gradient = self._follow(self._sinks, places=self._reads)  # with the first line that reads the key
        self._of_end = self._follow(self._leaves, places=self._reads)
        self._of_saved = self._follow(self._saves)

    @property
    def names(self) -> frozenset[str]:
        """The names of the variables and attributes on which the gradient depends."""
        return frozenset(key.name for key in self._of_gradient)

    def reads(self, difference: Difference) -> bool:
        """Return whether the gradient, or the end of the loop, depends on this value."""
        keys = self._every_key(difference)
        return not keys.isdisjoint(self._of_gradient) or not keys.isdisjoint(self._of_end)

    def of_samples(self, difference: Difference, changed: bool = False) -> bool:
        """Return whether a function that reads samples, such as a method of a dataset or a `collate_fn`, reads this value.

        changed: and changes it, so that the value depends on how far a worker has read ahead.
        """
        read, written = self._of_data
        keys = self._every_key(difference)
        return not keys.isdisjoint(read) and not (changed and keys.isdisjoint(written))

    def of_hooks(self, difference: Difference) -> bool:
        """Return whether a hook, or a function that runs with each update, reads this value."""
        return not self._every_key(difference).isdisjoint(self._of_hooks[0])

    def _every_key(self, difference: Difference) -> KeysView[Key]:
        """Return the keys to which the names of the value may belong, each once."""
        return dict.fromkeys(key for each in difference.by_each_name for key in self._keys_of_name(each)).keys()

    @functools.cached_property
    def _of_data(self) -> tuple[set[Key], set[Key]]:
        handed = []
        for call, scope, _ in self._calls:
            if called_name(call) == "prepare":
                values = (*call.args[2:], *(each.value for each in call.keywords if each.arg in _OF_DATA))
                handed += [(value, scope) for value in values]
        return self._read_and_changed(handed)

    @functools.cached_property
    def _of_hooks(self) -> tuple[set[Key], set[Key]]:
        handed: list[tuple[ast.AST, Scope]] = []
        for call, scope, _ in self._calls:
            name = called_name(call)
            if name == "prepare":
                handed += [(each.value, scope) for each in call.keywords if each.arg in _UPDATES]
            elif name.startswith("register_") and "hook" in name:
                handed += [(value, scope) for value in (*call.args, *(each.value for each in call.keywords))]
        return self._read_and_changed(handed)

    def _read_and_changed(self, handed: Iterable[tuple[ast.AST, Scope]]) -> tuple[set[Key], set[Key]]:
        """Return the keys that the functions of `_functions_behind` read, and those that they change."""
        functions = self._functions_behind(handed)
        read, changed = set[Key](), set[Key]()
        for node in functions:
            scope = self._scopes[node]
            for each in walk(node):
                if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load):
                    read.update(self._keys_of(each, scope))
                if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
                    continue
                target = stem_of(each.func.value)
                if isinstance(target, ast.Name | ast.Attribute) and each.func.attr not in _HARMLESS:
                    changed.update(self._keys_of(target, scope))
        for key, changes in self._changes.items():
            if any(each.scope.node in functions for each in changes):
                changed.add(key)
                if any(each.made_of_itself and each.scope.node in functions for each in changes):
                    read.add(key)
        return read, changed

    def _functions_behind(self, handed: Iterable[tuple[ast.AST, Scope]]) -> set[ast.AST]:
        """Return the script's functions that run through values which the script hands to others: functions, methods of objects,
        and what they call.
        """
        found, seen = set[ast.AST](), set[Key]()
        todo = list(handed)
        while todo:
            node, scope = todo.pop()
            names = [each for each in walk(node) if isinstance(each, ast.Name)]
            keys = [scope.key(each.id) for each in names]
            kinds = [each.id for each in names if each.id in self._classes]
            kinds += [kind for key in keys for kind in self._instances.get(key, ())]
            kinds = self._with_bases(kinds)
            reached = [self._functions[key] for key in keys if key in self._functions]
            reached += [
                inner.node for name in _RUN_BY_OTHERS for kind, inner in self._methods.get(name, ()) if kind in kinds
            ]
            if node in self._scopes:  # a function
                calls = [each for each in walk(node) if isinstance(each, ast.Call)]
                reached += [inner.node for call in calls for inner, _ in self._called(call, scope)]
            else:
                news = [key for key in dict.fromkeys(keys) if key not in seen]
                seen.update(news)
                todo += [
                    (value, one.scope) for key in news for one in self._changes.get(key, ()) for value in one.reads
                ]
            todo += [(each, self._scopes[each]) for each in reached if each not in found]
            found.update(reached)
        return found

    def used_at(self, difference: Difference) -> tuple[ast.AST, int] | None:
        """Return module and line where loop bodies call a method of this value, on which the gradient, the end of the loop or a
        saved file depends. None: none does.
        """
        for key in self._every_key(difference):
            if (used := self._uses.get(key)) and any(key in found for found in self._every):
                return used
        return None

    @property
    def _every(self) -> tuple[Mapping[Key, int], ...]:
        return self._of_gradient, self._of_end, self._of_saved

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
        keys = self._every_key(difference)
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
                    found.append((key.name, module_of_scope(added[0].scope), added[0].line))
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
                    found.append((key.name, module_of_scope(bound[0].scope), bound[0].line))
        return found

    def left_in_pass(
        self, place: tuple[ast.AST, int], carried: Collection[str], batches: Collection[str]
    ) -> list[tuple[Key, ast.AST, int]]:
        """Return the variables, and attributes of the script's own classes, that bodies leave to later bodies of the same pass,
        and on which the gradient, the end of the loop or a saved file depends: key, and module and line of the change. What a
        loop's header takes beside the batches is among them, such as numbers.

        place: where the pass begins, by module and line: at the header of the loop, or where its iterator is made. carried:
        last names (`kept.last_name`) of variables to leave out: the process has their values. batches: variables that refer to
        the batches.
        """
        module = place[0]
        if (at := self._loop_at(*place)) is None:
            return []
        loop, scope = at
        header = loop.iter if isinstance(loop, ast.For) else loop.test
        within = self._reached(loop.body, scope)
        headed = _is_headed_at(loop, place[1])  # otherwise `next()` takes the batches, and changes their iterator
        given = stored_names([ast.For(loop.target, loop.iter, [], [])]) if isinstance(loop, ast.For) else set()
        left = {scope.key(name) for name in read_first(loop.body) - given}
        counted = {scope.key(name) for name in counted_by(loop, batches)}
        # A number of the header that is read behind the gradient acts in later bodies alone, by what lives until then
        sinks = [one for each in self._sinks if header in each.tests for one in each.reads if isinstance(one, ast.expr)]
        behind = max((each.lineno for each in sinks), default=loop.end_lineno or 0)
        lives = [each for key in left & self._of_gradient.keys() for each in self._changes.get(key, ())]
        living = self._follow([*lives, *self._of_model])
        found: dict[Key, tuple[ast.AST, int]] = {}
        for key in {**self._of_gradient, **self._of_end, **self._of_saved}:
            changes = [each for each in self._changes.get(key, ()) if not each.of_part]
            inside = [each for each in changes if header in each.tests or each.scope.node in within]
            renewed = any(not each.made_of_itself and self._renews(each) for each in inside)
            if key in self._stepped:
                continue
            is_left = key in left or (key.owner in self._classes and not renewed)
            own = [each for each in inside if (each.reads or headed) and (key in left or each.made_of_itself)]
            if key in counted and (self._of_gradient.get(key, 0) <= behind or key in living):
                found[key] = module, loop.lineno
            elif is_left and own and key.last_name not in carried:
                found[key] = module_of_scope(own[0].scope), own[0].line
        return [(key, *place) for key, place in found.items()]

    def counted_epochs(self) -> list[tuple[Key, ast.AST, int]]:
        """Return the variables that the header of the loop over epochs counts, or takes beside the epochs, as `left_in_pass`
        returns keys: a process that begins in a later epoch begins them anew.
        """
        found = []
        for loop, scope in self._loops:
            if not isinstance(loop, ast.For) or scope.node is not self._places[0]:
                continue
            calls = [each for each in walk(loop.iter) if is_epochs(each)]
            for name in counted_by(
                loop, [each.id for one in calls for each in walk(one) if isinstance(each, ast.Name)]
            ):
                key = scope.key(name)
                if calls and any(key in each for each in self._every):
                    found.append((key, module_of_scope(scope), loop.lineno))
        return found

    def _loop_at(self, module: ast.AST, line: int) -> tuple[ast.For | ast.While, Scope] | None:
        """Return the loop over batches whose header is on this line, or which takes batches by `next()` from an iterator that is
        made there; and its scope.
        """
        loops = [each for each in self._loops if module_of_scope(each[1]) is module]
        for loop, scope in reversed(loops):
            if _is_headed_at(loop, line):
                return loop, scope
        taking = [each for each in loops if (each[0].end_lineno or 0) >= line and _takes(each[0])]
        around = [each for each in taking if each[0].lineno <= line]
        return around[-1] if around else next(iter(taking), None)

    def positions_of_bars(self) -> list[tuple[Key, ast.AST, int]]:
        """Return the positions of progress bars on which the gradient depends, as `left_in_pass` returns keys."""
        roots = {key.owner for key in self._of_gradient if isinstance(key.owner, str) and key.name == "n"}
        made = [(key, each) for key, changes in self._changes.items() if f"{key.name}." in roots for each in changes]
        bars = [
            (key, each)
            for key, each in made
            if any(isinstance(one, ast.Call) and called_name(one) in ("tqdm", "trange") for one in each.reads)
        ]
        return [(key, module_of_scope(each.scope), each.line) for key, each in bars]

    def own_files(self) -> list[tuple[str, ast.AST, int]]:
        """Return the calls, such as `tempfile.mkdtemp()`, by which a process makes the name of a file that no other process has,
        and that the script reads: source, module and line. A directory that loop bodies make anew does not count.
        """
        found = []
        for call, scope, _ in self._calls:
            if called_name(call) not in _READING or any(one in ast.unparse(call) for one in _WRITING):
                continue
            path = (*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else []))
            changes = [Change(path, scope, (), False, False)]
            changes += [each for key in self._follow(changes) for each in self._changes.get(key, ())]
            for change in changes:
                for made in (each for value in change.reads for each in walk(value) if isinstance(each, ast.Call)):
                    name = called_name(made)
                    if name in _OF_PROCESS or (name in _TEMPORARY and not self._repeats(change.scope, change.tests)):
                        found.append((ast.unparse(made), module_of_scope(change.scope), made.lineno))
        return found

    @functools.cached_property
    def _modes(self) -> Mapping[ast.AST, Sequence[tuple[int, str]]]:
        """Calls of `.eval()` and `.train()` by function: lines and names, in their order."""
        found: dict[ast.AST, list[tuple[int, str]]] = defaultdict(list)
        for call, scope, _ in self._calls:
            if called_name(call) in MODES and isinstance(call.func, ast.Attribute):
                found[scope.node].append((call.lineno, called_name(call)))
        return {node: sorted(each) for node, each in found.items()}

    def _mode_changes(self) -> Iterator[Change]:
        """Yield the calls of `.eval()` that leave the mode to later loop bodies: no `.train()` follows in the same function, nor
        does each body call it.
        """
        loops = {loop.iter for loop, _ in self._training}
        if any(called_name(call) == "train" and tests and tests[-1] in loops for call, _, tests in self._calls):
            return
        for call, scope, tests in self._calls:
            behind = [name for line, name in self._modes.get(scope.node, ()) if line > call.lineno]
            if called_name(call) == "eval" and isinstance(call.func, ast.Attribute) and "train" not in behind:
                yield Change((call.func.value,), scope, tests, False, False)

    def _model_calls(self) -> Iterator[Change]:
        """Yield the calls of variables and attributes, such as models, except behind `.eval()` in the same function."""
        for call, scope, tests in self._calls:
            before = [each for each in self._modes.get(scope.node, ()) if each[0] < call.lineno]
            if isinstance(call.func, ast.Name | ast.Attribute) and (not before or before[-1][1] == "train"):
                keys = [key for key in self._keys_of(call.func, scope) if key not in self._functions]
                made = [value for key in keys for each in self._changes.get(key, ()) for value in each.reads]
                if made and not all(isinstance(each, ast.Call) and called_name(each).endswith("Loss") for each in made):
                    yield Change((call.func, *call.args), scope, tests, False, False)

    def _reached(self, body: Iterable[ast.stmt], scope: Scope) -> set[ast.AST]:
        """Return the script's own functions that these statements of a function or module call, directly or indirectly."""
        found: set[ast.AST] = set()
        todo: list[tuple[ast.AST, Scope]] = [(each, scope) for each in body]
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
            if any(module is one and _is_headed_at(loop, line) for one, line in places)
        ]

    def _is_added_up(self, key: Key, training: Sequence[ast.For]) -> bool:
        """Return whether loop bodies add to a value that is not made anew behind their loop."""
        changes = self._changes.get(key, ())
        if key in self._stepped or key.name in self._imported:
            return False
        if any(self._iterables.intersection(each.reads) for each in changes):
            return False  # an item of what a loop iterates over
        left = [loop for loop in training if isinstance(key.owner, str) or key.name in read_first(loop.body)]
        added = [(each, loop) for each in changes if each.made_of_itself for loop in left if loop.iter in each.tests]
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
        keys = self._every_key(difference)
        foreign = all(isinstance(key.owner, str) and key.owner.endswith(".") for key in keys)
        if foreign and None in (difference.ones, difference.others):
            found = self._follow(
                sinks, parts=False
            )  # the script has added the attribute, which others' code does not know
        kind = difference.node.kind
        if found.keys().isdisjoint(keys) or difference.in_data or kind not in KEPT:
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

    def _changing_tests(self, tests: Iterable[ast.expr], scope: Scope) -> tuple[_Test, ...]:
        """Return those of these conditions that need not be the same in all bodies."""
        found = [each for each in tests if each not in self._iterables and self._varies(each, scope)]
        return tuple(map(_Test.of, found))

    def _varies(self, test: ast.expr, scope: Scope, depth: int = 4) -> bool:
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
            if not isinstance(each, Key | Use):
                return True
            key, name = each if isinstance(each, Use) else (each, None)
            for change in self._changes.get(key, ()):
                if not self._reaches(change, name):
                    continue
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

    def _is_size(self, node: ast.AST, scope: Scope, depth: int = 4) -> bool:
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
        """Return whether a statement makes the value anew in each loop body, or in each call of a function that bodies call."""
        if change.is_item or change.empties or not self._iterables.issuperset(change.tests):
            return False
        return self._may_run_in_loops(change, set())

    def _may_run_in_loops(self, change: Change, taken: set[ast.AST]) -> bool:
        """Return whether a statement may run in a loop, also by way of the calls of its function. A function without a call in
        the source may, unless it restores a state. taken: functions of which the calls need not be followed.
        """
        function = change.scope.node
        if not self._iterables.isdisjoint(change.tests):
            return True
        if function is self._places[0] or change.scope.outer is None or function in taken:
            return False
        taken.add(function)
        if not (calls := self._callers.get(function, ())):
            return getattr(function, "name", "") not in _RESTORING
        return any(self._may_run_in_loops(each, taken) for each in calls)

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
        keys = [Key(kind, attribute) for owner in owners for kind in (*self._with_bases([owner]), f"{root}.")]
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


def _in_every_case(conditions: Iterable[tuple[_Test, ...]]) -> bool:
    """Return whether one of these conditions holds in any case, such as those of `if` and `else`."""
    found = set(conditions)
    while both := [each for each in found if each and (*each[:-1], each[-1].negated()) in found]:
        for each in both:
            found.discard(each)
            found.add(each[:-1])
    return () in found


def _is_headed_at(loop: ast.For | ast.While, line: int) -> bool:
    """Return whether the header of a loop over an iterable is on this line."""
    return isinstance(loop, ast.For) and loop.lineno <= line <= (loop.iter.end_lineno or 0)


def _takes(loop: ast.For | ast.While) -> bool:
    """Return whether a loop, without loops in it, calls `next()`."""
    todo: list[ast.AST] = [*loop.body, *([loop.test] if isinstance(loop, ast.While) else [])]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call) and called_name(node) == "next":
            return True
        if not isinstance(node, ast.For | ast.While):
            todo += children(node)
    return False


def counted_by(loop: ast.For | ast.While, batches: Collection[str]) -> Iterator[str]:
    """Yield the variables of a loop's header that are not of the batches: what `enumerate`, `range` or `itertools.count` counts,
    and what `zip` takes beside the batches. batches: variables that refer to them.
    """
    return _counted_by(loop.target, loop.iter, batches) if isinstance(loop, ast.For) else iter(())


def _counted_by(target: ast.expr, taken: ast.expr, batches: Collection[str]) -> Iterator[str]:
    if not isinstance(taken, ast.Call):
        return
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    match called_name(taken):
        case "enumerate" if taken.args:
            yield from target_names(targets[0])
            yield from _counted_by(targets[-1], taken.args[0], batches)
        case "zip":
            names = [{each.id for each in walk(one) if isinstance(each, ast.Name)} for one in taken.args]
            known = any(not each.isdisjoint(batches) for each in names)
            for each, argument, named in zip(targets, taken.args, names, strict=False):
                counts = isinstance(argument, ast.Call) and called_name(argument) in _COUNTING
                if counts or (known and named.isdisjoint(batches)):
                    yield from target_names(each)
        case name if name in _COUNTING:
            yield from target_names(targets[0])
        case _:  # such as a progress bar
            for argument in taken.args:
                yield from _counted_by(target, argument, batches)


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
