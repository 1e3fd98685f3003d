"""Calls of `run.save` in a script's source: the variables that they read, and the calls that only the leader reaches.

Only the source's syntax is read. A condition that names a leader, a rank or a main process is assumed to hold on one
worker only: `if run.is_leader:`, `if rank == 0:`, `if not args.is_main_process: return`.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType

from .own_code import directories, is_own_file
from .syntax import (
    PARSED,
    Function,
    bound_names,
    called_name,
    children,
    parameters,
    parse,
    read_names,
    statements,
    walk,
)

_LEADER = re.compile(r"\b(is_)?(leader|leads|master|main|chief)\b|rank\b|main_process\b|_zero\b")
_KEEPING = frozenset(
    {"dict", "list", "tuple", "vars", "float", "int", "sum", "min", "max", "len", "copy", "deepcopy", "load", "loads"}
)
_OF_FUNCTION = ":"  # between the name of a function or class and that of its variable
ROUNDS = 8  # number of assignments, calls and returns that are followed backwards

_Block = Sequence[ast.stmt]


def is_for_leader(frame: FrameType | None) -> bool:
    """Return whether the script reaches this call only on the leader, according to its source.

    frame: of the call or inside it.
    """
    own = directories()
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_own_file(file, own) and any(line in lines for lines in _leaders_lines(file)):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _leaders_lines(file: str) -> tuple[range, ...]:
    try:
        return _of_leader(parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError, RecursionError):
        return ()


@functools.lru_cache(PARSED)
def _of_leader(tree: ast.Module) -> tuple[range, ...]:
    """Return the lines that only the leader reaches."""
    return tuple(_leaders(tree))


def _leaders(tree: ast.Module) -> Iterator[range]:
    for node in walk(tree):
        match node:
            case ast.If(test=test, body=body, orelse=orelse) if _names_leader(tree, test):
                yield _lines(orelse if _is_not(test) else body)
            case ast.IfExp(test=test, body=expression) if _names_leader(tree, test):
                yield range(expression.lineno, (expression.end_lineno or expression.lineno) + 1)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield from _behind_return(tree, block)


def _behind_return(tree: ast.Module, block: _Block) -> Iterator[range]:
    """Yield the rest of a block after `if not run.is_leader: return`."""
    for position, statement in enumerate(block):
        if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return | ast.Continue):
            continue
        if _is_not(statement.test) and _names_leader(tree, statement.test):
            yield _lines(block[position + 1 :])


def _lines(block: _Block) -> range:
    return range(block[0].lineno, (block[-1].end_lineno or block[-1].lineno) + 1) if block else range(0)


def _is_not(test: ast.expr) -> bool:
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[ast.NotEq() | ast.Gt()]):
            return True
    return False


def names_place(text: str) -> bool:
    """Return whether an expression or a name refers to a worker's place: `run.is_leader`, `rank`, `is_main_process`."""
    return _LEADER.search(text) is not None


def _names_leader(tree: ast.Module, test: ast.expr) -> bool:
    """Return whether a condition, or the value of a variable in it, names a leader."""
    if names_place(ast.unparse(test)):
        return True
    return any(names_place(ast.unparse(value)) for name in _truths(test) for value in _assigned(tree).get(name, ()))


@functools.lru_cache(PARSED)
def _assigned(tree: ast.Module) -> Mapping[str, Sequence[ast.expr]]:
    """Return the values that each variable is assigned."""
    found: dict[str, list[ast.expr]] = {}
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def _truths(test: ast.expr) -> Iterator[str]:
    """Yield the variables of which a condition tests the truth, or equality to a value."""
    match test:
        case ast.Name(id=name) | ast.Compare(left=ast.Name(id=name), ops=[ast.Eq() | ast.NotEq()]):
            yield name
        case ast.UnaryOp(operand=operand):
            yield from _truths(operand)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _truths(value)


