"""Every element of a state is checked in one step out of so many, whatever the state consists of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.state.rotation import count_looks, length, look_of, pieces

EVERY = st.integers(1, 700)
TENSORS = st.lists(st.tuples(st.integers(0, 3_000_000), st.booleans()), max_size=12)


@given(EVERY, TENSORS, st.integers(0, 10**9))
def test_within_a_round_each_element_is_looked_at_exactly_once(
    every: int, tensors: list[tuple[int, bool]], begin: int
) -> None:
    counts = [count for count, _ in tensors]
    lengths = [length(4 * count, on_device) for count, on_device in tensors]
    looks = count_looks(every, lengths)
    assert 1 <= looks <= every
    due = [look for step in range(begin, begin + every) if (look := look_of(step, every, looks)) is not None]
    assert sorted(due) == list(range(looks))
    seen: list[list[tuple[int, int]]] = [[] for _ in counts]
    for look in range(looks):
        for piece in pieces(look, looks, lengths, counts, aligned=64):
            assert piece.begin % 64 == 0
            seen[piece.position].append((piece.begin, piece.end))
    for count, parts in zip(counts, seen, strict=True):
        assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])][: len(parts)]
        assert not parts or parts[-1][1] == count
        assert parts or count == 0


@given(EVERY, st.integers(1, 700), st.integers(0, 10**6))
def test_looks_come_at_even_distances_and_the_first_one_begins_a_round(every: int, looks: int, rounds: int) -> None:
    looks = min(looks, every)
    steps = [step for step in range(rounds * every, (rounds + 1) * every) if look_of(step, every, looks) is not None]
    assert look_of(rounds * every, every, looks) == 0
    gaps = {later - earlier for earlier, later in zip(steps, [*steps[1:], (rounds + 1) * every], strict=True)}
    assert max(gaps) - min(gaps) <= 1


def test_a_look_is_no_longer_than_it_has_to_be() -> None:
    lengths = [length(4 * 100_000_000, on_device=False)]
    looks = count_looks(512, lengths)
    assert looks == 47
    assert all(
        sum(p.end - p.begin for p in pieces(k, looks, lengths, [100_000_000], 64)) < 2_200_000 for k in range(looks)
    )
    assert count_looks(512, [length(40_000, on_device=False)] * 10) == 1
    assert count_looks(10, lengths) == 10


def test_bytes_on_an_accelerator_count_less() -> None:
    assert length(2**30, on_device=True) * 8 < length(2**30, on_device=False)
