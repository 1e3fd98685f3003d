"""Code in a loop body that only some workers run before `optimizer.step()`, and that may draw random numbers.

A loop body is a function of the state, the seed, the step and the virtual worker. With `if run.is_leader:
estimate_loss()` in it, as in nanoGPT, it would not be: random numbers drawn there would shift dropout masks on the
leader, but not on other workers. A check of micro-batches (`crosscheck`) may miss this, since such code often runs in
one of a thousand steps. So the block under such an `if` draws from generators of its own: they are seeded where it
begins, and have their former state again where it ends. Then the body draws the same numbers on all workers.

*Blocks* are found in the source: an `if` on the line where the script reads `is_leader` or `rank`, or with a variable
that was assigned from these, and with calls that may draw. *Where a block begins and ends* is known from Python's
tracing of lines, which is on between the read and the end of the block; with a variable, in the whole body up to
`optimizer.step()`. Where a debugger traces already, the script gets one warning instead.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any

from .data.generators import digest_of_generators, generators_kept
from .source.assigned import Source
from .source.own_code import directories, is_own_file
from .source.syntax import PARSED, walk

CHECKED = 64  # bodies that are examined of a script that draws no numbers at first, where another tool traces
_PLACES = ("is_leader", "rank")
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

    def __init__(self, seed: Callable[[], None], notice: Callable[[str], None]) -> None:
        """seed: seeds the generators for a block. notice: reports a sentence as an event of the job."""
        self._seed = seed
        self._notice = notice
        self._at_reads: dict[tuple[CodeType, int], _Blocks] = {}  # by the place of the read
        self._by_variables: dict[CodeType, _Blocks] = {}
        self._quiet: list[CodeType] = []  # code of the frames around the last body, if none of it has such blocks
        self._frame: FrameType | None = None  # that is traced
        self._blocks = _NONE
        self._kept: ExitStack | None = None  # the generators before the block that is running
        self._left = CHECKED
        self._text = ""  # warning about the present body; "": none
        self._drawn = ""

    def body_begins(self) -> None:
        """Take note that a loop body gets its batch."""
        begin = sys._getframe(1)
        frame: FrameType | None = begin
        for code in self._quiet:  # nearly always the whole path: the hash of a code object takes longer than this
            if frame is None or frame.f_code is not code:
                break
            frame = frame.f_back
        else:
            if frame is None:
                return
        path: list[CodeType] = []
        frame = begin
        while frame is not None:
            path.append(frame.f_code)
            blocks = self._by_variables.get(frame.f_code)  # each body looks here: the file's path is compared once
            if blocks is None:
                own = is_own_file(frame.f_code.co_filename, directories())
                blocks = self._by_variables[frame.f_code] = _by_variables(frame) if own else _NONE
            if blocks.lines:
                self._quiet = []
                self._trace(frame, blocks)
                return
            frame = frame.f_back
        self._quiet = path

    def reads(self, is_first: bool) -> None:
        """Take note that a loop body reads its worker's place before `optimizer.step()`. is_first: this worker is the leader or
        the first one.
        """
        for frame in _own_frames(sys._getframe(1)):
            place = frame.f_code, frame.f_lineno
            if place not in self._at_reads:
                self._at_reads[place] = _at_read(frame)
            if (blocks := self._at_reads[place]).lines:
                self._trace(frame, blocks)
                if self._frame is None and is_first:
                    self._watch(blocks.text)
                return

    def steps(self) -> None:
        """Take note that the body has come to its `optimizer.step()`."""
        if self._frame is not None:
            self._trace_no_more()
        text, self._text = self._text, ""
        if not text:
            return
        self._left -= 1
        if digest_of_generators() != self._drawn:
            self._left = 0
            warnings.warn(text, stacklevel=2)
            self._notice(text)

    def _watch(self, text: str) -> None:
        if self._left > 0 and not self._text:
            self._text, self._drawn = text, digest_of_generators()

    def _trace(self, frame: FrameType, blocks: _Blocks) -> None:
        if self._frame is frame:
            self._blocks = _Blocks((*self._blocks.lines, *blocks.lines), blocks.text)
        elif self._frame is None and sys.gettrace() is None:
            self._frame, self._blocks = frame, blocks
            frame.f_trace = self._on_line
            sys.settrace(_no_function)
        else:
            return
        self._on_line(frame, "line", None)  # a block on the line of its test

    def _trace_no_more(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            sys.settrace(None)
            frame.f_trace = None
            self._leave()

    def _leave(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _on_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame is not self._frame:
            return None
        inside = event != "return" and any(frame.f_lineno in each for each in self._blocks.lines)
        if inside and self._kept is None:
            self._kept = ExitStack()
            self._kept.enter_context(generators_kept())
            self._seed()
        elif not inside:
            self._leave()
        if event == "return":
            self._trace_no_more()
        return self._on_line


def _own_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the script's own code, the innermost first."""
    own = directories()
    while frame is not None:
        if is_own_file(frame.f_code.co_filename, own):
            yield frame
        frame = frame.f_back


