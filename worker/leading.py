"""Code in a loop body that only the leader runs before `optimizer.step()`, and that may draw random numbers.

A loop body is a function of the state, the seed, the step and the virtual worker. With `if run.is_leader:
estimate_loss()` in it, it is not: random numbers drawn there shift dropout masks on the leader, but not on other
workers. A check of micro-batches (`crosscheck`) may miss this, since such code often runs in one of a thousand steps.
So the source around a read of `is_leader` is examined. If its `if` calls code that may draw, and random numbers are
drawn between there and `optimizer.step()`, the script gets one warning.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

from .assigned import Source
from .data.generators import digest_of_generators
from .own_code import loop_frame

CHECKED = 64  # bodies that are examined of a script that draws no numbers at first
# Calls that draw no random numbers, by last name: of loggers, progress bars, writers, tensors and containers.
# fmt: off
DRAWS_NOTHING = frozenset({
    "print", "log", "report", "save", "info", "debug", "warning", "error", "write", "flush", "add_scalar",
    "add_scalars", "add_histogram", "add_text", "set_postfix", "set_description", "set_postfix_str", "refresh",
    "update", "append", "extend", "item", "tolist", "detach", "cpu", "numpy", "mean", "sum", "max", "min", "abs",
    "norm", "format", "join", "len", "float", "int", "str", "bool", "round", "range", "enumerate", "zip", "sorted",
    "time", "perf_counter", "strftime", "dict", "list", "tuple", "get", "items", "keys", "values", "get_last_lr",
    "state_dict", "dump", "dumps", "makedirs", "isnan", "isinf", "isfinite", "any", "all", "sqrt", "log10", "exp",
    "local", "now", "memory_allocated", "max_memory_allocated", "is_leader", "no_grad", "inference_mode", "eval",
    "train", "define_metric", "log_metrics", "log_metric",
})
# fmt: on
TOLD = (
    "`if {test}:` ({place}) is read in the loop body before optimizer.step(), and calls {call}(). Whatever it draws from "
    "generators shifts dropout and noise behind it on the leader alone, so the result would depend on the number of workers. "
    "Move it behind optimizer.step(), or into a function of run.every(steps=…), where it shifts nothing"
)


class LeadersCode:
    """The leader's code in one script. For the training thread."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        """notice: reports a sentence as an event of the job."""
        self._notice = notice
        self._known: dict[tuple[CodeType, int], str] = {}  # warnings by place; "": none
        self._left = CHECKED
        self._text = ""  # warning about the present body; "": none
        self._drawn = ""

    def reads(self) -> None:
        """Take note that a loop body has read its worker's place before `optimizer.step()`, on the leader or the first
        worker.
        """
        if self._left <= 0 or self._text:
            return
        frame = loop_frame(sys._getframe(1))
        if frame is None:
            return
        place = frame.f_code, frame.f_lineno
        if place not in self._known:
            self._known[place] = _told(frame)
        if self._known[place]:
            self._text, self._drawn = self._known[place], digest_of_generators()

    def steps(self) -> None:
        """Take note that the body has come to its `optimizer.step()`; warn if random numbers were drawn."""
        text, self._text = self._text, ""
        if not text:
            return
        self._left -= 1
        if digest_of_generators() != self._drawn:
            self._left = 0
            warnings.warn(text, stacklevel=2)
            self._notice(text)


def _told(frame: FrameType) -> str:
    """Return the warning about the code that depends on the frame's current read; "" if that code draws no random
    numbers.
    """
    source = Source.read(frame.f_code.co_filename)
    if source is None:
        return ""
    for statement, tests in _ifs(source.tree, frame.f_lineno):
        for each in tests:
            call = next((name for part in (*each.body, *each.orelse) for name in _calls(part)), "")
            if call:
                place = f"{os.path.basename(source.file)}:{each.lineno}"
                return TOLD.format(test=ast.unparse(statement), place=place, call=call)
    return ""


def _ifs(tree: ast.AST, line: int) -> Iterator[tuple[ast.expr, list[ast.If]]]:
    """Yield the `if`s with a test on this line, or with a variable that is assigned there."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _is_on(node.test, line):
            yield node.test, [node]
        elif isinstance(node, ast.Assign) and _is_on(node, line):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.If) and any(
            isinstance(part, ast.Name) and part.id in names for part in ast.walk(node.test)
        ):
            yield node.test, [node]


def _is_on(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _calls(statement: ast.stmt) -> Iterator[str]:
    """Yield the calls of a statement that may draw random numbers."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func)
            if words.rpartition(".")[2] not in DRAWS_NOTHING and not words.startswith(
                ("wandb.", "logger.", "writer.", "time.")
            ):
                yield words
