"""How the controller measures the throughput of jobs at decreasing shares, and keeps the measurements."""

from __future__ import annotations

import pytest

from elasticd.controller.jobs.throughput import KEPT_KINDS, KEPT_S, PREFIX, History, estimated, fingerprint
from elasticd.protocol.messages import Cancel, EventKind, GetJob, Profile, Profiling, Scale
from elasticd.protocol.model import Steady, WorkerPhase
from elasticd.scheduler.measuring import Measuring
from elasticd.scheduler.speedup_curve import Measured, fewest_servers

from .world import World, job_spec

LINEAR = {share: 10.0 * share for share in range(1, 9)}
FLAT_FROM_2 = {1: 10.0, **dict.fromkeys(range(2, 9), 19.0)}


def measuring_world(servers=None, **settings):
    return World(servers or {"s1": 4}, measuring=Measuring(), **settings)


def train(world, job, rates, step: int) -> int:
    """The newest order is committed, and trains for long enough to be measured. Returns the last step."""
    world.settle(job.id, step)
    step += 64
    share = len(job.newest.roster.members)
    steady = Steady(generation=job.record.committed, step_s=1 / rates[share], steps=32)
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.TRAINING, job.record.committed, step, steady=steady)
    return step


def trained(world, job, rates, turns: int = 8, step: int = 10) -> list[int]:
    """Its share at each turn."""
    shares = []
    for _ in range(turns):
        step = train(world, job, rates, step)
        shares.append(job.share_gpus)
    return shares


def shares_known(job) -> list[tuple[int, int]]:
    return [(entry.share, entry.servers) for entry in job.record.measured]


def test_a_new_job_is_measured_on_the_way_down_and_gets_its_gpus_back_if_it_uses_them():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    assert trained(world, job, LINEAR, 5) == [4, 2, 1, 4, 4]
    assert shares_known(job) == [(1, 1), (2, 1), (4, 1)]
    assert [text for text in world.kinds(job.id) if text == EventKind.MEASURING] == [EventKind.MEASURING] * 2


def test_a_job_that_stops_growing_keeps_what_it_uses_and_the_rest_goes_to_others():
    world = measuring_world({"s1": 6})
    job = world.submit(job_spec(high=4))
    assert trained(world, job, FLAT_FROM_2, 6)[-1] == 2
    other = world.submit(job_spec("other", high=4, model="other"))
    assert trained(world, other, LINEAR, 6)[-1] == 4
    assert job.share_gpus == 2
    assert world.job(job.id).record.target != other.record.target


def test_figures_that_cost_a_job_gpus_do_not_end_its_way_down_before_it_is_known():
    world = measuring_world({"s1": 8})
    job = world.submit(job_spec(high=8))
    assert trained(world, job, FLAT_FROM_2, 8) == [8, 4, 2, 1, 2, 2, 2, 2]
    assert [share for share, _ in shares_known(job)] == [1, 2, 4, 8]


def test_gpus_that_are_idle_for_a_measurement_are_given_to_nobody_else():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    train(world, job, LINEAR, 10)
    assert (job.profiling.share, len(job.record.target), len(job.own_gpus)) == (2, 2, 4)
    waiting = world.submit(job_spec("waiting", low=4, high=4))
    assert waiting.record.phase.value == "pending"
    assert "measures its throughput with 2 of its 4 GPUs" in world.ask(GetJob(job=job.id)).job.reason
    assert job.profiling is not None


def test_a_decision_that_gives_the_job_less_ends_its_way_down():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    train(world, job, LINEAR, 10)
    other = world.submit(job_spec("other", high=4))
    assert job.profiling is None
    assert (len(job.record.target), len(other.record.target)) == (2, 2)


def test_a_new_job_gets_no_more_than_its_fair_share_until_it_has_been_measured():
    world = measuring_world({"s1": 8})
    first = world.submit(job_spec(high=2))
    trained(world, first, LINEAR, 4)
    second = world.submit(job_spec("second", high=8, model="another"))
    assert (len(first.record.target), len(second.record.target)) == (2, 4)
    train(world, second, LINEAR, 10)
    assert len(second.record.target) == 6


def test_a_share_that_is_not_measured_in_time_is_given_up():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    train(world, job, LINEAR, 10)
    world.settle(job.id, 55)
    assert job.share_gpus == 2
    world.pass_time(61)
    world.settle(job.id, 56)
    assert job.share_gpus == 1
    world.pass_time(61)
    world.settle(job.id, 57)
    assert job.share_gpus == 4
    assert shares_known(job) == [(4, 1)]
    world.pass_time(200)
    assert job.share_gpus == 4


def test_a_share_set_by_hand_is_not_left_for_a_measurement():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    train(world, job, LINEAR, 10)
    assert world.ask(Scale(job=job.id, share=4)).share == 4
    assert trained(world, job, LINEAR, 4, step=100) == [4, 4, 4, 4]


