"""Passes over batches within an expression, such as `losses = [train_step(batch) for batch in batches]`.

The value of such an expression comes from the loop bodies that this process has run. A process that continues in the middle of an
epoch has not run the epoch's earlier bodies, and no variable of the process before it holds their results.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from .logged import LOGS
from .syntax import called_name, children, walk

COLLECTING = frozenset(
    """
    list tuple set frozenset dict sorted sum fsum prod min max any all reduce deque Counter array asarray fromiter tensor
    as_tensor stack cat concatenate mean fmean median average accumulate
    """.split()  # noqa: SIM905
)
_Headed = ast.If | ast.While | ast.Assert | ast.For
_Simple = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr


def statement_at(
    tree: ast.Module, line: int, is_display: Callable[[str], bool] = lambda name: False
) -> ast.stmt | None:
    """Return the statement that collects a value from a pass over batches.

    line: at which the batches are iterated. is_display: returns whether only logs read a variable. None: a loop's body trains,
    the value is dropped, or only a log reads it.
    """
    around = [
        each for each in walk(tree) if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    match max(around, key=lambda each: (each.lineno, -(each.end_lineno or 0)), default=None):
        case ast.Expr(value=value) if _collects(value) or (isinstance(value, ast.Call) and called_name(value) in LOGS):
            return None
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)) if is_display(name):
            return None
        case found if isinstance(found, _Simple | _Headed):
            heads = [each for each in children(found) if isinstance(each, ast.expr)]
            nodes = [node for each in heads for node in walk(each)]
            if isinstance(found, ast.For) and not any(
                called_name(each) == "accumulate" for each in nodes if isinstance(each, ast.Call)
            ):
                return None  # its body trains
            calls = [each for each in nodes if isinstance(each, ast.Call)]
            takes_one = any(called_name(each) == "next" for each in calls)  # one batch, and not the pass
            return found if not takes_one and any(map(_collects, nodes)) else None
    return None


def _collects(node: ast.AST) -> bool:
    match node:
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.Starred(value=ast.Call()):
            return True
        case ast.Call():
            return called_name(node) in COLLECTING
    return False
