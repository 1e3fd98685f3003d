"""The diverged worker, if workers' states differ, and the reports about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.digests import of_values
from elasticd.worker.plain import pack
from elasticd.worker.state.verdict import Entry, judge, sentence, value_entries

WORKERS = ["j-1.0 on a:0", "j-1.1 on a:1", "j-1.2 on b:0", "j-1.3 on b:1"]


def payload(weight: int = 1, bias: int = 1, rate: float = 0.1) -> list[Entry]:
    return [
        ("optimizer.param_groups[0]['lr']", of_values(rate), repr(rate)),
        ("parameter weight", weight, ""),
        ("parameter bias", bias, ""),
    ]


def test_where_all_agree_there_is_no_verdict() -> None:
    assert judge([payload(), payload(), None]) is None
    assert judge([None, None]) is None


def test_who_differs_from_most_is_wrong() -> None:
    verdict = judge([payload(), payload(weight=2, bias=5), None, payload()])
    assert verdict is not None
    assert (verdict.majority, verdict.wrong, verdict.entry, verdict.others) == ((0, 3), (1,), "parameter weight", 1)
    assert sentence(verdict, 7, WORKERS) == (
        "step 7: j-1.1 on a:1 differs from 2 workers that agree in parameter weight and 1 more; "
        "usual cause: code that changes it on some workers only, or faulty hardware"
    )


@pytest.mark.parametrize(
    "others", [[payload(weight=2)], [payload(weight=2), None], [payload(weight=2), payload(weight=3)]]
)
def test_without_a_majority_nobody_is_right(others: list[list[Entry] | None]) -> None:
    verdict = judge([payload(), *others])
    assert verdict is not None
    assert verdict.majority == ()
    assert verdict.wrong == tuple(rank for rank, each in enumerate([payload(), *others]) if each)
    assert "and no majority agrees in parameter weight" in sentence(verdict, 7, WORKERS)


def test_two_of_four_are_no_majority() -> None:
    verdict = judge([payload(), payload(), payload(weight=2), payload(weight=3)])
    assert verdict is not None
    assert verdict.majority == ()


def test_values_are_shown_with_what_usually_makes_them_differ() -> None:
    verdict = judge([payload(), payload(rate=0.05), payload()])
    assert verdict is not None
    assert sentence(verdict, 7, WORKERS) == (
        "step 7: j-1.1 on a:1 differs from 2 workers that agree in optimizer.param_groups[0]['lr'] (0.05 and 0.1); "
        "usual cause: set hyperparameters from run.steps_done, not from a count of loop bodies"
    )


def test_an_entry_that_only_some_have_is_named() -> None:
    more = [*payload(), ("buffer mean", 3, "")]
    verdict = judge([payload(), more, payload()])
    assert verdict is not None
    assert (verdict.entry, verdict.wrong) == ("buffer mean", (1,))
    assert "(- and not there)" in sentence(verdict, 7, WORKERS)


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=9))
def test_a_majority_is_more_than_half_of_those_that_tell(opinions: list[int | None]) -> None:
    verdict = judge([None if opinion is None else payload(weight=opinion) for opinion in opinions])
    told = [opinion for opinion in opinions if opinion is not None]
    assert (verdict is None) == (len(set(told)) < 2)
    if verdict is None:
        return
    right = {opinions[rank] for rank in verdict.majority}
    assert set(verdict.majority) | set(verdict.wrong) == {r for r, each in enumerate(opinions) if each is not None}
    assert not set(verdict.majority) & set(verdict.wrong)
    if verdict.majority:
        assert len(right) == 1
        assert all(opinions[rank] not in right for rank in verdict.wrong)
    assert bool(verdict.majority) == any(2 * told.count(opinion) > len(told) for opinion in told)


def test_a_sentence_fits_into_what_is_kept_of_an_end() -> None:
    names = [f"imagenet-resnet-large-100{i}.{i} on gpu-server-number-{i}.cluster.example:{i}" for i in range(8)]
    long = [[("optimizer.state[123]['exp_avg_sq'] of a layer", i, "")] for i in range(8)]
    verdict = judge(long)
    assert verdict is not None
    assert "and 4 more differ" in sentence(verdict, 123456789, names)


def entries(**values: Any) -> dict[str, str]:
    registered = {name: pack(value, name) for name, value in values.items()}
    return {name: reads for name, _, reads in value_entries({"registered": registered}, of_values)}


def test_each_value_is_an_entry_under_the_words_that_get_it() -> None:
    assert entries(log=[1, (2.5, None)], best={"loss": 0.1, 3: "x" * 99}) == {
        "len(registered value 'log')": "2",
        "registered value 'log'[0]": "1",
        "len(registered value 'log'[1])": "2",
        "registered value 'log'[1][0]": "2.5",
        "registered value 'log'[1][1]": "None",
        "registered value 'best'['loss']": "0.1",
        "registered value 'best'[3]": "'xxxxxxxxxxxxxxxxxxxxxxx...",
    }


def test_newcomers_have_no_vote_against_those_that_have_given_them_the_state() -> None:
    given, other = [("lr", 1, "0.1")], [("lr", 2, "0.2")]
    verdict = judge([given, other, other], frozenset({1, 2}))
    assert verdict is not None
    assert (verdict.majority, verdict.wrong) == ((0,), (1, 2))
    undecided = judge([given, other, given], frozenset({2}))
    assert undecided is not None
    assert not undecided.majority, "of two that have a vote nobody knows which is right"
    outvoted = judge([given, other, other])
    assert outvoted is not None
    assert outvoted.wrong == (0,)
