"""The election of a leader, event by event."""

from __future__ import annotations

import pytest

from elasticd.controller.election.events import (
    Campaign,
    CampaignLost,
    CampaignWon,
    Closed,
    ElectionTick,
    Event,
    Grant,
    Holder,
    LaterTermReported,
    Lead,
    LeaderObserved,
    LeaseGone,
    LeaseGranted,
    Reign,
    Renew,
    Renewed,
    RequestFailed,
    Resigned,
    Revoke,
    StandBy,
    StateLoaded,
)
from elasticd.controller.election.machine import Election, State
from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.times import leadership

TIMES = leadership(5)  # renews each second, has a margin of one second
NOBODY, OTHER = LeaderObserved(None, 7), LeaderObserved(Holder("other", 6), 7)


def follower(seen: LeaderObserved = OTHER) -> Election:
    """With the lease 1, which was asked for at 0 s and granted at 0.1 s."""
    election = Election(TIMES, 0.0)
    assert election.handle(0.0, ElectionTick(0.0)) == [Grant()]
    assert election.handle(0.05, seen) == []
    election.handle(0.1, LeaseGranted(1, 5.0, 0.0))
    return election


def leader() -> Election:
    election = follower(NOBODY)
    assert election.handle(0.2, CampaignWon(1, Reign(3, 8))) == [Lead(Reign(3, 8))]
    election.handle(0.3, StateLoaded(3))
    assert election.state is State.LEADING
    return election


def test_nobody_campaigns_while_another_one_leads() -> None:
    election = follower(OTHER)
    assert election.handle(1.0, ElectionTick(1.0)) == [Renew(1)]
    assert election.state is State.FOLLOWING
    assert election.leads_until_s is None


def test_nobody_campaigns_before_having_seen_who_leads() -> None:
    election = Election(TIMES, 0.0)
    election.handle(0.0, ElectionTick(0.0))
    assert election.handle(0.1, LeaseGranted(1, 5.0, 0.0)) == []
    assert election.handle(0.2, NOBODY) == [Campaign(1, 0)]


def test_a_standby_campaigns_as_soon_as_it_sees_that_the_key_is_gone() -> None:
    election = follower(OTHER)
    assert election.handle(0.4, LeaderObserved(None, 9)) == [Campaign(1, 0)]
    assert election.state is State.CAMPAIGNING


def test_an_older_sight_of_the_store_does_not_take_the_place_of_a_newer_one() -> None:
    election = follower(LeaderObserved(Holder("other", 8), 8))
    assert election.handle(0.4, LeaderObserved(None, 7)) == []


def test_a_lease_counts_from_when_it_was_asked_for_and_ends_a_margin_early() -> None:
    election = follower(NOBODY)
    election.handle(0.9, CampaignWon(1, Reign(3, 8)))
    assert election.leads_until_s == pytest.approx(0.0 + 5.0 - 1.0)
    election.handle(1.0, ElectionTick(1.0))
    election.handle(1.6, Renewed(1, 5.0, 1.0))
    assert election.leads_until_s == pytest.approx(1.0 + 5.0 - 1.0)


def test_a_leader_whose_lease_is_not_renewed_in_time_stands_by_and_gives_it_back() -> None:
    election = leader()
    assert election.handle(1.0, ElectionTick(1.0)) == [Renew(1)]
    assert election.handle(2.0, RequestFailed(Renew(1), "no answer")) == []
    assert election.handle(2.25, ElectionTick(2.25)) == [Renew(1)]
    assert election.handle(3.25, RequestFailed(Renew(1), "no answer")) == []
    actions = election.handle(4.0, ElectionTick(4.0))
    assert [type(action) for action in actions] == [StandBy, Revoke, Grant]
    assert election.state is State.FOLLOWING
    assert election.leads_until_s is None


def test_a_renewal_that_is_answered_too_late_does_not_bring_the_leadership_back() -> None:
    election = leader()
    election.handle(1.0, ElectionTick(1.0))
    assert StandBy in map(type, election.handle(30.0, Renewed(1, 5.0, 1.0)))
    assert election.leads_until_s is None


