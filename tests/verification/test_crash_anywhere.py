"""Crash anywhere in the simulated cluster: a sample of `make crash-anywhere`, and the names of lives."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from functools import partial

import pytest

from elasticd.controller.store import StoreUnavailable
from verification.world.anywhere import Life, lives, names, play, sample
from verification.world.operations import Crashed, How, Operations

SOME = 5  # of each life and store
NEEDS_ETCD3 = pytest.mark.skipif(importlib.util.find_spec("etcd3") is None, reason="etcd3 is not installed")
STORES = [pytest.param("sqlite"), pytest.param("etcd", marks=NEEDS_ETCD3)]
FOUND = [  # lives that have failed once
    "life/sqlite/10:unheard/12:refused",
    "life/etcd/15:unheard/23:refused",
    "life/sqlite/21:refused",
    "after/etcd/74:refused",
]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", names())
def test_nothing_is_lost_whichever_operation_fails(name: str, store: str) -> None:
    for life in sample(list(lives(name, store)), SOME):
        ended = play(life)
        assert not ended.failed, f'{ended.text}\n    make crash-anywhere ARGS="--play {life}"'


@NEEDS_ETCD3
@pytest.mark.parametrize("text", FOUND)
def test_what_was_found_is_mended(text: str) -> None:
    ended = play(Life.of(text), tell=True)
    assert not ended.failed, "\n".join(ended.story[-60:])


@NEEDS_ETCD3
def test_a_life_is_the_same_each_time_and_meets_what_it_names() -> None:
    life = Life.of("many/etcd/15:after")
    first, second = play(life, tell=True), play(life, tell=True)
    assert first.story == second.story
    assert Life.of(str(life)) == life
    assert first.operations[14].what == "writes marker"
    assert sum("starts, for the" in line for line in first.story) == 2, "another one takes over"


@NEEDS_ETCD3
def test_a_life_has_commits_that_are_larger_than_a_transaction_and_operations_of_every_kind() -> None:
    whole = play(Life("many", "etcd"))
    words = [operation.what for operation in whole.operations]
    for part in ("is granted a lease", "/leading, /leader", "writes fence", "a piece", "marker", "-pieces/"):
        assert any(part in what for what in words), part
    for part in ("writes its identity", "writes the record", "starts ", "forgets "):
        assert any(part in what for what in words), part


@pytest.mark.parametrize("text", ["nobody/sqlite", "life/paper", "life/sqlite/x:after", "life/sqlite/3:never"])
def test_a_life_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"one of|such as|never"):
        Life.of(text)


def test_what_is_late_is_carried_out_after_the_next_operation() -> None:
    done: list[int] = []
    struck: list[How] = []
    operations = Operations({2: How.LATE, 4: How.AFTER}, lambda operation, how: struck.append(how))
    for number, raised in enumerate((None, StoreUnavailable, None, Crashed), 1):
        with pytest.raises(raised) if raised is not None else nullcontext():
            operations.run("c", "writes", How, partial(done.append, number))
    assert done == [1, 3, 2, 4]
    assert struck == [How.LATE, How.AFTER]
