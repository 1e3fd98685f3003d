"""Three controllers at a model of a store, whatever is late, lost, paused or cut off: never two lead, and soon one does."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticd.protocol.times import TAKEOVER_LEASES

from .electorate import QUICK, TIMES, Electorate

FAULTS = st.lists(
    st.tuples(
        st.floats(0.0, 60.0),
        st.sampled_from(["pause", "cut", "stop", "pause leader", "cut leader"]),
        st.integers(0, 2),
        st.floats(0.05, 12.0),
    ),
    max_size=12,
)


def _inflict(electorate: Electorate, what: str, who: int, seconds: float) -> None:
    leaders = [candidate for candidate in electorate.candidates if electorate.says_it_leads(candidate)]
    candidate = leaders[0] if what.endswith("leader") and leaders else electorate.candidates[who]
    if what.startswith("pause"):
        electorate.pause(candidate, seconds)
    elif what.startswith("cut"):
        electorate.cut(candidate, seconds)
    else:
        electorate.stop_store(seconds)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), faults=FAULTS)
@example(seed=1, faults=[(10.0, "pause leader", 0, 12.0), (10.5, "cut leader", 1, 9.0)])
def test_two_never_lead_and_terms_only_grow_and_afterwards_one_leads(
    seed: int, faults: list[tuple[float, str, int, float]]
) -> None:
    electorate = Electorate(random.Random(seed))
    for at_s, what, who, seconds in faults:
        electorate.at(at_s, lambda what=what, who=who, seconds=seconds: _inflict(electorate, what, who, seconds))
    electorate.run(75.0)  # all faults are over
    electorate.run(95.0)
    assert electorate.last_led_s > 80.0, f"nobody leads: {electorate.terms}"
    assert electorate.sent > 0


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_a_standby_leads_within_two_leases_of_the_leaders_end(seed: int) -> None:
    electorate = Electorate(random.Random(seed), QUICK, lost=0.01)
    electorate.run(10.0)
    leaders = [candidate for candidate in electorate.candidates if electorate.says_it_leads(candidate)]
    assert len(leaders) == 1
    electorate.pause(leaders[0], 1000.0)
    electorate.run(electorate.now + TAKEOVER_LEASES * TIMES.lease_s)
    assert len(electorate.terms) > 1


def test_without_faults_one_controller_leads_all_the_time() -> None:
    electorate = Electorate(random.Random(0), QUICK, lost=0.0)
    electorate.run(120.0)
    assert len(electorate.terms) == 1
