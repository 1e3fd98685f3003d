"""Values of a script that have no effect but on displays, according to the script's source.

Such values may differ between workers, and be lost by a restart, without a word: counters and meters that only reach `print`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Mapping, Sequence

from ..kept import Difference, Kind, is_function_type, path_of_function
from .dataflow import Change, Key, Scope, is_property, is_run
from .logged import LOGS
from .reaching import SUPPRESSES
from .slicing import KEPT, MODES, Slice
from .syntax import Function, bound_parameters, called_name, children, walk

# Functions whose results depend on values of their arguments, not on attributes
_OF_VALUES = frozenset(
    """
    abs all any bool dict enumerate float hasattr id int isinstance issubclass iter len list map max min next range repr reversed
    round set sorted str sum super tuple type zip
    """.split()  # noqa: SIM905
)
_OF_CONTAINERS = frozenset(
    """
    add append appendleft clear difference_update discard extend extendleft insert intersection_update move_to_end pop popitem
    popleft remove reverse rotate setdefault sort symmetric_difference_update update
    """.split()  # noqa: SIM905
)
_ACTING = ("add_", "apply", "register", "save", "send", "set_", "submit")  # beginnings of names of functions that act
_HIDDEN = frozenset({"eval", "exec", "globals", "locals"})  # functions that may read any variable
# Functions of a class that Python calls where the source has an assignment or an operator
_CALLED_BY_SYNTAX = frozenset({"__delattr__", "__delitem__", "__set__", "__setattr__", "__setitem__"})
_CONTEXTS = frozenset({"autocast", "enable_grad", "inference_mode", "no_grad", "nullcontext", "record_function"})
_NEW = frozenset({"defaultdict", "deque", "dict", "list", "set", "sorted"})  # functions whose results are new objects
_OPERATOR = re.compile(r"__[ir]?(add|sub|mul|matmul|truediv|floordiv|mod|pow|lshift|rshift|and|xor|or)__")
_DISPLAYS = frozenset({"__repr__", "__str__", "__format__"})
# Objects of which code of others reads attributes
_OF_OTHERS = frozenset({Kind.DATA, Kind.ITERATOR, Kind.MODEL, Kind.MODULE})


class Uses(Slice):
    """The slice of the gradient, and what else depends on a value."""

    def is_without_effect(self, difference: Difference) -> bool:
        """Return whether, by the source, only displays and other such values depend on this value: nothing that trains, that is
        saved, that ends the loop, that reads samples, or that code of others may do.

        The value is a variable's, or an attribute's of one of the script's own classes.
        """
        if difference.node.kind not in KEPT or not _OF_OTHERS.isdisjoint(difference.holders) or self._is_hidden:
            return False
        return all(map(self._has_no_effect, difference.by_each_name))

    @functools.cached_property
    def _is_hidden(self) -> bool:
        """Whether the script reads variables by names that it makes as it runs, or has classes for which an assignment does more
        than assign.
        """
        nodes = [each for tree in self._trees for each in walk(tree)]
        names = (each.id for each in nodes if isinstance(each, ast.Name))
        return not _HIDDEN.isdisjoint(names) or any(isinstance(each, Function) and _is_implicit(each) for each in nodes)

    def _has_no_effect(self, difference: Difference) -> bool:
        root, *parts = re.findall(r"\w+|\[[^\]]*\]", difference.name)
        attributes = [number for number, part in enumerate(parts) if not part.startswith("[")]
        holders = [root, *parts][: attributes[-1] + 1 if attributes else 0]
        if not self._handed.isdisjoint(holders) or "(" in difference.name:
            return False
        if not attributes:
            keys = [Key(each, root) for each in dict.fromkeys(self._places)]
        else:
            last = attributes[-1]
            owner, name = "".join(difference.owners[last - len(parts) :][:1]), parts[last]
            if is_function_type(owner):
                keys = self._keys_of_closure(path_of_function(owner), name)
            elif self._is_own(owner):
                keys = [Key(kind, name) for kind in self._with_bases([owner])]
            else:  # a variable of a generator, or of others' objects
                keys = [scope.key(name) for scope in self._scopes.values() if not last and scope.path[-1:] == (root,)]
        return self._do_not_act(keys)

    def is_display(self, name: str) -> bool:
        """Return whether only displays and other such values depend on a variable of the loop's function or module."""
        return not self._is_hidden and self._do_not_act([Key(each, name) for each in dict.fromkeys(self._places)])

    def _do_not_act(self, keys: Collection[Key]) -> bool:
        changed = any(self._changes.get(key) for key in keys)
        acting = (self._acting.keys(), self._of_data[0], self._of_hooks[0])
        return changed and all(each.isdisjoint(keys) for each in acting)

    def _is_own(self, kind: str) -> bool:
        """Return whether the script defines this class and all of its bases."""
        bases = self._classes[kind].bases if kind in self._classes else [ast.Constant(None)]
        return all(isinstance(each, ast.Name) and (each.id == "object" or self._is_own(each.id)) for each in bases)

    @functools.cached_property
    def _handed(self) -> frozenset[str]:
        """The names of variables and attributes whose objects code of others gets, which may read any part of them."""
        found: set[str] = set()
        for call, scope, _ in self._calls:
            if called_name(call) in LOGS | _OF_VALUES or self._called(call, scope):
                continue
            todo: list[ast.AST] = [*call.args, *(each.value for each in call.keywords)]
            while todo:
                node = todo.pop()
                if isinstance(node, ast.Name | ast.Attribute):
                    found.add(node.id if isinstance(node, ast.Name) else node.attr)
                elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Starred | ast.Lambda):
                    todo += children(node)
        return frozenset(found)

    @functools.cached_property
    def _acting(self) -> Mapping[Key, int]:
        """The keys on which something depends that is no display."""
        sinks = [*self._sinks, *self._leaves, *self._saves]
        for node, scope, tests in self._statements:
            if (read := self._effect(node, scope)) is not None:
                sinks.append(Change(tuple(read), scope, tests, False, False))
        for call, scope, tests in self._calls:
            name = called_name(call)
            if name in LOGS | _OF_VALUES or self._called(call, scope):
                continue
            arguments = [*call.args, *(each.value for each in call.keywords)]
            functions = [each for each in arguments if isinstance(each, ast.Lambda)]  # which code of others calls
            data = [*call.args[2:], *(each.value for each in call.keywords)] if name == "prepare" else []
            acting = [*functions, *data, *([call] if name.startswith(_ACTING) else [])]
            sinks += [Change((each,), scope, tests, False, False) for each in acting]
        called = {inner.node for call, scope, _ in self._calls for inner, _ in self._called(call, scope)}
        for key, changes in self._changes.items():
            given = key.owner not in called and key.owner in self._scopes  # what code of others gives to a function
            given = given and key.name in {each.arg for each in bound_parameters(key.owner)}  # type: ignore[arg-type]
            if given or any(map(self._binds_shared, changes)):
                sinks += [each for each in changes if _is_in_place(each)]
        for function, results in self._returns.items():
            if function not in called and not is_property(function) and getattr(function, "name", "") not in _DISPLAYS:
                sinks += results  # code of others calls it
        return self._follow(sinks, calls=True)

    def _effect(self, node: ast.stmt, scope: Scope) -> Sequence[ast.AST] | None:
        """Return the expressions on which the effect of a statement depends, beside the conditions under which it runs. None: it
        has no effect beside what the script's functions do, and the changes of variables.
        """
        match node:
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                contexts = [each.context_expr for each in items if _name(each.context_expr) not in _CONTEXTS]
                suppressed = _simple(body) if any(_name(each) in SUPPRESSES for each in contexts) else []
                return [*contexts, *suppressed] or None
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=name)) as call):
                if name in self._methods:
                    return None if self._kinds(value, scope) and self._called(call, scope) else [call]
                of_trial = name == "report" and not is_run(value)  # which may end by it
                if of_trial or isinstance(value, ast.Call):
                    return [call]
                return None if name in LOGS | MODES | _OF_CONTAINERS else [call]
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
                return None if name in LOGS or self._called(call, scope) else [call]
            case ast.Expr(value=ast.Constant() | ast.Yield()):
                return None
            case ast.Try(body=body):  # its handlers run, or not, by what these statements compute
                return _simple(body) if node.handlers else None
            case ast.Break() | ast.Continue() | ast.Return(value=None) | ast.Import() | ast.ImportFrom():
                return []
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if name in self._methods:
                return [value]  # another function in place of a method
            case ast.Delete(targets=targets) if any(
                isinstance(each, ast.Attribute | ast.Subscript) for each in targets
            ):
                return []
            case ast.Expr() | ast.Assert() | ast.Raise():
                return children(node)
        return None

    def _binds_shared(self, change: Change) -> bool:
        """Return whether a statement binds a variable or attribute to an object that may have other names.

        A parameter does not count: what its function changes counts for the variable of the caller.
        """
        if not change.line or _is_in_place(change):
            return False
        if not self._iterables.isdisjoint(change.reads):
            return True
        return any(
            not (_name(each) in _NEW or _name(each)[:1].isupper())
            if isinstance(each, ast.Call)
            else isinstance(each, ast.Name | ast.Attribute | ast.Subscript)
            for each in change.reads
        )


def _is_in_place(change: Change) -> bool:
    """Return whether a statement changes an object, or may do so, as `+=` does with a tensor."""
    return change.in_place or change.is_item or change.of_part or (change.made_of_itself and change.target is None)


def _simple(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [each for each in body if isinstance(each, ast.Assign | ast.AugAssign | ast.Expr)]


def _is_implicit(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether Python calls the method where the source has an assignment or an operator: `__setattr__`, `__iadd__`, the
    setter of a property.
    """
    setters = [each for each in function.decorator_list if isinstance(each, ast.Attribute) and each.attr == "setter"]
    return bool(setters) or function.name in _CALLED_BY_SYNTAX or _OPERATOR.fullmatch(function.name) is not None


def _name(node: ast.expr) -> str:
    return called_name(node) if isinstance(node, ast.Call) else ""
