"""A leader's protocol up to a commit, message by message: valid messages, their attempts, and the holders of the state."""

from __future__ import annotations

import pytest

from elasticd.protocol import times
from elasticd.protocol.messages import Prepare, Prepared, Ready
from elasticd.protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId
from elasticd.worker.membership.campaign import Campaign, Stand

JOB = JobId("job-1")
A, B, C = (WorkerId(f"{JOB}.{number}") for number in range(3))
TIMEOUT_S = 25.0
STILL, TRAINS, MOVES = Stand(0, False), Stand(3, False), Stand(None, False)


def roster(*workers: WorkerId) -> Roster:
    members = tuple(
        Member(worker=each, gpu=GpuAddress(server=ServerId("s"), index=i)) for i, each in enumerate(workers)
    )
    return Roster(generation=5, members=members, leader=A)


def campaign(*workers: WorkerId) -> Campaign:
    return Campaign(JOB, A, roster(*(workers or (A, B, C))), TIMEOUT_S)


def ready(worker: WorkerId, base: int = 0, applied: int | None = 7, settled: int = 0, generation: int = 5) -> Ready:
    return Ready(job=JOB, generation=generation, worker=worker, base=base, applied=applied, settled=settled)


def prepared(
    worker: WorkerId,
    attempt: int,
    base: int = 0,
    applied: int | None = 7,
    settled: int = 0,
    generation: int = 5,
    error: str = "",
) -> Prepared:
    return Prepared(
        job=JOB, generation=generation, attempt=attempt, worker=worker, base=base, applied=applied, settled=settled, error=error
    )  # fmt: skip


def begun(*said: Ready, stand: Stand = STILL) -> tuple[Campaign, Prepare]:
    """A campaign whose members have all sent this, and its next message."""
    led = campaign(*(each.worker for each in said))
    for each in said[:-1]:
        assert led.on_ready(0.0, each, stand) == []
    told = led.on_ready(0.0, said[-1], stand)
    assert [worker for worker, _ in told] == [*(each.worker for each in said if each.worker != A), A]
    return led, told[0][1]


def test_what_a_member_says_of_an_earlier_attempt_does_not_count_for_the_present_one() -> None:
    led, _ = begun(ready(A), ready(B))
    assert led.on_prepared(1.0, prepared(B, 1, error="reset by peer"), STILL) == []
    assert [word.attempt for _, word in led.try_again(2.0, STILL)] == [2, 2]
    assert led.on_prepared(2.1, prepared(A, 2), STILL) is None
    assert led.on_prepared(2.2, prepared(B, 1), STILL) == [], "it was late"
    assert not led.all_prepared
    assert led.unheard == (B,)
    assert led.on_prepared(2.3, prepared(B, 2, generation=4), STILL) == []
    assert not led.all_prepared
    assert led.on_prepared(2.4, prepared(B, 2), STILL) is None
    assert led.all_prepared
    assert led.unheard == ()


def test_who_has_prepared_one_attempt_has_not_prepared_the_next() -> None:
    led, _ = begun(ready(A), ready(B))
    for worker in (A, B):
        led.on_prepared(1.0, prepared(worker, 1), STILL)
    assert led.all_prepared
    led.try_again(2.0, STILL)
    assert not led.all_prepared


def test_an_error_of_an_earlier_attempt_does_not_hurry_the_present_one() -> None:
    led, _ = begun(ready(A), ready(B))
    led.try_again(1.0, STILL)
    led.on_prepared(2.0, prepared(B, 1, error="reset by peer"), STILL)
    assert led.deadline == 1.0 + TIMEOUT_S
    led.on_prepared(2.0, prepared(B, 2, error="reset by peer"), STILL)
    assert led.deadline == 2.0 + times.WORKER_RETRY_S
    led.on_prepared(3.0, prepared(A, 2, error="reset by peer"), STILL)
    assert led.deadline == 2.0 + times.WORKER_RETRY_S


def test_of_those_who_have_applied_the_same_step_the_ones_with_most_decisions_hold_the_state() -> None:
    _, prepare = begun(ready(A, settled=0), ready(B, settled=1), ready(C, settled=1))
    assert prepare.holders == (B, C)
    _, prepare = begun(ready(A, applied=8, settled=0), ready(B, settled=2))
    assert prepare.holders == (A,), "a step is further than any decision before it"
    _, prepare = begun(ready(A), ready(B), ready(C, applied=None))
    assert prepare.holders == (A, B)