def test_a_job_that_is_nearly_over_is_left_alone():
    world = measuring_world()
    job = world.submit(job_spec(high=4, max_steps=500))
    assert trained(world, job, LINEAR, 4) == [4, 4, 4, 4]


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_nothing_is_measured_for_a_policy_that_does_not_ask(policy):
    world = measuring_world(policy=policy)
    job = world.submit(job_spec(high=4))
    assert trained(world, job, LINEAR, 4) == [4, 4, 4, 4]


def test_a_lost_server_ends_the_way_down():
    world = measuring_world({"s1": 2, "s2": 2})
    job = world.submit(job_spec(high=4))
    train(world, job, LINEAR, 10)
    assert job.profiling is not None
    world.agents["s2"].connected = False
    world.pass_time(11)
    assert job.profiling is None
    world.settle(job.id, 60)
    assert job.share_gpus == 2


def test_figures_within_a_server_and_across_servers_are_kept_apart():
    world = measuring_world({"s1": 2, "s2": 2})
    job = world.submit(job_spec(high=4))
    trained(world, job, LINEAR, 5)
    assert shares_known(job) == [(1, 1), (2, 1), (4, 2)]
    curve = world.ask(GetJob(job=job.id)).job.curve
    assert [(point.share_gpus, point.servers, point.source) for point in curve] == [
        (1, 1, "measured"),
        (2, 1, "measured"),
        (4, 2, "measured"),
    ]
    assert curve[2].steps_per_s == pytest.approx(40.0)
    assert curve[2].age_s >= 0


def test_a_known_kind_of_job_is_not_measured_again_even_by_another_controller():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    trained(world, job, LINEAR, 6)
    world.ask(Cancel(job=job.id))
    world.reap()
    world.restart()
    again = world.submit(job_spec(high=4))
    assert trained(world, again, LINEAR, 4) == [4, 4, 4, 4]
    sources = {point.share_gpus: point.source for point in world.ask(GetJob(job=again.id)).job.curve}
    assert sources == {1: "history", 2: "history", 4: "measured"}


def test_figures_of_the_job_file_and_of_its_models_table_are_taken_from_the_start():
    world = measuring_world(profiles={"bert": {1: 5.0, 2: 9.0, 4: 9.1}})
    stated = world.submit(job_spec("stated", high=4, throughput={1: 1.0, 2: 2.0, 4: 2.0}))
    assert len(stated.record.target) == 2
    profiled = world.submit(job_spec("profiled", high=4, model="BERT"))
    assert len(profiled.record.target) == 2
    points = world.ask(GetJob(job=profiled.id)).job.curve
    assert [(p.share_gpus, p.servers, p.source) for p in points] == [(n, None, "profile") for n in (1, 2, 4)]


def test_a_restarted_controller_gives_a_job_on_its_way_down_its_gpus_back():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    train(world, job, LINEAR, 10)
    world.settle(job.id, 60)
    world.restart()
    world.settle(job.id, 70)
    assert world.job(job.id).share_gpus == 4
    assert shares_known(world.job(job.id)) == [(4, 1)]


def test_a_job_is_measured_anew_when_somebody_asks():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    trained(world, job, LINEAR, 5)
    assert world.ask(Profile(job=job.id)) == Profiling(job=job.id, shares=(2, 1))
    assert world.ask(Profile(job=job.id)) == Profiling(job=job.id, shares=(2, 1))
    assert world.ask(GetJob(job=job.id)).job.measuring_gpus == 2
    slower = {share: rate / 2 for share, rate in LINEAR.items()}
    assert trained(world, job, slower, 4, step=300) == [2, 1, 4, 4]
    assert [entry.times for entry in job.record.measured] == [2, 2, 5]
    assert world.ask(GetJob(job=job.id)).job.measuring_gpus is None


def test_a_job_is_measured_with_a_range_of_sizes():
    world = measuring_world()
    job = world.submit(job_spec(low=1, high=4))
    trained(world, job, LINEAR, 5)
    for least, most in ((0, 2), (3, 2), (1, 5)):
        refused = world.ask(Profile(job=job.id, least=least, most=most))
        assert f"cannot be measured with {least} to {most} GPUs: it has 4 and needs 1 at least" in refused.reason
    assert "another share from 4 to 4 than its present 4 GPUs" in world.ask(Profile(job=job.id, least=4, most=4)).reason
    assert world.ask(Profile(job=job.id, least=2, most=4)) == Profiling(job=job.id, shares=(3, 2))
    assert trained(world, job, LINEAR, 4, step=300) == [3, 2, 4, 4]


def test_a_job_that_cannot_be_measured_now_is_refused_with_the_reason():
    world = measuring_world()
    job = world.submit(job_spec(high=4))
    assert "has not called elastic.join() yet" in world.ask(Profile(job=job.id)).reason
    world.arrive(job.id)
    assert "does not train" in world.ask(Profile(job=job.id)).reason
    train(world, job, LINEAR, 10)
    world.ask(Scale(job=job.id, share=2))
    assert "auto" in world.ask(Profile(job=job.id)).reason
    world.settle(job.id, 60)
    small = world.submit(job_spec("small", high=1))
    world.settle(small.id)
    assert "no half" in world.ask(Profile(job=small.id)).reason
    world.ask(Cancel(job=job.id))
    assert "over" in world.ask(Profile(job=job.id)).reason


