"""Which mistakes are made in a function: one small change of its syntax tree each (`Mutant`).

Changed are comparisons (also by one at the border), `and` and `or` and each of their operands, negations, arithmetic, numbers,
truth values, what is returned, elements of the lists that a machine returns, and statements, each left out once.

Left alone by rule is what no behaviour depends on: texts (strings, f-strings, warnings for the log), docstrings, annotations,
`__repr__` and `__str__`, assertions, and the arguments of what is raised. Classes' own declarations, defaults of parameters and
decorators are not changed either: a function's code alone is replaced (`runner`).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

LOGS = frozenset({"warn", "print", "debug", "info", "warning"})  # calls that only tell people
SHOWN = frozenset({"__repr__", "__str__"})
COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
RECKONED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
EMPTY: dict[str, str] = {
    "list": "[]",
    "tuple": "()",
    "dict": "{}",
    "str": '""',
}  # by the annotation of what is returned

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change of one statement of a function. Texts are those of `ast.unparse`, whatever the layout of the file."""

    file: str
    function: str  # its qualified name
    before: str  # the statement, of a compound one its head
    after: str
    number: int = 0  # among those of this function with these texts

    @property
    def key(self) -> str:
        """Key of the mutant, which stays the same as long as the statement and its function's name do."""
        return "\0".join((self.file, self.function, self.before, self.after, str(self.number)))


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the outermost functions and methods of a module, with their qualified names."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, Function) and node.name not in SHOWN:
                yield f"{prefix}{node.name}", node

    yield from walk(tree.body, "")


def mutants(file: str, text: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Yield all mutants of a file, each with its whole tree, which is valid until the next one is requested."""
    tree = ast.parse(text)
    for name, function in functions(tree):
        seen: dict[tuple[str, str], int] = {}
        for before, after in _changes(function):
            count = seen[before, after] = seen.get((before, after), 0) + 1
            yield Mutant(file, name, before, after, count - 1), tree


def _changes(function: Function) -> Iterator[tuple[str, str]]:
    """Each change is in the tree while its texts are yielded, and taken back afterwards."""
    body = function.body
    first = 1 if ast.get_docstring(function, clean=False) is not None else 0
    returns = ast.unparse(function.returns) if function.returns is not None else ""
    for index in range(first, len(body)):
        yield from _statement(body, index, returns)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


def _head(node: ast.stmt) -> str:
    """Return a statement as text; of one that contains others, the part before them."""
    if not any(True for _ in _blocks(node)):
        return ast.unparse(node)
    bare = copy.copy(node)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(bare, field):
            empty: list[ast.stmt] = [ast.Pass()] if field == "body" else []
            setattr(bare, field, empty)
    if isinstance(bare, ast.Match):
        return f"match {ast.unparse(bare.subject)}:"
    if isinstance(bare, ast.Try):
        return "try:"
    return ast.unparse(bare).removesuffix("\n    pass")


def _statement(block: list[ast.stmt], index: int, returns: str) -> Iterator[tuple[str, str]]:
    node = block[index]
    if isinstance(node, ast.Assert | Function | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass | ast.Global):
        return
    if _only_logs(node):
        return
    before = _head(node)
    for left in _instead(node, returns):
        block[index] = ast.copy_location(left, node)
        yield before, _head(left)
    block[index] = node
    if not isinstance(node, ast.Raise):
        for slot, found in _slots(node):
            for other in _variants(found, slot):
                slot.put(ast.copy_location(other, found))
                yield before, _head(node)
                slot.put(found)
    for inner in _blocks(node):
        for at in range(len(inner)):
            yield from _statement(inner, at, returns)


def _only_logs(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) if call is not None else ""
    return name in LOGS


def _instead(node: ast.stmt, returns: str) -> Iterator[ast.stmt]:
    """Statements in the place of a whole one."""
    match node:
        case ast.Expr() | ast.Delete() | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple(), *_]):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Return(value=value) if value is not None:
            kind = returns.partition("[")[0]
            if returns == "bool" and not isinstance(value, ast.Constant):
                yield ast.Return(ast.UnaryOp(ast.Not(), value))
            elif "None" in returns and ast.unparse(value) != "None":
                yield ast.Return(ast.Constant(None))
            elif kind in EMPTY and ast.unparse(value) not in (EMPTY[kind], "''"):
                yield ast.Return(ast.parse(EMPTY[kind], mode="eval").body)


@dataclass
class _Slot:
    """Place of an expression in its parent."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _slots(node: ast.AST) -> Iterator[tuple[_Slot, ast.expr]]:
    """Yield all expressions of a statement except for contained statements, texts and annotations, with their places."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "body", "orelse", "finalbody", "handlers", "cases") and isinstance(node, ast.stmt):
            continue
        for index, each in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(each, ast.JoinedStr) or not isinstance(each, ast.AST):
                continue
            if isinstance(each, ast.expr):
                yield _Slot(node, field, index), each
            if not isinstance(each, ast.stmt):
                yield from _slots(each)


def _variants(node: ast.expr, slot: _Slot) -> Iterator[ast.expr]:
    """Yield other expressions to put in the place of `node`."""
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                for other in COMPARED[type(op)]:
                    yield ast.Compare(node.left, [*ops[:at], other(), *ops[at + 1 :]], node.comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in RECKONED and not _is_text(node):
            yield ast.BinOp(node.left, RECKONED[type(op)](), node.right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield ast.Call(ast.Name("max" if name == "min" else "min"), node.args, node.keywords)
        case ast.Call(func=ast.Name(id="any" | "all" as name)):
            yield ast.Call(ast.Name("all" if name == "any" else "any"), node.args, node.keywords)
        case ast.List(elts=elements, ctx=ast.Load()) if not isinstance(slot.parent, ast.Call):
            for at in range(len(elements)):
                yield ast.List(elements[:at] + elements[at + 1 :], ast.Load())
        case ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.BoolOp):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)
        case ast.Name() | ast.Attribute() | ast.Call() if _is_condition(slot):
            yield ast.UnaryOp(ast.Not(), node)


def _is_condition(slot: _Slot) -> bool:
    whole = slot.field == "test" and isinstance(slot.parent, ast.If | ast.While)
    return (
        whole
        or isinstance(slot.parent, ast.BoolOp)
        or (isinstance(slot.parent, ast.comprehension) and slot.field == "ifs")
    )


def _is_text(node: ast.BinOp) -> bool:
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.Set)
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
