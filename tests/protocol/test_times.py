"""Times that depend on one another."""

from __future__ import annotations

import pytest

from elasticd.protocol import times


def test_the_times_fit_together():
    times.check()


def test_a_time_that_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(times, "STOP_GRACE_S", 31.0)
    with pytest.raises(AssertionError, match="a worker that saves has more time"):
        times.check()
