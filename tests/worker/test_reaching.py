"""Assignments that reach a read: random programs, of which a run shows which assignment has made each value."""

from __future__ import annotations

import ast
import contextlib
import textwrap
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.worker.source.reaching import Reaching

MOST_CHOICES = 200  # of one run
ERRORS = (ValueError, KeyError)

CHOICES = st.lists(st.booleans(), min_size=1, max_size=30)
SIMPLE = st.sampled_from(
    [
        "x = made({})",
        "y = made({})",
        "x = y",
        "read({}, x)",
        "read({}, y)",
        "x, y = y, made({})",
        "x = x if choice() else made({})",
        "read({}, x := made({}))",
        "choice() and (y := made({}))",
        "fail()",
        "for x in items(made({}), made({})): read({}, x)",
        "with given(made({})) as y: read({}, y)",
    ]
)


def bodies(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    """Lists of lines of a block. inner: of the blocks within its statements."""

    last = st.sampled_from([["read({}, x)"], ["read({}, y)"], ["y = made({})"]])  # which leaves `y` out

    def several(*heads: str, deep: str = "    ") -> st.SearchStrategy[list[str]]:
        parts = st.tuples(*(last if head == "finally:" else inner for head in heads))
        return parts.map(
            lambda each: [
                line
                for head, body in zip(heads, each, strict=True)
                for line in (*head.split("\n"), *(deep + line for line in body))
            ]
        )

    return st.one_of(
        several("if choice():"),
        several("if choice():", "else:"),
        several("for _ in items(0, 1):"),
        several("for _ in items(0, 1):", "else:"),
        several("while choice():"),
        several("while True:\n    choice()"),  # which ends the run at last
        several("try:", "except ValueError:"),
        several("try:", "except ValueError:", "except KeyError as y:"),
        several("try:", "except KeyError:", "else:"),
        several("try:", "finally:"),
        several("try:", "except ValueError:", "finally:"),
        several("with suppress(ValueError):"),
        several("match pair():\n    case (0, _):", "    case (1, x):", "    case _:", deep=8 * " "),
    )


LEAVES = SIMPLE.map(lambda line: [line])
ENDS = st.sampled_from(
    [["if choice():", "    break"], ["if choice():", "    continue"], ["break"], ["continue"], ["return"]]
)


def joined(parts: Iterable[list[str]]) -> list[str]:
    return [line for part in parts for line in part]


BLOCKS = st.recursive(
    LEAVES,
    lambda inner: st.lists(
        st.one_of(LEAVES, ENDS, bodies(st.lists(inner, min_size=1, max_size=3).map(joined))),
        min_size=1,
        max_size=4,
    ).map(joined),
    max_leaves=20,
)


class End(BaseException):
    """The run has made all of its choices."""


def numbered(lines: list[str]) -> str:
    """Return a function with the lines in a loop, and with numbers in the place of `{}`, all different."""
    every = [
        "for _ in items(0, 1, 2):",
        *(f"    {line}" for line in lines),
        "    read({}, x)",
        "read({}, x)",
        "read({}, y)",
    ]
    text = textwrap.indent("\n".join(every), "    ").split("{}")
    return "def f(x, y):\n" + "".join(f"{part}{number}" for number, part in enumerate(text[:-1])) + text[-1] + "\n"


def observed(source: str, choices: list[bool]) -> Iterator[tuple[int, int]]:
    """Run the program; yield the number of each read, and that of the call that has made its value."""
    made, seen = 0, []

    def choice() -> bool:
        nonlocal made
        made += 1
        if made > MOST_CHOICES:
            raise End
        return choices[made % len(choices)]

    def fail() -> None:
        if choice():
            raise ERRORS[choice()]

    space = {
        "choice": choice,
        "fail": fail,
        "made": lambda number: number,
        "read": lambda number, value: seen.append((number, value)),
        "items": lambda *values: [value for value in values if choice()],
        "given": contextlib.nullcontext,
        "suppress": contextlib.suppress,
        "pair": lambda: (int(choice()), -1),
    }
    exec(compile(source, "program", "exec"), space)
    with contextlib.suppress(End, UnboundLocalError, *ERRORS):
        space["f"](-1, -1)
    yield from seen


@settings(max_examples=400)
@given(BLOCKS, CHOICES)
def test_each_assignment_that_a_run_reads_is_found(lines: list[str], choices: list[bool]) -> None:
    source = numbered(lines)
    function = ast.parse(source).body[0]
    found = Reaching(function).of
    reads = {
        call.args[0].value: call.args[1]
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") == "read"
        and isinstance(call.args[0], ast.Constant)
    }
    for number, value in observed(source, choices):
        name = reads[number]
        if isinstance(name, ast.Name) and isinstance(value, int) and value >= 0:
            assert value in numbers_of(function, found, name, set()), f"{source}\nread {number} sees {value}"


def numbers_of(function: ast.AST, found: dict, name: ast.Name, seen: set[ast.Name]) -> set[int]:
    """Return the numbers of the calls whose values may come to this read, by way of other variables, too."""
    if name not in found:  # left out
        return {each.value for each in ast.walk(function) if isinstance(each, ast.Constant)}
    numbers: set[int] = set()
    for target in found[name]:
        if target in seen:
            continue
        seen.add(target)
        statement = next(
            each
            for each in reversed(list(ast.walk(function)))
            if isinstance(each, ast.Assign | ast.For | ast.withitem | ast.NamedExpr)
            and target in ast.walk(each)
            and not any(target in ast.walk(one) for one in getattr(each, "body", []))
        )
        value = (
            getattr(statement, "value", None)
            or getattr(statement, "iter", None)
            or getattr(statement, "context_expr", None)
        )
        for each in ast.walk(value):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "made":
                numbers.add(each.args[0].value)
            elif isinstance(each, ast.Name) and each.id in "xy" and isinstance(each.ctx, ast.Load):
                numbers |= numbers_of(function, found, each, seen)
    return numbers


EXACT = {
    "if a:\n x = 1\nelse:\n x = 2\nread(x)": {2, 4},
    "x = 1\nif a:\n x = 2\nread(x)": {1, 3},
    "x = 1\nx = 2\nread(x)": {2},
    "for a in b:\n read(x)\n x = 1": {3},
    "for a in b:\n x = 1\n read(x)\n x = 2": {2},
    "while True:\n x = 1\n if a: break\n x = 2\nread(x)": {2},
    "x = 1\ntry:\n x = a()\nexcept E:\n read(x)": {1, 3},
    "x = 1\nwith a: x = 2\nread(x)": {2},
    "x = 1\nwith suppress(E): x = 2\nread(x)": {1, 2},
    "x = 1\nx = x if a else 2\nread(x)": {1, 2},
    "if a:\n x = 1\n return\nx = 2\nread(x)": {4},
    "for a in b:\n x = 1\n if a: continue\n x = 2\nread(x)": {2, 4},
    "x = 1\na and (x := 2)\nread(x)": {1, 2},
}


@pytest.mark.parametrize("source", EXACT)
def test_assignments_that_others_replace_are_left_out(source: str) -> None:
    function = ast.parse("def f():\n" + textwrap.indent(source, " ")).body[0]
    (read,) = (
        each.args[0]
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "read"
    )
    assert {target.lineno - 1 for target in Reaching(function).of[read]} == EXACT[source]


@pytest.mark.parametrize(
    "line",
    [
        "g = lambda: x",
        "def g():\n  return x",
        "def g():\n  nonlocal x\n  x = 3",
        "g = (x for a in b)",
        "[x for x in b]",
        "del x",
        "exec(a)",
        "try: pass\nfinally: x = 3",
    ],
)
def test_variables_that_are_read_or_bound_at_another_time_have_no_assignments(line: str) -> None:
    function = ast.parse("def f():\n" + textwrap.indent(f"x = 1\n{line}\nx = 2\nread(x)", " ")).body[0]
    assert not any(name.id == "x" for name in Reaching(function).of)
