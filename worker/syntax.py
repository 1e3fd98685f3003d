"""Python's syntax trees of a script's files, with access by a constant name written as plain access."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def parse(text: str) -> ast.Module:
    """Parse a file. Raises SyntaxError, ValueError and RecursionError.

    `setattr(a, "b", c)` becomes `a.b = c`, `getattr(a, "b", default)` and `vars(a)["b"]` become `a.b`, and
    `globals()["b"]` becomes `b`: analyses of the source know one way to read or bind a name.
    """
    return ast.fix_missing_locations(_Plain().visit(ast.parse(text)))  # type: ignore[no-any-return]


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module imports, each with its original name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name.partition(".")[0], each.name) for each in node.names)


class _Plain(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), value]):
                target = ast.copy_location(ast.Attribute(owner, name, ast.Store()), node)
                return ast.copy_location(ast.Assign([target], value), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
                return ast.copy_location(ast.Attribute(owner, name, ast.Load()), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="vars"), args=[owner]) | ast.Attribute(value=owner, attr="__dict__"),
                slice=ast.Constant(value=str(name)),
            ):
                return ast.copy_location(ast.Attribute(owner, name, node.ctx), node)
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="globals"), args=[]), slice=ast.Constant(value=str(name))
            ):
                return ast.copy_location(ast.Name(name, node.ctx), node)
        return node
