"""Clock offsets of the servers, as the controller estimates them."""

from __future__ import annotations

from elasticd.controller.sessions import ServerClock


def test_the_time_that_messages_take_is_not_taken_for_a_clock_that_is_behind() -> None:
    clock = ServerClock()
    for second, delay_s in enumerate((0.4, 3.0, 0.01, 2.0)):
        now = 1000.0 + second
        clock.heard(now, now - delay_s + 5.0)
    assert clock.ahead_s is not None
    assert abs(clock.ahead_s - 4.99) < 1e-6


def test_a_clock_that_was_set_right_is_known_within_two_minutes() -> None:
    clock = ServerClock()
    for second in range(300):
        clock.heard(1000.0 + second, 1000.0 + second + (60.0 if second < 100 else 0.0))
    assert clock.ahead_s == 0.0


def test_what_is_no_time_does_not_count() -> None:
    clock = ServerClock()
    for told in (0.0, -5.0, float("nan"), float("inf"), 1e300):
        clock.heard(1000.0, told)
    assert clock.ahead_s is None