def test_steps_that_have_been_counted_are_not_counted_again():
    world = measuring_world()
    job = world.submit(job_spec(high=1))
    step = train(world, job, LINEAR, 10)
    steady = Steady(generation=job.record.committed, step_s=0.1, steps=32)
    (worker,) = world.roster(job.id)
    second = (
        job.reported.rate_counts_from - step
    )  # differs between jobs: otherwise jobs that start together would be measured together
    assert 32 <= second < 64
    for after, times in [(1, 1), (31, 1), (second - 1, 1), (second, 2), (second + 31, 2), (second + 32, 3)]:
        world.report(worker, WorkerPhase.TRAINING, job.record.committed, step + after, steady=steady)
        assert job.record.measured[0].times == times
    stale = Steady(generation=job.record.committed - 1, step_s=0.1, steps=32)
    world.report(worker, WorkerPhase.TRAINING, job.record.committed, step + 200, steady=stale)
    assert job.record.measured[0].times == 3


def test_a_rate_that_an_earlier_controller_has_counted_is_not_counted_again():
    world = measuring_world()
    job = world.submit(job_spec(high=1))
    step = train(world, job, LINEAR, 10)
    assert [entry.times for entry in job.record.measured] == [1]
    world.restart()
    job = world.job(job.id)
    steady = Steady(generation=job.record.committed, step_s=0.1, steps=32)
    (worker,) = world.roster(job.id)
    world.report(worker, WorkerPhase.TRAINING, job.record.committed, step, steady=steady)
    assert job.record.measured[0].times == 1
    second = job.reported.rate_counts_from - step
    for after, times in [(1, 1), (31, 1), (second - 1, 1), (second, 2)]:
        world.report(worker, WorkerPhase.TRAINING, job.record.committed, step + after, steady=steady)
        assert job.record.measured[0].times == times


# ---------------------------------------------------------------------------------------------------------------- history


def entry(share: int, at_s: float) -> Measured:
    return Measured(share=share, servers=1, recent=(1.0,), times=1, at_s=at_s)


def test_jobs_are_of_one_kind_if_their_steps_take_the_same_time():
    one = job_spec("a", high=4)
    assert fingerprint(one) == fingerprint(job_spec("b", low=2, high=8, priority=5, env={"X": "1"}))
    for changes in ({"command": ("python", "x.py")}, {"model": "bert"}, {"virtual_workers": 9}, {"workdir": "/x"}):
        assert fingerprint(one) != fingerprint(job_spec("a", high=4, **changes))


def test_history_is_bounded_in_size_and_age():
    history = History()
    for number in range(KEPT_KINDS + 5):
        puts, deletes = history.note(f"kind{number}", [entry(1, number)], float(number))
        assert list(puts) == [f"{PREFIX}kind{number}"]
        assert deletes == ([f"{PREFIX}kind{number - KEPT_KINDS}"] if number >= KEPT_KINDS else [])
    assert history.find("kind0", 0.0) is None
    assert history.find("kind9", KEPT_S + 8).measured == (entry(1, 9.0),)
    assert history.find("kind9", KEPT_S + 10) is None
    _, deletes = history.note("new", [entry(1, 2 * KEPT_S)], 2 * KEPT_S)
    assert len(deletes) == KEPT_KINDS


def test_the_newest_figure_of_a_share_counts_and_old_ones_go():
    history = History()
    history.note("kind", [entry(1, 0.0), entry(2, 0.0)], 0.0)
    history.note("kind", [entry(2, KEPT_S / 2)], KEPT_S / 2)
    assert [(one.share, one.at_s) for one in history.find("kind", KEPT_S / 2).measured] == [(1, 0.0), (2, KEPT_S / 2)]
    history.note("kind", [entry(4, KEPT_S + 1)], KEPT_S + 1)
    assert [one.share for one in history.find("kind", KEPT_S + 1).measured] == [2, 4]


def test_figures_of_several_gpu_types_are_kept_apart_and_apply_on_their_own_type():
    history = History()
    both = [
        Measured(share=1, servers=1, gpu=gpu, recent=(rate,), times=1, at_s=at_s)
        for gpu, rate, at_s in (("A100", 4.0, 1.0), ("V100", 2.0, 2.0))
    ]
    history.note("kind", both, 2.0)
    known = history.find("kind", 2.0)
    rates = {
        gpu: estimated(None, job_spec(), (), known, {}, fewest_servers([4], 4), gpu).curve[1]
        for gpu in ("A100", "V100", "")
    }
    assert rates == {"A100": 4.0, "V100": 2.0, "": 2.0}, "without a type, the last measurement counts"
    assert not estimated(None, job_spec(), (), known, {}, fewest_servers([4], 4), "T4").known
