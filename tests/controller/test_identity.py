"""Identities: two agents with one name, servers of another cluster, stores that are lost or older than the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.controller.events import AgentMessage
from elasticd.controller.inbound.restored import MAX_NUMBER
from elasticd.controller.recovery import differences
from elasticd.controller.state import servers
from elasticd.protocol.messages import (
    Acknowledged,
    AdoptServer,
    AgentHeartbeat,
    Cancel,
    EventKind,
    ForgetWorkers,
    GetServers,
    HelloRefused,
    Order,
    Refused,
    Scale,
    ServerAdopted,
    ServerState,
    StartWorker,
    StopWorker,
    Submit,
)
from elasticd.protocol.model import Gpu, GpuKind, JobPhase, Server, ServerId, WorkerPhase

from .world import Agent, World, job_spec

S1 = ServerId("s1")


def world_of(*servers: str, gpus: int = 2) -> Any:
    """Servers with agents that have an identity and know their cluster."""
    world = World({})
    for name in servers or ("s1",):
        slots = tuple(Gpu(index=i, kind=GpuKind.CPU, name="CPU slot") for i in range(gpus))
        server = Server(server=ServerId(name), address="127.0.0.1", gpus=slots)
        world.agents[ServerId(name)] = Agent(server, identity=f"{name}-first")
        world.hello(name)
    world.turn()
    return world


def training(world: Any, gpus: int = 2, **changes: Any) -> Any:
    """A job that trains on all of `gpus`."""
    job = world.submit(job_spec(low=1, high=gpus, **changes))
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING
    return job


def lose_store(world: Any, store: dict[str, bytes] | None = None, hello: bool = True) -> None:
    """The controller restarts with an empty store, or with an earlier one."""
    world.store = dict(store or {})
    world.seed += 1
    world.orders.clear()  # earlier orders may be repeated; agents with a newer one ignore them
    world.restart(hello)


def number_of(job: Any) -> int:
    return int(job.id.rpartition("-")[2])


def sent_since(world: Any, number: int, *kinds: type) -> list[Any]:
    return [message for _, message in world.sent[number:] if isinstance(message, kinds)]


# ---------------------------------------------------------------------------------------------- two agents under one name


def second_agent(world: Any, identity: str = "s1-second") -> Any:
    """Another machine whose agent has been given the name s1."""
    return Agent(world.agents[S1].server, identity=identity)


def test_a_second_agent_under_a_name_is_refused_with_a_reason_and_the_operator_is_told_once() -> None:
    world = world_of()
    job = training(world)
    second, said = second_agent(world), len(world.sent)
    for _ in range(3):
        world.say_hello(second)
        world.turn()
    refusals = sent_since(world, said, HelloRefused)
    assert len(refusals) == 3
    assert "another agent is server s1: identity s1-first" in refusals[0].reason
    assert world.kinds().count(EventKind.SERVER_REFUSED) == 1
    assert not sent_since(world, said, StartWorker, StopWorker)
    assert world.machine.cluster.servers.sessions[S1].agent == "s1-first"
    assert job.share_gpus == 2


def test_an_agent_that_has_been_taken_in_and_is_refused_again_is_told_of_again() -> None:
    world = world_of()
    first, second = world.agents[S1], second_agent(world)
    world.say_hello(second)
    first.connected = False
    world.turn(11.0)
    world.agents[S1] = second
    world.hello("s1")
    assert not world.machine.cluster.servers.refused
    second.connected = False
    world.turn(11.0)
    world.agents[S1] = first
    first.connected = True
    world.hello("s1")
    world.say_hello(second)
    assert world.kinds().count(EventKind.SERVER_REFUSED) == 2


def test_no_more_refused_agents_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "KEPT_REFUSED", 3)
    world = world_of()
    for number in range(9):
        world.say_hello(second_agent(world, f"s1-{number}"))
    assert [agent for _, agent in world.machine.cluster.servers.refused] == ["s1-6", "s1-7", "s1-8"]


def test_messages_of_a_second_agent_renew_no_lease() -> None:
    world = world_of()
    world.agents[S1].connected = False
    for _ in range(15):
        world.now += 1.0
        world.feed(AgentMessage(S1, AgentHeartbeat(server=S1), "s1-second"))
        world.come_to_rest()
    assert not world.machine.cluster.servers.sessions[S1].alive


def test_a_reinstalled_server_joins_when_the_lease_of_its_former_agent_has_expired() -> None:
    world = world_of()
    world.agents[S1].connected = False
    second = second_agent(world)
    world.say_hello(second)
    assert EventKind.SERVER_REFUSED in world.kinds()
    world.turn(11.0)
    world.agents[S1] = second
    world.hello("s1")
    assert world.machine.cluster.servers.sessions[S1].agent == "s1-second"
    assert training(world).share_gpus == 2


def test_after_a_restart_of_the_controller_the_agent_that_was_there_goes_before_another_one() -> None:
    world = world_of()
    world.restart(hello=False)
    second, said = second_agent(world), len(world.sent)
    world.say_hello(second)
    assert sent_since(world, said, HelloRefused)
    world.hello("s1")
    assert world.machine.cluster.servers.sessions[S1].agent == "s1-first"


def test_a_late_hello_of_an_earlier_start_of_the_agent_changes_nothing() -> None:
    world = world_of()
    job = training(world)
    late = world.say_hello(world.agents[S1])
    world.agents[S1].start, world.agents[S1].hellos = 2, 0
    world.hello("s1")
    said = len(world.sent)
    world.feed(AgentMessage(S1, late, "s1-first"))
    world.turn()
    assert world.sent[said:] == []
    assert job.share_gpus == 2


def test_an_agent_that_has_forgotten_its_last_starts_is_told_so_instead_of_being_dropped_for_ever() -> None:
    world = world_of()
    agent = world.agents[S1]
    agent.start = 5
    world.hello("s1")
    agent.connected = False
    world.turn(11.0)
    agent.start, said = 3, len(world.sent)
    world.say_hello(agent)
    (refusal,) = sent_since(world, said, HelloRefused)
    assert "identity.json" in refusal.reason
    assert not world.machine.cluster.servers.sessions[S1].alive
    assert EventKind.SERVER_REFUSED in world.kinds()


# ---------------------------------------------------------------------------------------------------------- lost stores


def test_a_cluster_keeps_its_id_and_tells_it_to_its_agents() -> None:
    world = world_of()
    (known,) = {world.machine.cluster.id, world.agents[S1].cluster}
    assert len(known) == 32
    world.restart()
    assert world.machine.cluster.id == known


def test_an_agent_without_workers_joins_a_new_cluster_by_itself() -> None:
    world = world_of()
    lose_store(world)
    assert world.agents[S1].cluster == world.machine.cluster.id
    assert EventKind.SERVER_FOREIGN not in world.kinds()
    assert training(world).share_gpus == 2


def test_a_lost_store_never_stops_a_worker() -> None:
    world = world_of("s1", "s2")
    job = training(world, 4)
    running = world.running(job.id)
    lose_store(world)
    said = len(world.sent)
    other = world.submit(job_spec("other", low=1, high=4))
    world.pass_time(60.0)
    assert world.running(job.id) == running
    assert not any(world.find(worker)[1].stopping for worker in running)
    assert not sent_since(world, said, Order, StartWorker, StopWorker, ForgetWorkers)
    assert other.record.phase is JobPhase.PENDING
    assert world.kinds().count(EventKind.SERVER_FOREIGN) == 2
    views = world.ask(GetServers()).servers
    assert [sorted(view.used) for view in views] == [[0, 1], [0, 1]]
    assert {view.state for view in views} == {ServerState.FOREIGN}
    assert "belongs to another cluster: 2 workers run there; `elasticctl servers adopt s1`" in views[0].trouble


def test_ends_that_the_other_cluster_has_not_recorded_are_kept_for_it() -> None:
    world = world_of()
    job = training(world, 1)
    lose_store(world)
    said = len(world.sent)
    world.exit(world.running(job.id)[0], 0)
    world.pass_time(3.0)
    assert world.agents[S1].exited
    assert not sent_since(world, said, ForgetWorkers)
    assert world.machine.cluster.servers.sessions == {}


def test_an_operator_takes_a_server_over_and_its_workers_save_before_it_joins() -> None:
    world = world_of()
    job = training(world)
    running = world.running(job.id)
    lose_store(world)
    other = world.submit(job_spec("other", low=1, high=2))
    said = len(world.sent)
    assert world.ask(AdoptServer(server=S1)) == ServerAdopted(server=S1, workers=2)
    stops = sent_since(world, said, StopWorker)
    assert [(stop.worker, stop.save, stop.uid) for stop in stops] == [(w, True, job.uid) for w in running]
    world.reap()
    assert not world.agents[S1].exited
    assert world.messages(Acknowledged)[-1].sent != world.agents[S1].received  # so that the agent sends a hello
    world.hello("s1")
    world.turn()
    assert world.agents[S1].cluster == world.machine.cluster.id
    assert world.machine.cluster.servers.adopted == {}
    assert not [key for key in world.store if key.startswith("/adopted/")]
    world.settle(other.id)
    assert other.share_gpus == 2


def test_a_decision_to_take_a_server_over_survives_a_restart_of_the_controller() -> None:
    world = world_of()
    job = training(world)
    lose_store(world)
    world.ask(AdoptServer(server=S1))
    for process in world.agents[S1].running.values():
        process.stopping = False  # the order to stop was lost
    world.restart()
    assert all(world.find(worker)[1].stopping for worker in world.running(job.id))


def test_only_what_there_is_can_be_taken_over() -> None:
    world = world_of()
    assert "no server 's9'" in world.ask(AdoptServer(server=ServerId("s9"))).reason
    answer = world.ask(AdoptServer(server=S1))
    assert isinstance(answer, Refused)
    assert "is a member of this cluster" in answer.reason


# ------------------------------------------------------------------------------------------------------ restored stores


def test_workers_of_a_job_that_a_restored_store_does_not_know_keep_their_gpus_until_an_operator_decides() -> None:
    world = world_of(gpus=3)
    backup = dict(world.store)
    job = training(world)
    running = world.running(job.id)
    lose_store(world, backup)
    other = world.submit(job_spec("other", low=1, high=3))
    world.settle(other.id)
    world.pass_time(30.0)
    assert world.running(job.id) == running
    assert not any(world.find(worker)[1].stopping for worker in running)
    assert other.share_gpus == 1
    assert EventKind.WORKERS_UNKNOWN in world.kinds()
    (view,) = world.ask(GetServers()).servers
    assert view.used == {0: job.id, 1: job.id, 2: other.id}
    assert "2 workers of jobs that the store does not know run there (digits-1)" in view.trouble

    assert world.ask(AdoptServer(server=S1)) == ServerAdopted(server=S1, workers=2)
    assert all(world.find(worker)[1].stopping for worker in running)
    world.reap()
    world.settle(other.id)
    assert other.share_gpus == 3
    assert world.machine.cluster.servers.adopted == {}


def test_a_number_is_not_used_again_for_a_job_that_a_restored_or_new_store_does_not_know() -> None:
    world = world_of()
    backup = dict(world.store)
    for store in (backup, {}):
        job = training(world)
        world.ask(Cancel(job=job.id))
        world.reap()
        lose_store(world, store)
        again = world.submit(job_spec())
        assert number_of(again) > number_of(job)
        assert again.uid != job.uid
        world.settle(again.id)
        assert again.share_gpus == 2
        world.ask(Cancel(job=again.id))
        world.reap()


def test_the_operator_is_told_once_that_the_store_is_older_than_the_cluster() -> None:
    world = world_of("s1", "s2")
    backup = dict(world.store)
    training(world, 4)
    lose_store(world, backup)
    assert world.kinds().count(EventKind.STORE_OLD) == 1
    assert "server s1 has run a job with the number 1, which the store does not know" in world.story()


def test_a_job_that_is_further_than_a_restored_store_saves_and_starts_again_without_losing_a_step() -> None:
    world = world_of("s1", "s2")
    job = training(world, 4)
    backup = dict(world.store)
    world.exit(world.roster(job.id)[3], -9)
    world.settle(job.id, step=50)
    before, running = job.record, world.running(job.id)
    lose_store(world, backup)
    job = world.job(job.id)
    stops = [stop for stop in world.messages(StopWorker) if stop.save]
    assert set(running) < {stop.worker for stop in stops}  # and the one that is alive by the store's records
    assert len({stop.saver for stop in stops}) == 1
    assert stops[0].saver in running
    assert job.record.generation > before.generation
    assert job.record.worker_count > before.worker_count
    assert [kind for kind in world.kinds(job.id) if kind is EventKind.OVERTAKEN] == [EventKind.OVERTAKEN]

    starts = len(world.messages(StartWorker))
    world.exit(running[0], 0, turn=True)
    assert len(world.messages(StartWorker)) == starts, (
        "it starts again when the last one has saved and ended, not before"
    )
    world.reap()
    world.settle(job.id, step=51)
    assert job.record.phase is JobPhase.RUNNING
    assert job.share_gpus == 4
    assert job.record.restarts_in_vain == 0
    assert not set(world.running(job.id)) & set(running)


def test_a_server_that_comes_back_late_does_not_meet_a_worker_with_the_name_of_one_of_its_own() -> None:
    world = world_of("s1", "s2")
    job = training(world, 4)
    backup = dict(world.store)
    for worker in world.roster(job.id)[2:]:
        world.exit(worker, -9)
        world.settle(job.id, step=20)
    away = [name for name, agent in world.agents.items() if len(agent.running) == 2][-1]
    world.agents[away].connected = False
    late = set(world.agents[away].running)
    lose_store(world, backup)
    world.pass_time(15.0)
    job = world.job(job.id)
    world.reap()
    world.settle(job.id, step=21)
    assert not late & {entry.worker for entry in job.workers}
    world.hello(away)
    world.turn()
    assert all(world.agents[away].running[worker].stopping for worker in late)


def test_a_worker_that_has_not_spoken_yet_can_show_that_the_store_is_old() -> None:
    world = world_of(gpus=4)
    job = training(world, 2)
    backup = dict(world.store)
    world.ask(Scale(job=job.id, share=4))
    starting = [w for w in world.running(job.id) if world.find(w)[1].status is None]
    assert starting
    lose_store(world, backup)
    assert all(world.find(worker)[1].stopping for worker in starting)
    assert EventKind.OVERTAKEN in world.kinds(job.id)


def test_numbers_are_not_used_again_after_a_restore_even_where_no_worker_is_left_to_show_them() -> None:
    world = world_of()
    job = training(world)
    backup = dict(world.store)
    world.ask(Scale(job=job.id, share=1))
    world.settle(job.id, step=30)
    waiting = world.submit(job_spec("waiting", low=2, high=2))
    generation = job.record.generation
    world.pass_time(2.0)
    world.agents[S1].running.clear()
    world.agents[S1].exited.clear()
    lose_store(world, backup)
    assert "s1 has heard of event" in world.story()
    job = world.job(job.id)
    world.pass_time(3.0)
    world.settle(job.id, step=31)
    assert job.record.phase is JobPhase.RUNNING
    assert job.record.committed > generation  # or its checkpoints would not be written
    again = world.submit(job_spec("another", low=2, high=2))
    assert number_of(again) > number_of(waiting)
    world.restart()
    world.restart()
    assert world.kinds().count(EventKind.STORE_OLD) == 1
    assert number_of(world.submit(job_spec("third"))) == number_of(again) + 1


def test_a_job_that_waits_to_start_again_while_the_store_turns_out_to_be_old_is_counted_once() -> None:
    world = world_of("s1", "s2")
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id, step=20)
    (worker,) = world.running(job.id)
    world.exit(worker, -9)
    assert job.restart_counted
    world.agents[ServerId("s2")].newest_event = 1000
    del world.machine.cluster.servers.met[ServerId("s2")]  # away since before the controller's start
    world.hello("s2")
    assert EventKind.STORE_OLD in world.kinds()
    assert job.restart_counted
    assert differences(world.machine.cluster, world.new_machine().cluster) == (), "the next controller waits, too"
    world.restart()
    world.pass_time(5.0)
    world.settle(job.id, step=21)
    assert (world.job(job.id).share_gpus, world.job(job.id).record.restarts) == (1, 1)


@pytest.mark.parametrize(("number", "old"), [(MAX_NUMBER, True), (MAX_NUMBER + 1, False)])
def test_numbers_of_events_have_a_bound(number: int, old: bool) -> None:
    world = world_of("s1", "s2")
    world.agents[ServerId("s2")].newest_event = number
    del world.machine.cluster.servers.met[ServerId("s2")]  # away since before the controller's start
    world.hello("s2")
    assert (EventKind.STORE_OLD in world.kinds()) is old
    assert (world.machine.cluster.history.next_number > MAX_NUMBER) is old


def test_a_submission_waits_a_moment_for_an_agent_that_may_know_which_numbers_are_used() -> None:
    world = world_of()
    backup = dict(world.store)
    job = training(world)
    lose_store(world, backup, hello=False)
    assert world.ask(Submit(spec=job_spec()), "r") is None
    world.hello("s1")
    assert int(world.ask(Submit(spec=job_spec()), "r").job.rpartition("-")[2]) > number_of(job)
    world.restart(hello=False)
    world.turn(3.0)
    assert world.ask(Submit(spec=job_spec())) is not None  # no server speaks: the request does not wait for a lease


def test_the_numbers_that_were_skipped_stay_so_when_the_controller_starts_again() -> None:
    world = world_of()
    backup = dict(world.store)
    waiting = world.submit(job_spec("waiting", low=1, high=1))
    world.ask(Cancel(job=waiting.id))
    world.pass_time(2.0)
    lose_store(world, backup)
    world.restart()
    assert number_of(world.submit(job_spec())) > number_of(waiting)


def test_a_worker_that_has_ended_can_show_that_the_store_is_old() -> None:
    world = world_of()
    job = training(world)
    backup = dict(world.store)
    world.exit(world.roster(job.id)[1], -9)
    world.settle(job.id, step=30)
    world.agents[S1].connected = False
    for worker in world.running(job.id) or list(world.agents[S1].running):
        world.exit(worker, -9)
    generation = job.record.generation
    lose_store(world, backup, hello=False)
    world.hello("s1")
    world.turn()
    job = world.job(job.id)
    assert job.record.generation > generation
    world.settle(job.id, step=31)
    assert job.share_gpus == 2


def test_a_job_goes_on_as_it_was_when_the_backup_is_as_new_as_the_job() -> None:
    world = world_of()
    job = training(world)
    said = len(world.sent)
    lose_store(world, world.store)
    world.pass_time(5.0)
    assert not sent_since(world, said, StopWorker, StartWorker)
    assert world.job(job.id).share_gpus == 2
    assert EventKind.STORE_OLD not in world.kinds()


@pytest.mark.parametrize("phase", [WorkerPhase.TRAINING, WorkerPhase.READY])
def test_a_worker_of_an_earlier_job_with_the_number_of_a_present_one_is_left_alone(phase: WorkerPhase) -> None:
    world = world_of("s1")
    old = training(world, 1)
    name = world.running(old.id)[0]
    world.agents[S1].connected = False
    world.agents[S1].cluster = ""
    lose_store(world, {}, hello=False)
    new = world.submit(job_spec(low=1, high=1))
    assert new.id == old.id
    world.report(name, phase)
    world.hello("s1")
    world.settle(new.id)
    assert not world.find(name)[1].stopping
    assert new.record.phase is JobPhase.PENDING or new.share_gpus == 1
    assert name in world.machine.cluster.servers.sessions[S1].unknown
