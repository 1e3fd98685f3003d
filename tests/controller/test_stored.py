"""A job with many workers is stored in parts: only changed parts are written, and nothing is lost."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from elasticd.controller.jobs.records import WorkerRecord
from elasticd.controller.jobs.stored import WORKER, States
from elasticd.controller.jobs.worker_sets import SharedFacts, Statuses, WorkerSets
from elasticd.controller.records import state_key
from elasticd.controller.recovery import differences, durable
from elasticd.controller.seal import is_sealed
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import Pause
from elasticd.protocol.model import JobPhase, ServerId, WorkerPhase

from .test_recovery import HostileWorld, disturb
from .world import World, job_spec


class _EarlierState(msgspec.Struct):
    """The state of a job as read by a version that does not know parts."""

    workers: tuple[WorkerRecord, ...] = ()


def large(gpus: int = 24, **settings: Any) -> tuple[Any, Any]:
    """A cluster with a training job of so many workers."""
    world = World({"s1": 8, "s2": 8, "s3": 8, "s4": 8}, **settings)
    job = world.submit(job_spec(low=1, high=gpus))
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING
    assert len(job.workers) == gpus
    return world, job


def parts(world: Any, job: Any) -> list[str]:
    return [key for key in world.store if key.startswith(state_key(job.id) + "/")]


def test_each_word_of_one_worker_writes_its_record_and_less_than_a_kilobyte() -> None:
    world = World({"s1": 8, "s2": 8, "s3": 8})
    job = world.submit(job_spec(low=1, high=24))
    first, *others = world.running(job.id)
    world.report(first, WorkerPhase.READY)
    for words in ((WorkerPhase.STARTING, 0, None), (WorkerPhase.READY, 0, None), (WorkerPhase.TRAINING, 1, 10)):
        phase, generation, applied = words
        world.report(first, phase, generation, applied)
        for worker in others:
            before = dict(world.store)
            world.report(worker, phase, generation, applied)
            written = {key: value for key, value in world.store.items() if before.get(key) != value}
            if phase is not WorkerPhase.READY:
                assert state_key(job.id) + WORKER + worker in written
            assert sum(len(key) + len(value) for key, value in written.items()) < 1024
            assert sum(WORKER in key for key in written) <= 1
    assert job.record.phase is JobPhase.RUNNING


def test_a_small_job_is_one_record_as_an_earlier_version_reads_it() -> None:
    world, job = large(gpus=8)
    assert parts(world, job) == []
    found = msgspec.msgpack.decode(world.store[state_key(job.id)], type=_EarlierState)
    assert [entry.worker for entry in found.workers] == world.roster(job.id)


def test_an_earlier_version_refuses_a_large_job_rather_than_start_others_beside_its_workers() -> None:
    world, job = large()
    with pytest.raises(msgspec.ValidationError, match="workers"):
        msgspec.msgpack.decode(world.store[state_key(job.id)], type=_EarlierState)


def test_a_large_job_that_an_earlier_version_has_recorded_is_read_and_parted() -> None:
    world, job = large(whole_workers=1000)
    assert parts(world, job) == []
    del world.settings["whole_workers"]
    workers = tuple(job.workers)
    world.restart()
    again = world.job(job.id)
    assert [entry.worker for entry in again.workers] == [entry.worker for entry in workers]
    assert sum(WORKER in key for key in parts(world, job)) == len(workers) + len(again.record.past)
    assert durable(world.machine.cluster) == world.store


def test_a_job_without_workers_is_one_record_again() -> None:
    world, job = large()
    assert parts(world, job)
    world.ask(Pause(job=job.id))
    world.reap()
    assert not job.workers
    assert parts(world, job) == []
    assert len(msgspec.msgpack.decode(world.store[state_key(job.id)], type=type(job.record)).past) == 24


def test_a_job_of_which_a_worker_is_missing_in_the_store_is_refused() -> None:
    world, job = large()
    world.store.pop(state_key(job.id) + WORKER + world.roster(job.id)[5])
    with pytest.raises(OperatorError, match="24 workers, and there are records of 23"):
        world.new_machine()


def test_a_part_of_a_state_that_cannot_be_read_is_named() -> None:
    world, job = large()
    key = state_key(job.id) + WORKER + world.roster(job.id)[5]
    world.store[key] = b"\xc1"
    with pytest.raises(OperatorError, match=f"{key} cannot be read"):
        world.new_machine()


def test_what_lies_among_the_unsealed_parts_of_a_state_is_never_taken_for_a_submission() -> None:
    world, job = large()
    forged = world.store[f"/jobs/{job.id}/spec"].replace(b"train.py", b"steal.py")
    for key in (f"/jobs/{job.id}/state/part/spec", f"/jobs/{job.id}/state/spec", "/jobs/forged-7/state/spec"):
        assert not is_sealed(key)
        world.store[key] = forged
    world.restart()
    assert list(world.machine.cluster.jobs) == [job.id]
    assert world.job(job.id).spec.command == ("python", "train.py")


def test_all_parts_of_a_state_are_read_whatever_their_order() -> None:
    world, job = large()
    records = [(key, value) for key, value in world.store.items() if key.startswith(state_key(job.id))]
    random.Random(1).shuffle(records)
    found = States(records).get(job.id)
    assert found is not None
    assert (found.record, list(found.workers)) == (job.record, sorted(found.workers))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_of_workers_is_what_looking_at_all_of_them_finds(seed: int) -> None:
    rng = random.Random(seed)
    world = HostileWorld({"s1": 2, "s2": 2})
    world.settings["whole_workers"] = 1
    world.restart()
    for _ in range(40):
        disturb(world, rng)
        for job in world.machine.cluster.jobs.values():
            terms = SharedFacts(job.newest, job.committed_order, job.elastic, job.final, job.watched_s)
            anew, kept = WorkerSets(), job.worker_sets
            anew.catch_up(job.workers.copy(), Statuses(job.statuses), terms, job._due_s)
            for name in ("holding", "finished", "broken", "unstarted", "behind", "usable"):
                assert set(getattr(kept, name)) == set(getattr(anew, name)), name
            for name in (
                "held_gpus",
                "running_gpus",
                "training_gpus",
                "unjoined_training_gpus",
                "joined",
                "any_outside",
            ):
                assert getattr(kept, name) == getattr(anew, name), name
            dues = [*(late.until_s for late in job.latenesses()), *job.overdue().values()]
            assert kept.due.soonest() == min(dues, default=float("inf"))
            gpus = {gpu for entry in job.workers if entry.state.value != "ordered" for gpu in entry.all_gpus}
            assert set(job.workers.held) == gpus
            assert all(world.machine.cluster.jobs.index.on_gpu(gpu) == job.id for gpu in gpus)
        assert durable(world.machine.cluster) == world.store
        assert differences(world.machine.cluster, world.new_machine().cluster) == ()


def test_a_lost_server_of_a_large_job_changes_the_records_of_its_own_workers() -> None:
    world, job = large()
    before = dict(world.store)
    gone = {entry.worker for entry in job.workers.on_server(ServerId("s2"))}
    world.agents[ServerId("s2")].connected = False
    world.pass_time(30.0)
    here = state_key(job.id) + WORKER
    changed = {
        key.removeprefix(here) for key in world.store if key.startswith(here) and before.get(key) != world.store[key]
    }
    assert len(gone) == 8
    assert gone <= changed
