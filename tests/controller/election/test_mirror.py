"""The mirror of a standby: listings of different revisions and the changes since the first of them make what the store holds."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from elasticd.controller.election.mirror import Mirror
from elasticd.controller.jobs.archive import PREFIX as ARCHIVE
from elasticd.controller.store.interface import Changes, Delete, Put, Record

KEYS = [*(f"/jobs/{number}" for number in range(4)), "/zone", *(f"{ARCHIVE}{number}" for number in range(3))]


@given(seed=st.integers(0, 2**32))
def test_a_mirror_holds_what_the_store_holds_whenever_its_listings_were_made(seed: int) -> None:
    rng = random.Random(seed)
    store: dict[str, Record] = {}
    archived: set[str] = set()  # keys that have been there: none comes twice
    history: list[Changes] = []
    first = 1

    def write(revision: int) -> None:
        key = rng.choice(KEYS)
        if key in store and (key.startswith(ARCHIVE) or rng.random() < 0.5):
            store.pop(key)
            history.append(Changes(revision, (Delete(key),)))
        elif key not in archived:
            value = str(revision).encode()
            store[key] = Record(key, value, revision)
            archived.update({key} if key.startswith(ARCHIVE) else ())
            history.append(Changes(revision, (Put(key, value),)))

    for revision in range(2, rng.randint(2, 20)):
        write(revision)
        first = revision
    beginning = len(history)
    revision = first
    listings: list[dict[str, Record]] = []
    for _ in range(3):  # the archive's keys, then what is before it, then what is after it
        for _ in range(rng.randint(0, 5)):
            revision += 1
            write(revision)
        listings.append(dict(store))
    for _ in range(rng.randint(0, 10)):
        revision += 1
        write(revision)
    keys = [key for key in listings[0] if key.startswith(ARCHIVE)]
    records = [listings[1][key] for key in listings[1] if key < ARCHIVE]
    records += [listings[2][key] for key in listings[2] if key > ARCHIVE + "\U0010ffff"]
    mirror = Mirror(keys, records, first)
    for changes in history[beginning:]:
        mirror.take(changes)
    expected = {key: b"" if key.startswith(ARCHIVE) else record.value for key, record in store.items()}
    assert dict(mirror.records()) == expected


def test_values_of_the_archive_are_not_kept() -> None:
    mirror = Mirror((), (), 1)
    mirror.take(Changes(2, (Put(f"{ARCHIVE}1", b"long"), Put("/jobs/1", b"short"))))
    assert mirror.records() == [("/jobs/1", b"short"), (f"{ARCHIVE}1", b"")]
    assert mirror.revision == 2


def test_what_is_left_out_of_the_archive_and_what_was_never_there_has_no_value() -> None:
    mirror = Mirror((), (Record("/leader", b"a", 1),), 1)
    assert (mirror.value("/leader"), mirror.value("/jobs/1")) == (b"a", None)
    mirror.take(Changes(2, (Put("/leader", b"b"), Put(f"{ARCHIVE}1", b"long"))))
    assert (mirror.value("/leader"), mirror.value(f"{ARCHIVE}1")) == (b"b", None)
