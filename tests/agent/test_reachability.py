"""The agent's log about a controller that does not answer: an early line, then few, then one when it answers again."""

from __future__ import annotations

import itertools

from elasticd.agent.reachability import AT_LEAST_EVERY_S, FIRST_AFTER_S, ControllerReachability


def told(reach: ControllerReachability, begin: float, end: float, step_s: float = 1.0) -> list[float]:
    """Times of log lines of a loop that checks every `step_s`."""
    found, now = [], begin
    while now < end:
        now += step_s
        if text := reach.look(now):
            assert "nobody answers at tcp://gpu1:7701" in text
            found.append(now)
    return found


def test_a_silent_controller_is_told_once_and_then_less_and_less_often():
    reach = ControllerReachability("tcp://gpu1:7701", 1.0, 1000.0)
    assert told(reach, 1000.0, 1000.0 + FIRST_AFTER_S - 1) == []
    times = told(reach, 1000.0 + FIRST_AFTER_S - 1, 1000.0 + 86_400)
    assert times[0] == 1000.0 + FIRST_AFTER_S
    assert times[1] - times[0] == 60.0
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) == AT_LEAST_EVERY_S
    assert len(times) < 35, "a line an hour"


def test_one_that_answers_again_is_told_with_how_long_it_was_away():
    reach = ControllerReachability("tcp://gpu1:7701", 1.0, 1000.0)
    told(reach, 1000.0, 1100.0)
    assert reach.heard(1100.0) == "the controller at tcp://gpu1:7701 answers again, after 100 s"
    assert reach.heard(1101.0) is None
    assert told(reach, 1101.0, 1101.0 + FIRST_AFTER_S - 1) == []


def test_time_in_which_the_agent_itself_was_stopped_does_not_count():
    reach = ControllerReachability("tcp://gpu1:7701", 1.0, 1000.0)
    reach.heard(1001.0)
    assert reach.look(5000.0) is None
    assert told(reach, 5000.0, 5000.0 + FIRST_AFTER_S - 2) == []


def test_an_agent_that_says_little_is_not_taken_for_one_that_hears_nothing():
    reach = ControllerReachability("tcp://gpu1:7701", 60.0, 1000.0)
    assert reach.look(1000.0 + 61.0) is None
    assert reach.heard(1000.0 + 61.0) is None