def test_an_election_that_is_won_too_late_is_given_back() -> None:
    election = follower(NOBODY)
    actions = election.handle(30.0, CampaignWon(1, Reign(3, 8)))
    assert actions[:2] == [Revoke(1), Revoke(1)]
    assert election.reign is None


def test_a_campaign_without_an_answer_may_have_been_won_so_its_lease_is_given_back() -> None:
    election = follower(NOBODY)
    actions = election.handle(1.2, RequestFailed(Campaign(1, 0), "no answer"))
    assert actions[0] == Revoke(1)
    assert election.state is State.FOLLOWING


def test_who_was_beaten_follows() -> None:
    election = follower(NOBODY)
    assert election.handle(0.3, CampaignLost(1)) == []
    assert election.state is State.FOLLOWING
    assert election.handle(0.4, OTHER) == []


def test_a_lease_that_the_store_has_ended_is_replaced() -> None:
    election = leader()
    election.handle(1.0, ElectionTick(1.0))
    assert election.handle(1.1, LeaseGone(1)) == [StandBy(3, "the store has ended its lease"), Grant()]


def test_a_leader_that_sees_another_ones_key_stands_by() -> None:
    election = leader()
    actions = election.handle(0.5, LeaderObserved(Holder("other", 12), 12))
    assert actions[:2] == [StandBy(3, "other leads"), Revoke(1)]


def test_a_leader_does_not_mind_what_was_seen_before_it_has_won() -> None:
    election = leader()
    assert election.handle(0.5, LeaderObserved(None, 7)) == []
    assert election.handle(0.5, LeaderObserved(Holder("me", 8), 9)) == []
    assert election.state is State.LEADING


def test_a_leader_that_hears_of_a_higher_term_stands_by_and_its_next_term_is_higher_still() -> None:
    election = leader()
    assert election.handle(0.5, LaterTermReported(9))[:2] == [StandBy(3, "there is a leader with term 9"), Revoke(1)]
    election.handle(0.6, LeaseGranted(2, 5.0, 0.5))
    assert election.handle(0.7, LeaderObserved(None, 20)) == [Campaign(2, 9)]


def test_a_leader_does_not_mind_a_lower_term() -> None:
    election = leader()
    assert election.handle(0.5, LaterTermReported(3)) == []


def test_who_resigns_lets_others_go_first() -> None:
    election = leader()
    assert election.handle(0.5, Resigned(3, "it hears no agent", 10.0))[:2] == [
        StandBy(3, "it hears no agent"),
        Revoke(1),
    ]
    election.handle(0.6, LeaseGranted(2, 5.0, 0.5))
    assert election.handle(0.7, LeaderObserved(None, 20)) == []
    asked = []
    for tenth in range(7, 120):
        now = tenth / 10
        actions = election.handle(now, ElectionTick(now))
        if Renew(2) in actions:
            actions += election.handle(now, Renewed(2, 5.0, now))
        asked += [(now, action) for action in actions]
    campaigns = [now for now, action in asked if isinstance(action, Campaign)]
    assert campaigns
    assert campaigns[0] >= 10.5


def test_the_end_of_an_earlier_reign_does_not_concern_the_present_one() -> None:
    election = leader()
    assert election.handle(0.5, Resigned(2, "its writes are refused")) == []
    assert election.state is State.LEADING


def test_a_leader_whose_loop_hangs_lets_others_lead_until_it_turns_again() -> None:
    election = leader()
    now = 0.5
    actions: list[object] = []
    while not any(isinstance(action, StandBy) for action in actions):
        now += 0.5
        actions = list(election.handle(now, ElectionTick(0.5)))
        for action in actions:
            if isinstance(action, Renew):
                election.handle(now, Renewed(1, 5.0, now))
        assert now < 40
    assert now == pytest.approx(0.5 + TIMES.stall_s)
    election.handle(now, LeaseGranted(2, 5.0, now))
    assert election.handle(now + 0.1, LeaderObserved(None, 20)) == []
    assert election.handle(now + 0.2, ElectionTick(now + 0.2)) == [Campaign(2, 0)]


