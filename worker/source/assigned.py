"""Where a training script binds and changes its variables, read from its source: for messages, and to tell state from
temporaries.

Only the source's syntax is read; no code of the script runs. A name may be that of a variable (`global_step`), of a
part of its value (`ema.num_updates`, `stats['best']`), of a class's attribute (`Counter.total`), of a variable that a
function keeps (`step.count`) or of a default argument (`remember(seen)`), as `reachable` forms them.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

from ..kept import is_function_type, path_of_function
from . import logged
from .liveness import Flow, free_names, is_function, local_names, target_names, within
from .own_code import directories, own_modules
from .save_calls import names_place, saved_names
from .syntax import PARSED, called_name, children, imports, mutates, parse, read_names, root_name, walk

LONGEST = 60  # characters of an expression in a message
REMEMBERED = 1024  # cached functions, classes and files, in which names of one script are looked up repeatedly
MOST_TEXT = 2_000_000  # characters of the script's other files that are searched for one name, which takes some seconds
MOST_SLICED = 300_000  # characters of the script's files that are sliced (`slicing`), which takes about a second

_Loop = ast.For | ast.AsyncFor | ast.While


class SourceLine(NamedTuple):
    """A line of the script's own code."""

    file: str  # path as a reader of the script would write it
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Change(NamedTuple):
    """A statement that binds a name, or changes a part of its value."""

    line: int
    value: ast.expr | None  # value of a plain assignment
    scope: ast.AST  # the innermost function, class or module around the statement


@dataclass(frozen=True)
class Source:
    """One source file."""

    file: str
    tree: ast.Module

    @staticmethod
    def read(file: str) -> Source | None:
        """Read and parse a file. None if the file does not exist or is no Python."""
        return _parsed(file, _text(file))


