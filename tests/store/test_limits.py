"""Commits larger than one transaction: how they are divided, and that their journal gives the writes back. Pure."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.controller.store import Delete, Put, StoreUnavailable, journal
from elasticd.controller.store.interface import Limits

KEYS = st.text(st.sampled_from("/a\xe9\U0001f600"), max_size=3)
WRITES = st.lists(st.one_of(st.builds(Put, KEYS, st.binary(max_size=9)), st.builds(Delete, KEYS)), max_size=12)
BOUND = st.one_of(st.none(), st.integers(1, 30))
PIECE_BYTES = 7


def test_a_deleted_key_counts_as_its_name_and_a_value_as_its_bytes_besides() -> None:
    limits = Limits(bytes=100, overhead_bytes=10)
    assert limits.size(Delete("/\xe9")) == 10 + 3
    assert limits.size(Put("/\xe9", b"12345")) == 10 + 3 + 5


@pytest.mark.parametrize(
    ("limits", "operations", "size", "fits"),
    [
        (Limits(), 10**9, 10**12, True),
        (Limits(operations=3), 3, 10**12, True),
        (Limits(operations=3), 4, 0, False),
        (Limits(bytes=50), 10**9, 50, True),
        (Limits(bytes=50), 1, 51, False),
        (Limits(3, 50), 3, 50, True),
        (Limits(3, 50), 4, 50, False),
        (Limits(3, 50), 3, 51, False),
    ],
)
def test_a_transaction_fits_up_to_each_of_its_limits(limits: Limits, operations: int, size: int, fits: bool) -> None:
    assert limits.allow(operations, size) is fits


def test_only_a_store_without_any_limit_makes_every_commit_one_transaction() -> None:
    assert [limits.is_none for limits in (Limits(), Limits(operations=3), Limits(bytes=50), Limits(3, 50))] == [
        True, False, False, False,
    ]  # fmt: skip


@given(WRITES, BOUND, BOUND, st.integers(0, 3), st.integers(0, 2))
def test_portions_keep_the_order_fit_and_are_as_few_as_that_allows(
    writes: list[Put | Delete], operations: int | None, size: int | None, overhead: int, spare: int
) -> None:
    """A write that exceeds a transaction by itself is a portion of its own: `EtcdStore` has refused it before."""

    def fits(portion: tuple[object, ...]) -> bool:
        total = sum(len(w.key.encode()) + len(getattr(w, "value", b"")) + overhead for w in portion)  # type: ignore[attr-defined]
        return (operations is None or len(portion) + spare <= operations) and (size is None or total <= size)

    portions = list(journal.portions(Limits(operations, size, overhead), writes, spare))
    assert [write for portion in portions for write in portion] == writes
    assert all(portions), "a transaction of nothing"
    assert all(len(portion) == 1 or fits(portion) for portion in portions)
    for portion, following in pairwise(portions):
        assert not fits((*portion, following[0]))


@given(WRITES)
def test_a_journal_gives_back_the_writes_from_pieces_of_bounded_size(writes: list[Put | Delete]) -> None:
    marker, pieces = journal.written("ab12", writes, PIECE_BYTES)
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    found = journal.Marker.decode(marker.encode())
    assert (found.number, found.pieces) == ("ab12", len(pieces))
    assert journal.read(found, pieces) == tuple(writes)


def test_a_journal_that_is_not_what_its_marker_says_is_not_applied() -> None:
    marker, pieces = journal.written("ab12", [Put("/a", bytes(20)), Delete("/b")], PIECE_BYTES)
    assert len(pieces) > 2
    for odd in (pieces[:-1], (*pieces, b""), (pieces[0][:-1] + b"x", *pieces[1:])):
        with pytest.raises(StoreUnavailable, match="parts are there"):
            journal.read(marker, odd)
    with pytest.raises(StoreUnavailable, match="parts are there"):
        journal.read(msgspec.structs.replace(marker, pieces=len(pieces) + 1), pieces)


def test_a_marker_that_cannot_be_read_is_reported_and_not_taken_for_none() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        journal.Marker.decode(b"junk")