def test_who_does_not_catch_up_lets_others_lead() -> None:
    election = follower(NOBODY)
    election.handle(0.2, CampaignWon(1, Reign(3, 8)))
    now = 0.2
    actions: list[object] = []
    while not any(isinstance(action, StandBy) for action in actions):
        now += 0.5
        actions = list(election.handle(now, ElectionTick(now)))
        for action in actions:
            if isinstance(action, Renew):
                election.handle(now, Renewed(1, 5.0, now))
        assert now < 100
    assert now >= TIMES.catch_up_s


def test_who_ends_gives_its_lease_back_and_does_nothing_more() -> None:
    election = leader()
    assert election.handle(0.5, Closed()) == [StandBy(3, "this controller ends"), Revoke(1)]
    assert election.handle(0.6, LeaseGranted(2, 5.0, 0.5)) == []
    assert election.next_deadline() is None


def test_a_leader_cannot_begin_twice() -> None:
    election = leader()
    with pytest.raises(InvalidTransition, match="while a controller is leading"):
        election.handle(0.5, StateLoaded(3))


def test_the_store_is_asked_one_thing_at_a_time_and_not_without_end_while_it_is_away() -> None:
    election = Election(TIMES, 0.0)
    asked = 0
    for tenth in range(600):
        now = tenth / 10
        for action in election.handle(now, ElectionTick(now)):
            asked += 1
            election.handle(now + 0.01, RequestFailed(action, "connection refused"))  # type: ignore[arg-type]
    assert 60 <= asked <= 60 / TIMES.retry_s + 1


def test_answers_about_an_earlier_lease_do_not_concern_the_present_one() -> None:
    election = leader()
    election.handle(0.5, Resigned(3, "it hears no agent", 0.0))
    election.handle(0.6, LeaseGranted(2, 5.0, 0.5))
    for late in (CampaignLost(1), RequestFailed(Campaign(1, 0), "no answer"), LeaseGone(1), Renewed(1, 500.0, 0.4)):
        assert not [action for action in election.handle(0.7, late) if isinstance(action, Revoke | StandBy | Lead)]
    assert election.handle(0.8, CampaignWon(1, Reign(4, 9))) == [Revoke(1)], (
        "it was won after all, by a lease that is given back"
    )
    assert election.handle(0.9, LeaderObserved(None, 20)) == [Campaign(2, 0)]
    assert election.handle(0.9, CampaignWon(1, Reign(4, 19))) == [Revoke(1)]
    assert election.state is not State.CATCHING_UP
    assert election.reign is None


@pytest.mark.parametrize(
    "late",
    [RequestFailed(Campaign(1, 0), "no answer"), CampaignLost(1), Renewed(1, 5.0, 0.0), LeaseGone(1)],
    ids=lambda late: type(late).__name__,
)
def test_an_answer_that_comes_when_the_lease_is_over_finds_nothing_to_give_back_twice(late: Event) -> None:
    election = follower(NOBODY)
    assert election.handle(10.0, late).count(Revoke(1)) == 1
    assert election.state is State.FOLLOWING
    assert election.reign is None


def test_an_election_that_was_won_by_one_that_follows_again_is_given_back() -> None:
    election = follower(NOBODY)
    election.handle(0.3, CampaignLost(1))
    assert election.handle(0.4, CampaignWon(1, Reign(3, 8))) == [Revoke(1)]
    assert election.state is State.FOLLOWING


def test_who_leads_is_who_was_last_seen() -> None:
    election = Election(TIMES, 0.0)
    assert election.holder is None
    election.handle(0.1, OTHER)
    assert election.holder == Holder("other", 6)
    election.handle(0.2, LeaderObserved(None, 9))
    assert election.holder is None