@functools.lru_cache(PARSED)
def _parsed(file: str, text: str) -> Source | None:
    try:
        return Source(file, parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _quotes(source: Source, word: str) -> bool:
    text = _text(source.file)
    return f'"{word}"' in text or f"'{word}'" in text


def _text(file: str) -> str:
    return "".join(linecache.getlines(file))


class Sources:
    """The source files of one script, and the position of its loop."""

    def __init__(
        self, first: Source | None, others: Sequence[str] = (), line: int = 0, function: str = "<module>"
    ) -> None:
        """first: the file that contains the loop. others: names of the script's other files. line: a line of the loop
        over epochs or of its header. function: name of the function that contains the loop.
        """
        self._first = first
        self._others = others
        self._read: dict[str, Source | None] = {}
        self._scope = None if first is None else _scope_of(first.tree, line, function)
        self._loop = None if self._scope is None else _loop_of(self._scope, line)

    @staticmethod
    def of(frame: FrameType | None) -> Sources:
        """Return the sources of a script. frame: of the script's loop (`own_code.loop_frame`)."""
        if frame is None:
            return Sources(None)
        others = [module.get("__file__") for module in own_modules(directories(), frame.f_globals).values()]
        names = [name for name in others if isinstance(name, str)]
        return Sources(Source.read(frame.f_code.co_filename), names, frame.f_lineno, frame.f_code.co_name)

    @property
    def first(self) -> Source | None:
        """The file that contains the loop."""
        return self._first

    @functools.cached_property
    def saved(self) -> frozenset[str]:
        """Variables of the loop's file that go into saved files (`save_calls`)."""
        return frozenset() if self._first is None else saved_names(self._first.tree, self._scope)

    @functools.cached_property
    def trees(self) -> tuple[ast.Module, ...]:
        """The syntax trees of the loop's file, and of the script's other files up to `MOST_SLICED` characters."""
        found: list[ast.Module] = []
        length = 0
        for source in self._files(""):
            length += len(_text(source.file))
            if not found or length <= MOST_SLICED:
                found.append(source.tree)
        return tuple(found)

    @property
    def loop_scope(self) -> ast.AST | None:
        """The function or module that contains the loop."""
        return self._scope

    def _files(self, word: str) -> list[Source]:
        """Return the loop's file, and those of the script's other files that contain this word, up to `MOST_TEXT`
        characters.
        """
        if self._first is None:
            return []
        found, length = [self._first], 0
        for file in dict.fromkeys(self._others):
            text = _text(file)
            if file == self._first.file or word not in text:
                continue
            length += len(text)
            if length > MOST_TEXT:
                break
            if file not in self._read:
                self._read[file] = Source.read(file)
            if (source := self._read[file]) is not None:
                found.append(source)
        return found

    @functools.cached_property
    def shown(self) -> frozenset[str]:
        """Variables of the loop's file that a call reads that displays values."""
        return frozenset() if self._first is None else logged.shown(self._first.tree)

    def is_time(self, name: str) -> bool:
        """Return whether only clocks give the variable or the attribute of this name its values, in the loop's file."""
        holder = re.sub(r"\[[^\]]*\]|\(\w*\)", "", name)
        return (f".{holder.rpartition('.')[2]}" if "." in holder else holder) in self._times

    @functools.cached_property
    def _times(self) -> frozenset[str]:
        return frozenset() if self._first is None else logged.times(self._first.tree)

    @functools.cached_property
    def sometimes(self) -> frozenset[str]:
        """Variables that loop bodies assign in some steps only and read in others: an earlier body has made the value."""
        flow = self._flow
        if self._loop is None or flow is None:
            return frozenset()
        branches = [node for node in within(self._loop) if isinstance(node, ast.If)]
        assigned = {name for branch in branches for each in within(branch) for name in target_names(each)}
        return frozenset((assigned & flow.read) - flow.bound - self._targets)

    @functools.cached_property
    def counters(self) -> dict[str, SourceLine]:
        """Variables that count this process's loop bodies, by `enumerate` in the header of a loop, and that bodies read,
        with the line of the header.
        """
        found: dict[str, SourceLine] = {}
        for node in within(self._loop) if self._loop else ():
            match node:
                case ast.For(
                    target=ast.Tuple(elts=[ast.Name(id=name), *_]), iter=ast.Call(func=ast.Name(id="enumerate"))
                ):
                    if any(name in read_names(statement) for statement in node.body) and _calls(node, "step"):
                        found[name] = SourceLine(self._shown(self._first.file if self._first else ""), node.lineno)
        return found

    def mentioned(self, words: Iterable[str]) -> list[str]:
        """Return those of these words that the script's files contain as texts of their own."""
        return [word for word in words if any(_quotes(each, word) for each in self._files(word))]

    def given_to_others(self) -> list[str]:
        """Return the attributes that the loop, or a function, assigns to imported modules and their classes, as the source names
        them: `torch.steps`.
        """
        found = dict.fromkeys(
            ast.unparse(target)
            for source in self._files("")
            for node in walk(source.tree)
            for target in getattr(node, "targets", [getattr(node, "target", None)])
            if isinstance(target, ast.Attribute) and root_name(target) in dict(imports(source.tree))
        )
        named = [each for each in found if all(map(str.isidentifier, each.split(".")))]
        return [
            name
            for name in named
            if any(self._is_in_loop(*each) or self._acts(*each) for each in self._changes(name, ()))
        ]

    @functools.cached_property
    def _targets(self) -> frozenset[str]:
        """Target variables in the headers of the loop and of the loops in it."""
        loops = [node for node in within(self._loop) if isinstance(node, ast.For | ast.AsyncFor)] if self._loop else []
        return frozenset(name for node in loops for name in target_names(node.target))

    @functools.cached_property
    def _flow(self) -> Flow | None:
        if self._loop is None:
            return None
        flow = Flow()
        flow.block(_order(self._loop))
        return flow

    def temporaries(self) -> frozenset[str]:
        """Return the variables that the loop binds before it reads them.

        These are the targets in the headers of the loop and of loops in it, and variables that the loop's body always
        assigns first.
        """
        flow = self._flow
        if self._scope is None or flow is None:
            return frozenset()
        elsewhere = {name for node in within(self._scope, True) if is_function(node) for name in free_names(node)}
        return self._targets | (flow.bound - flow.read - elsewhere)

    def where(self, name: str, owners: Sequence[str] = ()) -> SourceLine | None:
        """Return the line that changes a name: the last one in the loop, else in a function, else before the loop.

        owners: the classes of the objects that contain the value, the outermost first (`kept.Difference`).
        """
        found = self._found(name, owners)
        return None if found is None else SourceLine(self._shown(found[0].file), found[1].line)

    def line_in(self, tree: ast.AST, line: int) -> SourceLine:
        """Return a line of one of the script's files, given by its syntax tree."""
        files = [source.file for source in self._files("") if source.tree is tree]
        return SourceLine(self._shown(files[0]) if files else "", line)

    def is_changed_in_loop(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether a line of the loop changes this name, as opposed to a method of an object."""
        found = self._found(name, owners)
        return found is not None and self._is_in_loop(*found)

    def is_changed_in_body(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether a line of the loop over batches changes this name."""
        return any(self._is_in_body(*each) for each in self._changes(name, owners))

    def is_changed_between_epochs(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether lines of the loop outside of the loop over batches change this name, or methods that only these call."""
        changes = self._changes(name, owners, whole=True) if name.rpartition(".")[2] in self._changed else []
        between = any(
            self._is_in_loop(*each) or getattr(each[1].scope, "name", "") in self._called_between for each in changes
        )
        return between and not any(self._is_in_body(*each) for each in changes)

    @functools.cached_property
    def _changed(self) -> frozenset[str]:
        """The last words of all names that the script's files change."""
        return frozenset(text.rpartition(".")[2] for source in self._files("") for _, text in _all_changes(source.tree))

    @functools.cached_property
    def _called_between(self) -> frozenset[str]:
        """The methods that the loop calls outside of the loop over batches, and not inside."""
        inner = None if self._loop is None else _inner(self._loop)
        if self._loop is None or inner is None:
            return frozenset()
        called: dict[bool, set[str]] = {True: set(), False: set()}
        for node in walk(self._loop):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called[_around(inner, node.lineno)].add(node.func.attr)
        return frozenset(called[False] - called[True])

    def is_of_place(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether a value that is bound to this name depends directly on the worker's place: `main = run.is_leader`."""
        values = [change.value for _, change in self._changes(name, owners) if change.value is not None]
        return any(names_place(ast.unparse(each)) for each in values)

    def is_rebound(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether the loop, or a function that it calls, binds this name to another value: `best = accuracy`."""
        changes = [each for each in self._changes(name, owners) if each[1].value is not None]
        return any(self._is_in_loop(*each) or self._acts(*each) for each in changes)

    def reads(self, owner: str, attribute: str) -> bool:
        """Return whether a class, or one of its bases, reads this attribute; True if the class is not the script's own."""
        kinds = [kind for source in self._files(owner) for kind in _classes(source.tree, owner)]
        nodes = [node for kind in kinds for node in walk(kind) if isinstance(node, ast.Attribute)]
        return not kinds or any(node.attr == attribute and isinstance(node.ctx, ast.Load) for node in nodes)

    def is_changed_outside(self, name: str, owners: Sequence[str], methods: Collection[str]) -> bool:
        """Return whether a line outside of functions with these names changes this name."""
        return any(getattr(each.scope, "name", "") not in methods for _, each in self._changes(name, owners))

    def follows_from_a_batch(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether a loop body computes this name from a number that it reads from a tensor: `total += loss.item()`."""
        lines = {change.line for source, change in self._changes(name, owners) if self._is_in_body(source, change)}
        statements = [
            node
            for node in (within(self._loop) if lines and self._loop is not None else ())
            if isinstance(node, ast.Assign | ast.AugAssign) and node.lineno in lines
        ]
        return any(_calls(each.value, "item") for each in statements)

    def is_changed_by_its_class(self, name: str, owners: Sequence[str]) -> bool:
        """Return whether methods of the object's class, such as a module's `forward`, change this name, and nothing else."""
        changes = self._changes(name, owners)
        kinds = (
            [kind for source in self._files(owners[-1]) for kind in _classes(source.tree, owners[-1])] if owners else []
        )
        methods = [node for kind in kinds for node in kind.body]
        return bool(changes) and all(change.scope in methods for _, change in changes)

    def has_class(self, name: str) -> bool:
        """Return whether the script defines a class of this name."""
        return any(_classes(source.tree, name) for source in self._files(name))

    def yields(self, name: str) -> bool:
        """Return whether a function of this name is a generator."""
        named = [
            each for source in self._files(name) for each in walk(source.tree) if getattr(each, "name", None) == name
        ]
        return any(isinstance(each, ast.Yield | ast.YieldFrom) for function in named for each in walk(function))

    def initial(self, name: str, owners: Sequence[str] = (), in_epochs: bool = False) -> str | None:
        """Return the source of the expression to which the name is bound before the loop, for an attribute by `__init__`.

        in_epochs: or else between two epochs. None if the expression is long, reads a function's own variables, or was
        not found.
        """
        changes = [each for each in self._changes(name, owners, whole=True) if each[1].value is not None]
        before = [each for each in changes if not self._is_in_loop(*each)]
        if in_epochs and not before:
            before = [each for each in changes if not self._is_in_body(*each)]
        before = [each for each in before if getattr(each[1].scope, "name", "") == "__init__"] or before
        for _, change in reversed(before):
            value = None if change.value is None else _default(change.value)
            text = "" if value is None else ast.unparse(value)
            outer = change.scope is self._scope or read_names(value) <= self._global
            return text if outer and len(text) <= LONGEST else None
        return None

    def at_epochs(self, name: str, owners: Sequence[str] = ()) -> str | None:
        """Return the expression that computes the name in each epoch, outside of the loop over batches; None without
        any.

        An expression that reads the name's previous value does not count, nor one under a condition on what the loop
        changes, such as `if accuracy > best:`.
        """
        found: str | None = None
        for source, change in self._changes(name, owners, only_first=True):
            outside = self._is_in_loop(source, change) and not self._is_in_body(source, change)
            if outside and change.scope is self._scope and change.value is not None and not self._depends(change):
                text, reads = ast.unparse(change.value), read_names(change.value)
                found = None if _parts(name)[0] in reads or not reads else text if len(text) <= LONGEST else "…"
        return found

    # -- how

    def _depends(self, change: Change) -> bool:
        """Return whether a change in the loop stands under a condition on a variable that the loop changes."""
        ifs = [node for node in within(self._loop) if isinstance(node, ast.If)] if self._loop is not None else []
        tests = [each.test for each in ifs if _around(each, change.line)]
        read = {name for test in tests for name in read_names(test)} - self._targets
        return any(self.is_changed_in_loop(name) for name in read)

    def _found(self, name: str, owners: Sequence[str]) -> tuple[Source, Change] | None:
        changes = self._changes(name, owners)
        in_loop = [each for each in changes if self._is_in_loop(*each)]
        if in_loop:
            return in_loop[-1]
        found = [each for each in changes if self._acts(*each)] or changes
        return found[-1] if found else None

    def _acts(self, source: Source, change: Change) -> bool:
        """Return whether the change is in a function that is called later, rather than where an object or a module is
        created.
        """
        scope = change.scope
        return scope is not self._scope and is_function(scope) and getattr(scope, "name", "") != "__init__"

    def _is_in_loop(self, source: Source, change: Change) -> bool:
        loop = self._loop
        return loop is not None and source is self._first and _around(loop, change.line)

    def _is_in_body(self, source: Source, change: Change) -> bool:
        inner = None if self._loop is None else _inner(self._loop)
        return inner is not None and source is self._first and _around(inner, change.line)

    @functools.cached_property
    def _global(self) -> set[str]:
        """Names that are known everywhere in the loop's file."""
        found = set(dir(builtins))
        for node in within(self._first.tree) if self._first is not None else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.update((each.asname or each.name).partition(".")[0] for each in node.names)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            else:
                found.update(target_names(node) if isinstance(node, ast.Name) else ())
        return found

    def _changes(
        self, name: str, owners: Sequence[str], *, only_first: bool = False, whole: bool = False
    ) -> list[tuple[Source, Change]]:
        """Return the changes of the most specific name that has any, by line, the loop's file first.

        only_first: search the loop's file alone. whole: of this name alone.
        """
        first = [] if self._first is None else [self._first]
        while name:
            root, attributes, argument = _parts(name)
            if argument is not None:
                found = self._of_argument(root, argument, first if only_first else self._files(root))
            elif attributes:
                files = first if only_first else self._files(attributes[-1])
                found = self._of_attribute(f"{root}.{'.'.join(attributes)}", attributes[-1], owners, files)
            else:
                found = self._of_variable(root)
            if found or whole:
                return found
            name, owners = _shorter(name), owners[:-1]
        return []

    def _of_variable(self, name: str) -> list[tuple[Source, Change]]:
        """Return the changes of a variable of the loop's function or module.

        They may also be in functions that declare the name `global` or `nonlocal`, or change its value there.
        """
        if (first := self._first) is None:
            return []
        found = []
        for change, text in _changes_by_root(first.tree).get(name, ()):
            elsewhere = change.scope is not self._scope
            if elsewhere and (not is_function(change.scope) or name in local_names(change.scope)):
                continue
            # a change of a part has no value
            found.append((first, change if text == name else change._replace(value=None)))
        if not found and self._scope is not first.tree:
            tree = first.tree
            found = [
                (first, each)
                for each, text in _changes_by_root(tree).get(name, ())
                if text == name and each.scope is tree
            ]
        return sorted(found, key=lambda each: each[1].line)

    def _of_attribute(
        self, path: str, attribute: str, owners: Sequence[str], files: Sequence[Source]
    ) -> list[tuple[Source, Change]]:
        owner = owners[-1] if owners else None
        written = {path, re.sub(r"\.(\d+)", r"[\1]", path)}  # an item of an nn.Sequential
        owned, first = path.rpartition(".")[0], self._first
        written |= {f"{name}.{attribute}" for name, own in imports(first.tree) if own == owned} if first else set()
        found = [(source, change) for source in files for change, text in _all_changes(source.tree) if text in written]
        for source in files:
            classes = _classes(source.tree, owner)
            for kind in classes:
                own = {f"self.{attribute}", f"cls.{attribute}", f"{kind.name}.{attribute}", f"type(self).{attribute}"}
                own.add(f"self.__class__.{attribute}")
                found += [(source, change) for change, text in _all_changes(kind) if text in own]
                found += [
                    (source, change)
                    for change, text in _all_changes(kind)
                    if text == attribute and change.scope is kind
                ]
            if not found and owner is not None and is_function_type(owner):
                outermost = path_of_function(owner)[0]
                around = [node for node in walk(source.tree) if getattr(node, "name", None) == outermost]
                found += [(source, each) for node in around for each, text in _all_changes(node) if text == attribute]
            if not found and owner is None and path.count(".") == 1:  # of a function that yields batches
                around = [node for node in walk(source.tree) if getattr(node, "name", None) == owned]
                found += [(source, each) for node in around for each, text in _all_changes(node) if text == attribute]
            if not found and owner in ("Parameter", "Tensor"):  # of a variable with another name
                found += [(source, each) for each, text in _all_changes(source.tree) if text.endswith(f".{attribute}")]
        if not found and len(files) > 1 and "." in path:  # a name of another module
            module = path.rpartition(".")[0].replace(".", os.sep)
            found = [
                (source, change)
                for source in files[1:]
                if os.path.splitext(source.file)[0].endswith(module)
                for change, text in _all_changes(source.tree)
                if text == attribute
            ]
        return sorted(found, key=lambda each: (files.index(each[0]), each[1].line))

    def _of_argument(self, function: str, argument: str, files: Sequence[Source]) -> list[tuple[Source, Change]]:
        found = []
        for source in files:
            for node in walk(source.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
                    found += [(source, change) for change, text in _all_changes(node) if text == argument]
                    found = found or [(source, Change(node.lineno, None, node))]
        return found

    def _shown(self, file: str) -> str:
        """Return the path relative to the directory of the loop's file, if it is below that."""
        directory = "" if self._first is None else os.path.dirname(os.path.abspath(self._first.file))
        path = os.path.abspath(file)
        return os.path.relpath(path, directory) if path.startswith(directory + os.sep) else os.path.basename(path)


def _default(value: ast.expr) -> ast.expr:
    """Return the initial value of a dataclass's `field(default=…)` or `field(default_factory=…)`; else the expression."""
    if isinstance(value, ast.Call) and called_name(value) == "field":
        for each in value.keywords:
            if each.arg == "default":
                return each.value
            if each.arg == "default_factory":
                made = each.value
                return made.body if isinstance(made, ast.Lambda) else ast.Call(made, [], [])
    return value


def _parts(name: str) -> tuple[str, list[str], str | None]:
    """Return the variable, the attributes, and the argument of a function: `a.b[0].c` is `a`, `b`, `c`."""
    argument = re.search(r"([^.\[\]()]+)\((\w+)\)$", name)
    if argument:
        return argument[1], [], argument[2]
    root, *attributes = re.sub(r"\[('[^']*'|\"[^\"]*\"|[^\]]*)\]|\(\w*\)", "", name).split(".")
    return root, attributes, None


def _shorter(name: str) -> str:
    """Return the name of the object that contains this one."""
    return re.sub(r"(\.[^.\[\]()]*|\[('[^']*'|\"[^\"]*\"|[^\]]*)\]|\(\w*\)|^[^.\[\]()]*)$", "", name)


# -- syntax


def _scope_of(tree: ast.Module, line: int, function: str) -> ast.AST:
    """Return the innermost function of this name around the line."""
    found: ast.AST = tree
    for node in walk(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        if named and _around(node, line):
            found = node
    return found


def _around(node: ast.AST, line: int) -> bool:
    return node.lineno <= line <= node.end_lineno  # type: ignore[attr-defined, no-any-return]


def _loop_of(scope: ast.AST, line: int) -> _Loop | None:
    """Return the loop over `run.epochs()` around the line, or else the innermost loop."""
    around = [node for node in within(scope) if isinstance(node, _Loop) and _around(node, line)]
    for node in around:
        if not isinstance(node, ast.While) and _calls(node.iter, "epochs"):
            return node
    return around[-1] if around else None


def _calls(node: ast.AST, method: str) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == method
        for each in walk(node)
    )


def _order(loop: _Loop) -> list[ast.stmt]:
    """Return the statements of a loop over epochs in the order of execution from the first batch on."""
    inner = _inner(loop)
    for position, statement in enumerate(loop.body if inner is not None else ()):
        if inner is not None and _around(statement, inner.lineno):
            return [*inner.body, *loop.body[position + 1 :], *loop.body[:position]]
    return loop.body


def _inner(loop: _Loop) -> _Loop | None:
    """Return the loop over batches."""
    inner = [node for node in within(loop) if isinstance(node, _Loop) and node is not loop and _calls(node, "step")]
    return inner[0] if inner else None


def _classes(tree: ast.AST, owner: str | None) -> list[ast.ClassDef]:
    """Return the classes of this name, with their base classes."""
    every = {node.name: node for node in walk(tree) if isinstance(node, ast.ClassDef)}
    found: list[ast.ClassDef] = []
    todo = [owner]
    while todo:
        name = todo.pop()
        if name in every and every[name] not in found:
            found.append(every[name])
            todo += [base.id for base in every[name].bases if isinstance(base, ast.Name)]
    return found


@functools.lru_cache(REMEMBERED)
def _all_changes(tree: ast.AST) -> Sequence[tuple[Change, str]]:
    """Return every change below a node, with the source of its target, in the order of the source."""
    return _changes_within(tree, tree)


@functools.lru_cache(REMEMBERED)
def _changes_by_root(tree: ast.AST) -> Mapping[str, Sequence[tuple[Change, str]]]:
    """Return every change below a node by the variable that it is a part of: `a` for `a.b`."""
    found: dict[str, list[tuple[Change, str]]] = {}
    for change, text in _all_changes(tree):
        found.setdefault(text.partition(".")[0], []).append((change, text))
    return found


def _changes_within(tree: ast.AST, scope: ast.AST) -> list[tuple[Change, str]]:
    """Return the changes below `tree`. scope: the innermost function, class or module around `tree`, or `tree` itself."""
    found: list[tuple[Change, str]] = []

    def changed(target: ast.AST, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for number, each in enumerate(target.elts):
                changed(each, values[number] if len(values) == len(target.elts) else None)
        elif isinstance(target, ast.Starred | ast.Subscript):
            changed(target.value, None)
        elif isinstance(target, ast.Name | ast.Attribute):
            text = target.id if isinstance(target, ast.Name) else ast.unparse(target)
            found.append((Change(target.lineno, value, scope), text))

    for node in children(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    changed(target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                changed(target, value)
            case ast.NamedExpr(target=target, value=value):
                changed(target, value)
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
                changed(target, None)
            case ast.withitem(optional_vars=target) if target is not None:
                changed(target, None)
            case ast.Delete(targets=targets):
                for target in targets:
                    changed(target, None)
            case ast.Call(func=ast.Attribute(value=target, attr=method)) if mutates(method):
                changed(target, None)
            case ast.Call(func=ast.Name(id="next"), args=[target, *_]):
                changed(target, None)
        inner = node if is_function(node) or isinstance(node, ast.ClassDef) else scope
        within = _changes_within(node, inner)
        if isinstance(node, ast.For):
            items = set(target_names(node.target))
            lines = [change.line for change, text in within if change.value is None and text.partition(".")[0] in items]
            lines = [line for line in lines if line >= node.body[0].lineno]
            these = _iterated(node.iter) if lines else iter(())
            found += [(Change(lines[-1], None, scope), ast.unparse(each)) for each in these]
        found += within
    return found


def _iterated(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the variables and attributes over which a loop iterates: `for a, b in zip(these, others.too)`."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield node
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "values", "parameters", "buffers"):
            yield from _iterated(node.func.value)
        for each in node.args:
            yield from _iterated(each)
