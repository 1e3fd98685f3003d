"""Which variables a loop body may read before it binds them."""

from __future__ import annotations

import ast
import textwrap

import pytest

from elasticd.worker.source.liveness import read_first

BOUND = {
    "branches": """
        if easy:
            loss = first
        elif hard:
            loss = second
        else:
            raise ValueError
        loss = loss + 1
        """,
    "a branch that goes on with the next iteration": """
        if easy:
            continue
        else:
            loss = second
        loss += 1
        """,
    "handlers": """
        try:
            loss = first
        except ValueError:
            loss = second
        except KeyError as error:
            raise RuntimeError from error
        loss += 1
        """,
    "behind the try": """
        try:
            check()
        except ValueError:
            return
        else:
            loss = first
        loss += 1
        """,
    "until it fits": """
        while True:
            loss = draw()
            if loss < 1:
                break
        loss = max(loss, 0)
        """,
    "the first iteration": """
        for k in range(3):
            if k == 0:
                loss = first
            else:
                loss += 1
            loss *= 2
        """,
    "one iteration or more": """
        for k in range(2):
            loss = first
            if draw():
                break
        loss += 1
        """,
    "one item or more": """
        for each in (first, second):
            loss = each
        loss += 1
        """,
    "the first item": """
        for k, each in enumerate(items):
            if k == 0:
                loss = each
            loss += each
        """,
    "cases": """
        match kind:
            case "one":
                loss = first
            case [loss, *_]:
                pass
            case _:
                loss = second
        loss += 1
        """,
    "finally": """
        try:
            check()
        finally:
            loss = first
        loss += 1
        """,
}
READ = {
    "one branch": """
        if easy:
            loss = first
        loss += 1
        """,
    "one of several branches": """
        if easy:
            loss = first
        elif hard:
            loss = second
        loss += 1
        """,
    "a handler without it": """
        try:
            loss = first
        except ValueError:
            pass
        loss += 1
        """,
    "a handler that reads it": """
        try:
            loss = first
        except ValueError:
            loss = loss + 1
        """,
    "finally": """
        try:
            loss = first
        finally:
            show(loss)
        """,
    "behind a break": """
        while True:
            if draw():
                break
            loss = draw()
        loss += 1
        """,
    "a loop that may have no iteration": """
        for each in items:
            loss = each
        loss += 1
        """,
    "one iteration that may end before": """
        for k in range(2):
            if draw():
                break
            loss = first
        loss += 1
        """,
    "no items": """
        for k in range(0):
            loss = k
        for each in (*items,):
            loss = each
        loss += 1
        """,
    "a later iteration": """
        for k in range(3):
            if k == 1:
                loss = first
            else:
                loss += 1
        """,
    "an iteration that starts later": """
        for k in range(start, 3):
            if k == 0:
                loss = first
            loss += 1
        """,
    "a first iteration that may end before": """
        for k in range(3):
            if draw():
                continue
            if k == 0:
                loss = first
            loss += 1
        """,
    "cases": """
        match kind:
            case "one":
                loss = first
            case "two":
                loss = second
        loss += 1
        """,
    "a case with a pattern": """
        match kind:
            case "one" as loss:
                pass
        loss += 1
        """,
    "a case with a condition": """
        match kind:
            case _ if draw():
                loss = first
        loss += 1
        """,
}


@pytest.mark.parametrize("name", BOUND)
def test_a_variable_that_is_bound_in_every_case_is_not_read_first(name: str) -> None:
    assert "loss" not in read_first(ast.parse(textwrap.dedent(BOUND[name])).body)


@pytest.mark.parametrize("name", READ)
def test_a_variable_that_need_not_be_bound_is_read_first(name: str) -> None:
    assert "loss" in read_first(ast.parse(textwrap.dedent(READ[name])).body)
