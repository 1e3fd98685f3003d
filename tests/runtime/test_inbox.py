"""The queue of received messages: bounds, order, and the peer that is dropped under overload. Pure."""

from __future__ import annotations

import pytest

from elasticd.runtime.inbox import OVERHEAD_BYTES, Inbox, Room, Shed

ROOMY = Room(messages=100, bytes_=1 << 20)


def all_of(inbox: Inbox[str, str, int]) -> list[int]:
    return [inbox.take()[2] for _ in range(inbox.messages)]


def test_principals_are_served_in_turn_however_much_one_of_them_says() -> None:
    inbox: Inbox[str, str, int] = Inbox(ROOMY)
    for number in range(50):
        inbox.put("mallory", f"m{number % 5}", number, 10, repeated=False)
    inbox.put("alice", "a", 100, 10, repeated=False)
    inbox.put("bob", "b", 200, 10, repeated=False)
    assert [inbox.take()[0] for _ in range(3)] == ["mallory", "alice", "bob"]


def test_what_one_connection_says_stays_in_its_order() -> None:
    inbox: Inbox[str, str, int] = Inbox(ROOMY)
    for number in range(9):
        inbox.put("alice", f"a{number % 3}", number, 10, repeated=number % 2 == 0)
    taken = [inbox.take() for _ in range(9)]
    for line in ("a0", "a1", "a2"):
        numbers = [number for _, its, number in taken if its == line]
        assert numbers == sorted(numbers)
    assert (inbox.messages, inbox.bytes_) == (0, 0)


def test_what_is_repeated_goes_first_but_the_newest_and_nothing_else() -> None:
    inbox: Inbox[str, str, int] = Inbox(Room(messages=5, bytes_=1 << 20))
    for number, repeated in enumerate((False, True, True, False, True)):
        assert inbox.put("s1", "line", number, 10, repeated) == []
    assert inbox.put("s1", "line", 5, 10, repeated=False) == [Shed("s1", 2)]
    assert all_of(inbox) == [0, 3, 4, 5]


def test_of_many_who_have_said_one_thing_that_they_repeat_none_is_cut() -> None:
    inbox: Inbox[str, str, int] = Inbox(Room(messages=4, bytes_=1 << 20))
    shed = [each for number in range(6) for each in inbox.put(f"s{number}", "line", number, 10, repeated=True)]
    assert [each.cut for each in shed] == [None, None]
    assert inbox.messages == 4


def test_a_connection_that_repeats_nothing_loses_all_and_is_to_be_cut_and_others_stay() -> None:
    inbox: Inbox[str, str, int] = Inbox(Room(messages=5, bytes_=1 << 20))
    inbox.put("bob", "loud", 9, 10, repeated=False)
    inbox.put("alice", "quiet", 0, 10, repeated=False)
    for number in range(1, 4):
        inbox.put("alice", "loud", number, 10, repeated=False)
    assert inbox.put("alice", "quiet", 4, 10, repeated=False) == [Shed("alice", 3, "loud")]
    assert sorted(all_of(inbox)) == [0, 4, 9]


def test_of_all_that_waits_the_principal_with_most_bytes_pays() -> None:
    inbox: Inbox[str, str, int] = Inbox(Room(messages=100, bytes_=10 * (OVERHEAD_BYTES + 100)))
    inbox.put("alice", "a", 0, 100, repeated=False)
    for number in range(1, 10):
        assert inbox.put("mallory", "m", number, 100, repeated=False) == []
    assert inbox.put("bob", "b", 10, 100, repeated=False) == [Shed("mallory", 9, "m")]
    assert all_of(inbox) == [0, 10]


def test_a_message_that_is_larger_than_the_room_waits_alone() -> None:
    inbox: Inbox[str, str, int] = Inbox(Room(messages=100, bytes_=1000))
    assert inbox.put("s1", "hello", 0, 5000, repeated=False) == []
    assert inbox.put("s2", "hello", 1, 100, repeated=False) == [Shed("s1", 1, "hello")]
    assert all_of(inbox) == [1]


def test_what_is_dropped_counts_no_more() -> None:
    inbox: Inbox[str, str, int] = Inbox(ROOMY)
    inbox.put("alice", "a", 0, 10, repeated=True)
    inbox.put("alice", "b", 1, 10, repeated=True)
    assert inbox.drop("alice", "a") == 1
    assert inbox.drop("alice", "a") == inbox.drop("bob", "b") == 0
    assert inbox.bytes_ == 10 + OVERHEAD_BYTES
    assert all_of(inbox) == [1]
    with pytest.raises(LookupError):
        inbox.take()
