"""A leader that hears fewer agents than a standby, for a while, lets it lead."""

from __future__ import annotations

from elasticd.controller.election.reachability import Reachability
from elasticd.protocol.model import ServerId

A, B = ServerId("a"), ServerId("b")


def test_an_agent_counts_for_as_long_as_the_window() -> None:
    hearing = Reachability(5.0, 2.0)
    hearing.heard(0.0, A)
    hearing.heard(3.0, B)
    hearing.heard(4.0, A)
    assert [hearing.count(now) for now in (4.0, 7.9, 8.0, 9.0)] == [2, 2, 1, 0]


def test_others_have_to_hear_more_for_a_while() -> None:
    hearing = Reachability(5.0, 2.0)
    assert not hearing.others_hear_more(0.0, 1)
    assert not hearing.others_hear_more(1.9, 1)
    assert hearing.others_hear_more(2.0, 1)


def test_as_many_are_not_more() -> None:
    hearing = Reachability(5.0, 2.0)
    hearing.heard(0.0, A)
    assert not any(hearing.others_hear_more(now, 1) for now in (0.0, 2.0, 4.0))


def test_hearing_as_many_for_a_moment_begins_the_time_anew() -> None:
    hearing = Reachability(5.0, 2.0)
    hearing.others_hear_more(0.0, 1)
    hearing.others_hear_more(1.0, 0)
    assert not hearing.others_hear_more(2.5, 1)
    assert hearing.others_hear_more(4.5, 1)


def test_a_new_reign_begins_the_time_anew() -> None:
    hearing = Reachability(5.0, 2.0)
    hearing.others_hear_more(0.0, 1)
    hearing.begin()
    assert not hearing.others_hear_more(2.0, 1)