@functools.lru_cache(PARSED)
def saved_names(tree: ast.Module, scope: ast.AST | None = None) -> frozenset[str]:
    """Return the variables and attributes (`history`, `self.best`) that determine saved files.

    These are the arguments of `.save(what, path)`, or of a function of the script that passes its argument to it; and
    the conditions under which it is called or the loop over epochs is left. Calls that only the leader reaches do not
    count.

    scope: the function that contains the loop; by default the module. `self` is the object of the class with the loop, and
    an attribute in a method of another class is left out. A variable that another function binds is not the
    loop's variable of the same name, but its value may be an argument of the loop's.
    """
    return frozenset(name for name in _Saved(tree, scope or tree).names if _OF_FUNCTION not in name)


class _Saved:
    """The variables that determine saved files. A variable of a function without the loop has that function's name in
    front of its own.
    """

    def __init__(self, tree: ast.Module, scope: ast.AST) -> None:
        self._functions: dict[str, list[tuple[Function, bool]]] = {}  # by name, each with whether it is a method
        self._prefixes: dict[int, str] = {}  # of variables, by the identity of their nodes
        self._scope = scope
        self._roots = _roots(tree)
        classes = [node for node in walk(tree) if isinstance(node, ast.ClassDef)]
        self._loops = {self._roots[each.name] for each in classes if scope in each.body}
        self._resolve(tree, {}, None)
        leaders = _of_leader(tree)
        savers = {
            name
            for name, functions in self._functions.items()
            for node, _ in functions
            if any(
                read_names(call.args[0]) & {each.arg for each in parameters(node)}
                for call, _ in _calls(node, (), {"save"})
            )
        }
        found: set[str] = set()
        for call, tests in _calls(tree, (), {"save"} | savers):
            if not any(call.lineno in lines for lines in leaders):
                values = (*call.args, *(each.value for each in call.keywords)) if called_name(call) == "save" else ()
                for node in (*values, *tests):
                    found.update(self._kept(node))
        for test in _ends(tree):
            found.update(self._kept(test))
        bindings = [*self._bindings(tree), *self._arguments(tree), *self._returns()]
        for _ in range(ROUNDS):
            more = {name for bound, value in bindings if is_part(bound, found) for name in self._kept(value)}
            if more <= found:
                break
            found |= more
        self.names = found

    def _resolve(self, node: ast.AST, prefixes: Mapping[str, str], of: ast.ClassDef | None) -> None:
        """Find the functions, and whose variable each name in this part of the tree is.

        prefixes: for variables of the functions around it. of: the class around it, with no function in between.
        """
        if isinstance(node, Function):
            is_method = of is not None
            self._functions.setdefault(node.name, []).append((node, is_method))
            own = bound_names(node)
            prefixes = {name: prefix for name, prefix in prefixes.items() if name not in own}
            shared = {each.arg for each in parameters(node)[: int(is_method)]}  # the object itself, in all methods
            if of is not None and self._roots[of.name] not in self._loops:
                prefixes |= dict.fromkeys(shared, f"{self._roots[of.name]}::")
            if not any(each is self._scope for each in walk(node)):
                prefixes |= dict.fromkeys(own - shared, f"{node.name}{_OF_FUNCTION}")
        if isinstance(node, ast.Name) and node.id in prefixes:
            self._prefixes[id(node)] = prefixes[node.id]
        for child in children(node):
            self._resolve(child, prefixes, node if isinstance(node, ast.ClassDef) else None)

    def _arguments(self, tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
        """Yield parameters of the script's functions with the values that calls pass."""
        for call in walk(tree):
            if not isinstance(call, ast.Call):
                continue
            name = called_name(call)
            for function, is_method in self._functions.get(name, ()):
                names = [each.arg for each in parameters(function)][int(is_method) :]
                pairs = [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
                yield from ((f"{name}{_OF_FUNCTION}{one}", value) for one, value in pairs if one is not None)

    def _returns(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield the name of each of the script's functions as a variable, with the values that the function returns; and with
        a number behind it, with this item of a tuple that it returns.
        """
        for name in self._functions:
            for value in self._returned(name):
                yield f"{name}{_OF_FUNCTION}", value
                items = value.elts if isinstance(value, ast.Tuple) else []
                yield from ((f"{name}{_OF_FUNCTION}{number}", each) for number, each in enumerate(items))

    def _returned(self, name: str) -> Iterator[ast.expr]:
        """Yield the values that the script's functions of this name return."""
        for function, _ in self._functions.get(name, ()):
            for node in statements(function.body):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield node.value

    def _returns_items(self, name: str, length: int) -> bool:
        """Return whether the script's functions of this name return tuples of this length, by their `return` statements."""
        found = [isinstance(each, ast.Tuple) and len(each.elts) == length for each in self._returned(name)]
        return bool(found) and all(found)

    def _bindings(self, tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
        """Yield variables with the values that they or their items are bound to or load, and with the conditions around
        the binding.
        """
        for node in walk(tree):
            if isinstance(node, ast.If):
                for each in walk(node):
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                        yield self._path(each), node.test
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for part, value in self._pairs(target, node.value):
                        if path := self._path(part):
                            yield path, value
            match node:
                case ast.Call(func=ast.Attribute(value=owner, attr="load_state_dict"), args=[value, *_]):
                    yield self._path(owner), value

    def _pairs(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yield the variables that an assignment binds, each with its value, or with the value that contains it."""
        if not isinstance(target, ast.Tuple | ast.List):
            yield target, value
            return
        values: Sequence[ast.expr] = [value] * len(target.elts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            values = value.elts
        elif isinstance(value, ast.Call) and self._returns_items(name := called_name(value), len(target.elts)):
            values = [ast.Name(f"{name}{_OF_FUNCTION}{number}") for number in range(len(target.elts))]
        for each, part in zip(target.elts, values, strict=True):
            yield from self._pairs(each, part)

    def _path(self, node: ast.expr) -> str:
        """Return a variable, or an attribute of one, up to the first item: `self.log` of `self.log[0].x`. "": the node is
        neither.
        """
        names: list[str] = []
        while isinstance(node, ast.Subscript | ast.Attribute):
            names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
            node = node.value
        return ".".join([self._prefixes.get(id(node), "") + node.id, *names]) if isinstance(node, ast.Name) else ""

    def _kept(self, node: ast.AST) -> Iterator[str]:
        """Yield the variables and attributes of which an expression contains the values, as opposed to arguments of
        computations.
        """
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and (path := self._path(node)):
            yield path
            if isinstance(node, ast.Subscript):
                yield from self._kept(node.slice)
        elif isinstance(node, ast.Call):
            name = called_name(node)
            if name in self._functions:
                yield f"{name}{_OF_FUNCTION}"
            if isinstance(node.func, ast.Attribute) and not node.args:
                yield from self._kept(node.func.value)  # for example `x.state_dict()`
            elif name in _KEEPING:
                for each in (*node.args, *(each.value for each in node.keywords)):
                    yield from self._kept(each)
        else:
            for child in children(node):
                yield from self._kept(child)


def _roots(tree: ast.Module) -> dict[str, str]:
    """Return the outermost base of each class in the file: objects of both have the same attributes."""
    bases = {
        node.name: [each.id for each in node.bases if isinstance(each, ast.Name)]
        for node in walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {name: name for name in bases}
    for _ in bases:
        found = {name: next((found[base] for base in bases[name] if base in found), name) for name in found}
    return found


def _ends(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the conditions under which a loop over epochs is left."""
    for loop in walk(tree):
        if (
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Call)
            and ast.unparse(loop.iter.func).endswith("epochs")
        ):
            for node in walk(loop):
                if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break | ast.Return):
                    yield node.test


def _calls(
    node: ast.AST, tests: tuple[ast.expr, ...], names: Collection[str]
) -> Iterator[tuple[ast.Call, tuple[ast.expr, ...]]]:
    """Yield each call with arguments of a function or method with one of these names, with the conditions around it."""
    match node:
        case ast.Call(args=[_, *_]) if called_name(node) in names:
            yield node, tests
    if isinstance(node, ast.If):
        tests = (*tests, node.test)
    for child in children(node):
        yield from _calls(child, tests, names)


def is_part(name: str, names: Collection[str]) -> bool:
    """Return whether a name is one of these names, contains one, or belongs to one. `a.b` belongs to `a`."""
    return any(name == each or name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in names)
