"""The valid checkpoint, where several generations of a job have written some."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.lineages import Name, newest_first, overtaken_by, superfluous, taken_over

NAMES = st.sets(st.builds(Name.of, st.integers(0, 5), st.integers(0, 20)), max_size=8)


def test_a_name_is_read_back_from_its_file() -> None:
    name = Name.of(7, 123_456)
    assert name.file == "generation-00000007-step-000000123456.pt"
    assert Name.parse(name.file) == name
    assert Name.parse("step-000000000007.pt") == Name(0, 7, "step-000000000007.pt")
    for other in ("model.pt", f".{name.file}.1a", f"{name.file}.new", "step-7.pt"):
        assert Name.parse(other) is None


def test_the_greatest_generation_is_the_newest_and_within_one_the_greatest_step() -> None:
    names = [Name.of(3, 120), Name.of(9, 100), Name.of(9, 90), Name.of(2, 500)]
    for order in itertools.permutations(names):
        assert newest_first(order) == [Name.of(9, 100), Name.of(9, 90), Name.of(3, 120), Name.of(2, 500)]


def test_who_goes_on_from_a_checkpoint_overtakes_those_before_it_and_nobody_after_it() -> None:
    own = taken_over(Name.of(3, 100), 9)
    assert own == Name.of(9, 100)
    assert overtaken_by([Name.of(3, 90), own], 3) == 9
    assert overtaken_by([Name.of(3, 90), own], 9) is None
    assert taken_over(own, 8) == own, "a generation that was late takes nothing back"


def test_nobody_is_overtaken_where_there_is_no_checkpoint() -> None:
    assert overtaken_by([], 1) is None
    assert superfluous([], 1, 2) == []


def test_what_older_generations_have_left_is_removed_first() -> None:
    names = [Name.of(3, 90), Name.of(3, 100), Name.of(4, 95), Name.of(4, 99)]
    assert superfluous(names, 4, 2) == [Name.of(3, 100), Name.of(3, 90)]
    assert superfluous(names, 3, 2) == [], "a writer that was overtaken removes nothing"


@given(NAMES, st.integers(0, 6), st.integers(-1, 4))
def test_the_newest_is_never_superfluous(names: set[Name], generation: int, keep: int) -> None:
    gone = superfluous(names, generation, keep)
    left = names - set(gone)
    if names:
        assert newest_first(left)[0] == newest_first(names)[0]
    if gone:
        assert len(left) == max(keep, 1)
        assert min(left) > max(gone)


@given(NAMES.filter(bool), st.integers(0, 6))
def test_a_checkpoint_that_was_taken_over_stays_the_newest(names: set[Name], generation: int) -> None:
    newest = newest_first(names)[0]
    own = taken_over(newest, generation)
    after = (names - {newest}) | {own}
    assert newest_first(after)[0] == own
    assert overtaken_by(after, generation - 1) is not None
    assert own.step == newest.step