def test_where_nobody_has_a_state_the_leader_begins() -> None:
    _, prepare = begun(ready(A, applied=None), ready(B, applied=None))
    assert (prepare.holders, prepare.base) == ((A,), 0)


def test_who_trains_in_the_leaders_generation_hands_the_state_over_and_nobody_else() -> None:
    """A worker of an earlier generation has an older state, whatever step it reports."""
    _, prepare = begun(ready(A, base=3), ready(B, base=3, applied=6), ready(C, base=0, applied=9), stand=TRAINS)
    assert (prepare.holders, prepare.base) == ((A, B), 3)


@pytest.mark.parametrize("base", [1, 4])
def test_no_attempt_begins_while_a_member_trains_in_another_generation_than_the_leader(base: int) -> None:
    led = campaign(A, B)
    led.on_ready(0.0, ready(A, base=3), TRAINS)
    assert led.on_ready(0.0, ready(B, base=base), TRAINS) == []
    assert led.attempt == 0
    assert led.on_ready(0.0, ready(B, base=3), TRAINS) != []


def test_who_hears_a_decision_after_it_was_ready_says_so_in_prepared_and_holds_the_state_of_the_next_attempt() -> None:
    led, prepare = begun(ready(A), ready(B))
    assert prepare.holders == (A, B)
    told = led.on_prepared(1.0, prepared(B, 1, settled=1), STILL)
    assert told is not None
    assert [(worker, word.attempt, word.holders) for worker, word in told] == [(B, 2, (B,)), (A, 2, (B,))]


def test_how_far_one_is_that_trains_goes_on_changing_and_changes_nothing() -> None:
    led, _ = begun(ready(A, base=3), ready(B, base=3), stand=TRAINS)
    assert led.on_prepared(1.0, prepared(B, 1, base=3, applied=9), TRAINS) is None
    assert led.on_prepared(1.0, prepared(A, 1, base=3, applied=9), TRAINS) is None
    assert led.all_prepared


def test_one_that_has_not_prepared_and_is_ready_again_is_told_once_more() -> None:
    led, prepare = begun(ready(A), ready(B))
    assert led.on_ready(1.0, ready(B), STILL) == [(B, prepare)]
    assert led.on_ready(1.0, ready(A), STILL) == [], "the leader has told itself"
    led.on_prepared(1.0, prepared(B, 1), STILL)
    assert led.on_ready(1.0, ready(B), STILL) == []
    assert [word.attempt for _, word in led.on_ready(1.0, ready(B, applied=8), STILL)] == [2, 2]


def test_an_attempt_stands_while_its_number_is_in_flight_or_the_leader_cannot_say_where_it_is() -> None:
    led, _ = begun(ready(A, base=3), ready(B, base=3), stand=TRAINS)
    assert led.try_again(1.0, Stand(3, in_flight=True)) == []
    assert led.try_again(1.0, MOVES) == []
    assert led.attempt == 1
    assert led.deadline == 1.0 + TIMEOUT_S, "it is tried again after a while"


@pytest.mark.parametrize("stranger", [ready(C), ready(B, generation=4), ready(B, generation=6)])
def test_words_of_strangers_and_of_other_generations_do_not_count(stranger: Ready) -> None:
    led = campaign(A, B)
    led.knows_already(stranger)
    assert led.on_ready(0.0, stranger, STILL) == []
    assert led.on_ready(0.0, ready(A), STILL) == []
    assert led.unheard == (B,)
    assert led.deadline is None


def test_one_that_was_ready_before_its_leader_knew_need_not_say_it_again() -> None:
    led = campaign(A, B)
    led.knows_already(ready(B))
    assert led.unheard == ()
    assert [worker for worker, _ in led.on_ready(0.0, ready(A), STILL)] == [B, A]


def test_from_another_base_all_say_ready_again_and_attempts_are_counted_on() -> None:
    led, _ = begun(ready(A), ready(B))
    anew = led.anew()
    assert (anew.attempt, anew.base, anew.generation) == (1, 0, 5)
    assert anew.on_ready(0.0, ready(A, base=3), TRAINS) == []
    assert [word.attempt for _, word in anew.on_ready(0.0, ready(B, base=3), TRAINS)] == [2, 2]
