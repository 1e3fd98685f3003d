"""Switching policies at run time: the record, the answer, and that running jobs only resize and move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elasticd.controller.events import Reconfigured
from elasticd.controller.records import POLICY_KEY, PolicyRecord
from elasticd.protocol.messages import EventKind, GetPolicy, PolicySet, Refused, Scale, SetPolicy, Submit, Submitted
from elasticd.protocol.model import JobPhase
from elasticd.scheduler.placement.fewest_servers import Placements
from elasticd.scheduler.placement.registry import FEWEST_SERVERS
from elasticd.scheduler.scheduler import Stages, load_scheduler

from .world import World, job_spec

STOPS = {EventKind.PREEMPTED, EventKind.RESTARTED}


def choose(world: Any, document: dict[str, Any] | None, **changes: Any) -> Any:
    return world.ask(SetPolicy(document=document, source="test", user="ann", **changes))


def targets(world: Any, *jobs: Any) -> list[int]:
    return [len(world.job(job.id).record.target) for job in jobs]


def waiting_behind_a_rigid_one() -> tuple[Any, Any, Any]:
    """Under fifo the first job has 3 of 4 GPUs, and the second waits for 4."""
    world = World(policy="fifo")
    first, second = world.submit(job_spec(low=1, high=3)), world.submit(job_spec(low=1, high=4))
    world.settle(first.id)
    assert targets(world, first, second) == [3, 0]
    return world, first, second


def test_a_new_policy_decides_at_once_and_says_whose_shares_it_changes() -> None:
    world, first, second = waiting_behind_a_rigid_one()
    workers = world.roster(first.id)
    answer = choose(world, {"policy": "max-min"})
    assert isinstance(answer, PolicySet), answer
    assert [(one.job, one.before_gpus, one.after_gpus) for one in answer.shares] == [
        (first.id, 3, 2),
        (second.id, 0, 2),
    ]
    assert (answer.before.policy.name, answer.after.policy.name) == ("fifo", "max-min")
    assert targets(world, first, second) == [2, 2]
    for _ in range(3):
        world.settle(first.id)
        world.settle(second.id)
    assert world.roster(first.id) == workers[:2], "running workers are kept"
    assert world.job(second.id).record.phase is JobPhase.RUNNING
    assert not STOPS & set(world.kinds())
    (told,) = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY]
    for word in ("fifo", "max-min", "test", "ann"):
        assert word in told


def test_a_dry_run_tells_the_same_and_changes_nothing() -> None:
    world, first, second = waiting_behind_a_rigid_one()
    store, random = dict(world.store), world.machine.cluster.rng.getstate()
    answer = choose(world, {"policy": "max-min"}, dry_run=True)
    assert [(one.job, one.after_gpus) for one in answer.shares] == [(first.id, 2), (second.id, 2)]
    assert world.store == store
    assert world.machine.cluster.rng.getstate() == random
    assert targets(world, first, second) == [3, 0]
    assert world.ask(GetPolicy()).policy.name == "fifo"
    assert choose(world, {"policy": "max-min"}).shares == answer.shares


def test_what_was_set_survives_the_controller_and_wins_over_its_configuration_until_it_is_given_back() -> None:
    world, first, second = waiting_behind_a_rigid_one()
    choose(world, {"policy": "max-min", "packing": "network", "placement": "buddy"})
    set_at = world.now
    world.now += 60
    world.restart()
    found = world.ask(GetPolicy())
    assert (found.policy.name, found.packing, found.placement.name) == ("max-min", "network", "buddy")
    assert (found.at_run_time, found.source, found.user, found.since_s) == (True, "test", "ann", set_at)
    assert found.configured_policy == "fifo"
    assert targets(world, first, second) == [2, 2]
    answer = choose(world, None)
    assert (answer.after.policy.name, answer.after.at_run_time) == ("fifo", False)
    assert POLICY_KEY not in world.store
    world.restart()
    assert world.ask(GetPolicy()).policy.name == "fifo"


def test_stages_that_are_not_named_are_those_of_the_configuration() -> None:
    world = World()
    choose(world, {"policy": "fifo", "placement": "buddy"})
    found = choose(world, {"policy": "afs-p", "parameters": {"unit_s": 60}}).after
    assert (found.policy.parameters, found.placement.name) == ({"unit_s": 60.0}, "fewest-servers")


def test_who_got_which_quota_is_told_and_what_is_in_use_can_be_set_again() -> None:
    world = World()
    quotas = {"users": {"bob": {"gpus": 2, "most_gpus": 3}}, "groups": {"vision": {"members": ["carol"], "jobs": 1}}}
    found = choose(world, {"policy": "max-min", "quotas": quotas})
    assert (found.before.quotas["users"], found.after.quotas["users"]["bob"]["gpus"]) == ({}, 2)
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY]
    assert ", quotas: group vision (carol): 1 job; bob: 2 GPUs, at most 3, from test" in told[-1]
    present = world.ask(GetPolicy())
    choose(world, {"policy": "max-min", "quotas": present.quotas, "deadlines": present.deadlines, "packing": "network"})
    assert world.ask(GetPolicy()).quotas == present.quotas
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY]
    assert "quotas" not in told[-1]
    choose(world, {"policy": "max-min"})
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY]
    assert "quotas: group vision is gone; bob: none of its own" in told[-1]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"policy": "best"}, ["policy", "'best'", "max-min"]),
        ({}, ["policy", "missing"]),
        ({"policy": "afs-p", "parameters": {"unit_s": 0}}, ["parameters.unit_s", "0"]),
        ({"policy": "fifo", "parameters": {"unit_s": 9}}, ["parameters.unit_s", "unknown"]),
        ({"policy": "fifo", "placement": "best"}, ["placement", "'best'", "buddy"]),
        ({"policy": "fifo", "packing": "tight"}, ["packing", "'tight'", "network"]),
        (
            {"policy": "fifo", "admission": {"name": "bounded", "parameters": {"jobs": 3}}},
            ["admission.parameters.jobs"],
        ),
    ],
)
def test_what_is_wrong_is_refused_with_the_field_and_changes_nothing(
    document: dict[str, Any], words: list[str]
) -> None:
    world = World()
    store = dict(world.store)
    answer = choose(world, document)
    assert isinstance(answer, Refused)
    assert answer.bad_input
    for word in ["test: ", *words]:
        assert word in answer.reason
    assert world.store == store


@pytest.mark.parametrize("depth", [33, 600, 950])
@pytest.mark.parametrize("kind", ["list", "mapping"])
def test_a_document_whose_levels_are_as_many_as_a_message_can_have_ends_no_controller(kind: str, depth: int) -> None:
    inner: Any = "x"
    for _ in range(depth - 1):
        inner = [inner] if kind == "list" else {"a": inner}
    answer = choose(World(), {"policy": inner}, dry_run=True)
    assert answer == Refused(reason="test: a policy file has at most 32 levels", bad_input=True)
    unknown = choose(World(), {"policy": "max-min", "parameters": {"a": [[[1]]]}}, dry_run=True)
    assert "a: is unknown" in unknown.reason


def test_a_repeated_request_switches_once() -> None:
    world = World()
    request = SetPolicy(document={"policy": "fifo"}, source="test")
    first = world.ask(request, "again")
    assert world.ask(request, "again") == first
    assert world.kinds().count(EventKind.POLICY) == 1


def test_a_controller_that_has_just_started_answers_when_its_servers_are_back() -> None:
    world, first, _ = waiting_behind_a_rigid_one()
    world.restart(hello=False)
    assert world.ask(SetPolicy(document={"policy": "max-min"}), "early") is None
    world.hello("s1")
    world.turn()
    assert isinstance(world.ask(SetPolicy(document={"policy": "max-min"}), "early"), PolicySet)
    assert targets(world, first) == [2]


def test_a_recorded_policy_that_this_version_does_not_know_leaves_the_decision_to_the_configuration() -> None:
    world = World()
    record = PolicyRecord(document={"policy": "from-the-future"}, source="new.yaml", user="ann", since_s=1.0)
    world.store[POLICY_KEY] = msgspec.msgpack.encode(record)
    world.restart()
    assert world.ask(GetPolicy()).policy.name == "max-min"
    (told,) = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.POLICY]
    assert "from-the-future" in told
    assert POLICY_KEY in world.store, "a newer version may know it"


# -------------------------------------------------------------------------------------------------------------- admission


def test_a_bounded_cluster_refuses_what_could_never_run_and_who_comes_when_too_many_wait() -> None:
    world = World(policy="fifo")
    bounded = {"name": "bounded", "parameters": {"waiting_jobs": 1, "user_jobs": 3}}
    choose(world, {"policy": "fifo", "admission": bounded})
    assert "needs at least 5 GPUs, and the cluster has 4" in world.ask(_submission(low=5, high=8)).reason
    for _ in range(2):  # one runs, one waits
        assert isinstance(world.ask(_submission(low=4)), Submitted)
    assert "1 jobs wait already" in world.ask(_submission(low=4)).reason
    choose(world, {"policy": "fifo", "admission": {"name": "bounded", "parameters": {"user_jobs": 2}}})
    refused = world.ask(_submission(low=1, user="bob"))
    assert isinstance(refused, Submitted), refused
    for user, admitted in (("bob", True), ("bob", False), ("eve", True)):
        assert isinstance(world.ask(_submission(low=1, user=user)), Submitted) is admitted


def _submission(**changes: Any) -> Any:
    return Submit(spec=job_spec(**changes))


# ------------------------------------------------------------------------------------------------- cyclic exchanges


class Elsewhere:
    """A placement that puts jobs, by row, on given GPUs."""

    name = "elsewhere"
    parameters = FEWEST_SERVERS.parameters

    def __init__(self, wanted: dict[int, int]) -> None:
        self.wanted = wanted

    def place(self, servers: Any, present: Any, shares: Any, first: Any = None, stay: Any = ()) -> Placements:
        return {row: self.wanted[row] for row, share in enumerate(shares) if share}


@pytest.mark.parametrize("idle", [0, 1])
def test_jobs_that_are_to_exchange_their_gpus_do_so_over_an_idle_one_or_stay_but_never_start_anew(idle: int) -> None:
    """One rigid job of two GPUs and two of one; each is placed where the others are."""
    placement = Elsewhere({0: 0b0011, 1: 0b0100, 2: 0b1000})
    world = World({"s1": 2, "s2": 2, **({"s3": 1} if idle else {})}, stages=Stages(placement=placement))
    jobs = [world.submit(job_spec(low=size, high=size)) for size in (2, 1, 1)]
    for job in jobs:
        world.settle(job.id)
    bits = {f"s{server}:{index}": 1 << 2 * server - 2 + index for server in (1, 2) for index in (0, 1)} | {"s3:0": 16}

    def held() -> list[int]:
        return [sum(bits[str(m.gpu)] for m in world.job(job.id).newest.roster.members) for job in jobs]

    assert held() == [0b0011, 0b0100, 0b1000]
    placement.wanted = {0: 0b1100, 1: 0b0001, 2: 0b0010}
    for _ in range(8):
        world.ask(Scale(job=jobs[0].id, share=None))  # changes nothing, but triggers a decision
        for job in jobs:
            world.settle(job.id)
    assert held() == ([0b1100, 0b0001, 0b0010] if idle else [0b0011, 0b0100, 0b1000])
    assert all(world.job(job.id).record.restarts == 0 for job in jobs)
    assert not STOPS & set(world.kinds())


def reconfigure(world: Any, document: dict[str, Any], **settings: Any) -> None:
    """The operator has changed the configuration file, and reloads it."""
    present = world.machine.cluster.settings
    world.carry_out(world.feed(Reconfigured(replace(present, **settings), load_scheduler(document, "controller.yaml"))))
    world.come_to_rest()


def test_a_policy_that_the_configuration_names_anew_decides_at_once() -> None:
    world, first, second = waiting_behind_a_rigid_one()
    reconfigure(world, {"policy": "max-min"}, max_restarts=7)
    assert targets(world, first, second) != [3, 0]
    assert world.ask(GetPolicy()).policy.name == "max-min"
    assert not world.ask(GetPolicy()).at_run_time
    assert world.machine.cluster.settings.max_restarts == 7
    assert world.kinds().count(EventKind.POLICY) == 1
    reconfigure(world, {"policy": "max-min"})
    assert world.kinds().count(EventKind.POLICY) == 1, "the same again is no event"


def test_a_policy_set_at_run_time_outlives_another_configuration() -> None:
    world, first, second = waiting_behind_a_rigid_one()
    choose(world, {"policy": "max-min"})
    shares = targets(world, first, second)
    reconfigure(world, {"policy": "backfill", "packing": "network"})
    found = world.ask(GetPolicy())
    assert (found.policy.name, found.configured_policy, found.at_run_time) == ("max-min", "backfill", True)
    assert found.packing == "network", "a stage that it leaves to the configuration"
    choose(world, None)
    assert world.ask(GetPolicy()).policy.name == "backfill"
    assert shares


def test_pollux_divides_gpus_at_its_intervals_and_counts_changes() -> None:
    """A job that comes in between gets the idle GPUs, here none, and the controller decides again without an event."""
    world = World(policy="pollux")
    first = world.submit(job_spec(low=1, high=4))
    second = None
    seen = []
    for _ in range(30):
        world.pass_time(10)
        world.settle(first.id)
        if second is not None:
            world.settle(second.id)
        elif targets(world, first) == [4]:
            world.pass_time(15)  # no GPUs are divided at either time
            second = world.submit(job_spec("second", low=1, high=4))
            assert targets(world, first, second) == [4, 0]
        seen.append(targets(world, first, *([second] if second is not None else [])))
    assert [2, 2] in seen
    assert seen[-1] == [2, 2]
    assert world.job(first.id).record.generation > 1