def _no_function(frame: FrameType, event: str, argument: Any) -> None:
    """Trace no function that is called from the traced block."""


class _Blocks:
    """Blocks of one function that only some workers run. text: the warning about the first."""

    def __init__(self, lines: Sequence[range] = (), text: str = "") -> None:
        self.lines = tuple(lines)
        self.text = text


_NONE = _Blocks()


def _at_read(frame: FrameType) -> _Blocks:
    """Return the blocks that depend on the frame's current read, without those of variables of loop bodies."""
    source = Source.read(frame.f_code.co_filename)
    return _NONE if source is None else _blocks(source, _ifs(source.tree, frame.f_lineno))


def _by_variables(frame: FrameType) -> _Blocks:
    """Return the blocks of the frame's file that depend on a variable with a worker's place."""
    source = Source.read(frame.f_code.co_filename)
    return _NONE if source is None else _of_variables(source)


@functools.lru_cache(PARSED)
def _of_variables(source: Source) -> _Blocks:
    nodes = walk(source.tree)
    reads = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in _PLACES]
    if not reads:  # as in nearly all files
        return _NONE
    readers = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and _holds_any(node, reads)}
    names = {
        ast.unparse(target)
        for node in nodes
        if isinstance(node, ast.Assign) and (_holds_any(node.value, reads) or _calls_any(node.value, readers))
        for target in node.targets
    }
    tests = [node for node in nodes if isinstance(node, ast.If)] if names else []
    return _blocks(source, (each for each in tests if any(ast.unparse(part) in names for part in walk(each.test))))


def _holds_any(node: ast.expr | ast.stmt, parts: Sequence[ast.expr]) -> bool:
    """Return whether one of these parts of the same file stands in the node, by their places in the source."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return any(begin <= (part.lineno, part.col_offset) < end for part in parts)


def _calls_any(node: ast.AST, names: set[str]) -> bool:
    return bool(names) and any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names for each in walk(node)
    )


def _blocks(source: Source, ifs: Iterator[ast.If]) -> _Blocks:
    lines: list[range] = []
    text = ""
    for each in ifs:
        call = next((name for part in (*each.body, *each.orelse) for name in _calls(part)), "")
        if call:
            lines += [
                range(block[0].lineno, (block[-1].end_lineno or block[-1].lineno) + 1)
                for block in (each.body, each.orelse)
                if block
            ]
            place = f"{os.path.basename(source.file)}:{each.lineno}"
            text = text or TOLD.format(test=ast.unparse(each.test), place=place, call=call)
    return _Blocks(lines, text)


def _ifs(tree: ast.AST, line: int) -> Iterator[ast.If]:
    """Yield the `if`s with a test on this line, or with a variable that is assigned there."""
    names: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.If) and _is_on(node.test, line):
            yield node
        elif isinstance(node, ast.Assign) and _is_on(node, line):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in walk(tree) if names else ():
        if isinstance(node, ast.If) and any(
            isinstance(part, ast.Name) and part.id in names for part in walk(node.test)
        ):
            yield node


def _is_on(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _calls(statement: ast.stmt) -> Iterator[str]:
    """Yield the calls of a statement that may draw random numbers."""
    for node in walk(statement):
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func)
            if words.rpartition(".")[2] not in DRAWS_NOTHING and not words.startswith(
                ("wandb.", "logger.", "writer.", "time.")
            ):
                yield words
