"""The agent's machine, event by event."""

from __future__ import annotations

import msgspec
import pytest

from elasticd.agent.events import (
    Action,
    ControllerMessage,
    Event,
    ForgetWorker,
    IdentityWritten,
    KeepIdentity,
    LogRead,
    ProcessExited,
    ProcessFailed,
    ProcessStarted,
    ReadLogPiece,
    SendController,
    SendWorker,
    SignalProcess,
    Started,
    StartProcess,
    StopSignal,
    TimePassed,
    Warn,
    WorkerStatusReceived,
)
from elasticd.agent.identity import Identity
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    ForgetWorkers,
    HelloRefused,
    LocalWorker,
    LogPiece,
    Order,
    ReadLog,
    StartWorker,
    StatusReceived,
    StopWorker,
    Suspend,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import (
    Fault,
    Gpu,
    GpuAddress,
    GpuKind,
    GpuRange,
    JobId,
    JobSpec,
    Member,
    Roster,
    Server,
    ServerId,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)

JOB = JobId("digits-1")
FIRST, SECOND = WorkerId("digits-1.0"), WorkerId("digits-1.1")
GPUS = tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot") for index in range(2))
SERVER = Server(server=ServerId("s1"), address="127.0.0.1", gpus=GPUS)
SPEC = JobSpec(name="digits", command=("true",), gpus=GpuRange(min=1, max=4), virtual_workers=4, workdir="/tmp")


def order(generation: int, leader_address: str = "", broken: tuple[int, ...] = ()) -> Order:
    member = Member(worker=FIRST, gpu=GpuAddress(server=ServerId("s1"), index=0))
    roster = Roster(generation=generation, members=(member,), leader=FIRST)
    return Order(job=JOB, roster=roster, leader_address=leader_address, broken=broken)


def status(worker: WorkerId = FIRST, sequence: int = 1, **changes: object) -> WorkerStatus:
    base = WorkerStatus(
        job=JOB,
        worker=worker,
        pid=10,
        address="tcp://127.0.0.1:1",
        phase=WorkerPhase.TRAINING,
        generation=1,
        order=1,
        floor=1,
        applied=5,
        sequence=sequence,
    )
    return msgspec.structs.replace(base, **changes)


def start(worker: WorkerId = FIRST, gpu: int = 0, uid: str = "") -> StartWorker:
    return StartWorker(job=JOB, worker=worker, gpu=gpu, spec=SPEC, generation=1, uid=uid)


def local(worker: WorkerId = FIRST, uid: str = "") -> LocalWorker:
    return LocalWorker(worker=worker, job=JOB, uid=uid, gpu=0)


class Driven:
    """A machine with its clock, and shorthands for what it is told."""

    def __init__(
        self, *workers: WorkerId, adopted: tuple[WorkerId, ...] = (), identity: Identity | None = None
    ) -> None:
        self.now = 1000.0
        self.machine = AgentMachine(SERVER, "agent-1", heartbeat_interval_s=1.0, identity=identity)
        self.first = self.machine.handle(self.now, Started(tuple(map(local, adopted))))
        self.told(Acknowledged(incarnation="c1", sent=0))
        for worker in workers:
            self.told(start(worker))

    def told(self, message: object) -> list[Action]:
        return self.machine.handle(self.now, ControllerMessage(message))  # type: ignore[arg-type]

    def status(self, said: WorkerStatus) -> list[Action]:
        return self.machine.handle(self.now, WorkerStatusReceived(said))

    def hear(self, event: Event) -> list[Action]:
        return self.machine.handle(self.now, event)

    def pass_time(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.machine.handle(self.now, TimePassed())

    def hello(self) -> AgentHello:
        """What a hello would say now."""
        said = sent(self.told(Acknowledged(incarnation="another", sent=0)), AgentHello)
        assert said
        return said[0]


def sent(actions: list[Action], kind: type) -> list:
    return [
        action.message
        for action in actions
        if isinstance(action, SendController | SendWorker) and isinstance(action.message, kind)
    ]


def test_it_says_hello_at_its_start_with_the_workers_it_has_adopted() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0)
    gone = WorkerExit(job=JOB, worker=SECOND, exit_code=0, reason="exit code 0")

    (hello,) = sent(machine.handle(5.0, Started((local(),), (gone,))), AgentHello)

    assert hello == AgentHello(
        server=SERVER,
        incarnation="agent-1",
        workers=(),
        starting=(FIRST,),
        exited=(gone,),
        number=1,
        start=1,
        heartbeat_interval_s=1.0,
        processes=(local(),),
    )


def test_an_event_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidTransition):
        AgentMachine(SERVER, "agent-1", 1.0).handle(0.0, TimePassed())


def test_heartbeats_go_out_once_per_interval_while_the_controller_answers() -> None:
    driven = Driven()
    beats = 0
    for _ in range(20):
        actions = driven.pass_time(0.5)
        beats += len(sent(actions, AgentHeartbeat))
        assert not sent(actions, AgentHello)
        driven.told(Acknowledged(incarnation="c1", sent=0))
    assert beats == 10


def test_a_worker_id_is_started_once_whatever_is_repeated() -> None:
    driven = Driven()
    assert driven.told(start())[-1:] == [StartProcess(start())]
    assert driven.told(start()) == []
    driven.machine.handle(driven.now, ProcessExited(FIRST, 0, "exit code 0"))
    assert driven.told(start()) == []
    assert driven.told(ForgetWorkers(workers=(FIRST,))) == [ForgetWorker(JOB, FIRST)]
    (gone,) = sent(driven.told(start()), WorkerExit)
    assert (gone.worker, gone.exit_code, gone.fault) == (FIRST, None, Fault.LOST), "it would be waited for otherwise"


def test_a_worker_gets_the_newest_order_when_it_first_speaks() -> None:
    driven = Driven(FIRST)
    assert driven.told(order(2, "tcp://a")) == []
    assert sent(driven.status(status(order=0, generation=0)), Order) == [order(2, "tcp://a")]


def test_a_new_order_goes_to_every_local_worker_of_the_job_also_to_those_that_are_not_in_its_roster() -> None:
    driven = Driven(FIRST, SECOND)
    driven.status(status(FIRST))
    driven.status(status(SECOND))
    actions = driven.told(order(2))
    assert actions == [SendWorker(FIRST, order(2)), SendWorker(SECOND, order(2))]


def test_an_order_is_passed_again_when_its_leader_address_is_known_and_never_when_it_is_older() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    assert sent(driven.told(order(2)), Order)
    assert sent(driven.told(order(2, "tcp://a")), Order) == [order(2, "tcp://a")]
    assert driven.told(order(2)) == []
    assert driven.told(order(2, "tcp://a")) == []
    assert driven.told(order(1, "tcp://b")) == []
    assert sent(driven.told(order(2, "tcp://a", broken=(1,))), Order)


def test_a_worker_whose_status_names_an_older_order_gets_the_newest_again() -> None:
    driven = Driven(FIRST)
    driven.status(status(order=1))
    driven.told(order(2, "tcp://a"))
    assert sent(driven.status(status(sequence=2, order=1)), Order) == [order(2, "tcp://a")]
    assert sent(driven.status(status(sequence=3, order=2, generation=2)), Order) == []


def test_an_order_is_repeated_now_and_then_until_the_worker_has_committed_it() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(order(2, "tcp://a"))
    driven.now += 1.0
    assert sent(driven.status(status(sequence=2, order=2)), Order) == []
    driven.now += 1.5
    assert sent(driven.status(status(sequence=3, order=2)), Order) == [order(2, "tcp://a")]
    driven.now += 5
    assert sent(driven.status(status(sequence=4, order=2, generation=2)), Order) == []


def test_a_change_of_phase_is_reported_at_once_and_mere_progress_with_the_heartbeats() -> None:
    driven = Driven(FIRST)
    assert len(sent(driven.status(status(sequence=1)), WorkerReport)) == 1
    driven.now += 0.1
    assert sent(driven.status(status(sequence=2, applied=6)), WorkerReport) == []
    changed = status(sequence=3, applied=6, phase=WorkerPhase.BROKEN)
    assert sent(driven.status(changed), WorkerReport) == [WorkerReport(status=changed)]
    newest = status(sequence=4, applied=7, phase=WorkerPhase.BROKEN)
    assert sent(driven.status(newest), WorkerReport) == []
    assert sent(driven.pass_time(1.0), AgentHeartbeat) == [
        AgentHeartbeat(server=SERVER.server, reports=(WorkerReport(status=newest),))
    ]
    assert sent(driven.pass_time(1.0), AgentHeartbeat) == [AgentHeartbeat(server=SERVER.server)]


def test_a_report_that_was_lost_is_told_again_with_the_heartbeat_after_the_workers_next_one() -> None:
    driven = Driven(FIRST)
    driven.status(status(sequence=1))  # lost on its way
    again = status(sequence=2)
    driven.status(again)
    (beat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert beat.reports == (WorkerReport(status=again),)


def test_every_status_is_answered_and_a_late_one_changes_nothing() -> None:
    driven = Driven(FIRST)
    assert sent(driven.status(status(sequence=7)), StatusReceived) == [StatusReceived(sequence=7)]
    assert driven.status(status(sequence=6, phase=WorkerPhase.STARTING)) == []
    assert driven.hello().workers == (status(sequence=7),)


def test_the_status_of_an_unknown_worker_is_ignored() -> None:
    assert Driven().status(status()) == []


def test_a_stop_is_sigterm_and_after_the_grace_sigkill() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=0.5)
    assert driven.told(stop) == [SignalProcess(FIRST, StopSignal.TERMINATE)]
    assert driven.told(stop) == []
    assert driven.machine.next_deadline() == driven.now + 0.5
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(0.5)


def test_a_worker_that_trains_is_asked_to_save_and_killed_if_it_has_not_ended_in_time() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True, saver=SECOND)
    assert driven.told(stop) == [SendWorker(FIRST, Suspend(job=JOB, saver=SECOND))]
    assert driven.told(stop) == []
    assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(29.0)
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(1.0)


def test_a_worker_that_was_asked_to_save_hears_who_saves_in_its_stead_and_when_that_is_done() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True, saver=FIRST))
    another = StopWorker(job=JOB, worker=FIRST, grace_s=29.0, save=True, saver=SECOND)
    assert driven.told(another) == [SendWorker(FIRST, Suspend(job=JOB, saver=SECOND))]
    assert driven.told(another) == []
    assert driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=29.0, save=True)) == [], (
        "who repeats it knows no better"
    )
    assert SendWorker(FIRST, Suspend(job=JOB, saver=SECOND)) in driven.status(status(sequence=2))
    done = StopWorker(job=JOB, worker=FIRST, grace_s=28.0, save=True, saver=SECOND, saved=7)
    assert driven.told(done) == [SendWorker(FIRST, Suspend(job=JOB, saver=SECOND, saved=7))]
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(28.0)


def test_what_has_been_saved_is_not_taken_back_by_a_controller_that_does_not_know_it() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True, saver=SECOND, saved=7))
    anew = StopWorker(job=JOB, worker=FIRST, grace_s=29.0, save=True, saver=FIRST)
    assert driven.told(anew) == [SendWorker(FIRST, Suspend(job=JOB, saver=FIRST, saved=7))]
    later = msgspec.structs.replace(anew, saved=8)
    assert driven.told(later) == [SendWorker(FIRST, Suspend(job=JOB, saver=FIRST, saved=8))]


def test_who_is_to_be_stopped_at_once_is_not_given_the_time_to_save() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True))
    at_once = StopWorker(job=JOB, worker=FIRST, grace_s=0.5)
    assert driven.told(at_once) == [SignalProcess(FIRST, StopSignal.TERMINATE)]
    assert driven.told(at_once) == []
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(0.5)


@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.READY])
def test_a_worker_without_anything_to_save_is_stopped_at_once(phase: WorkerPhase) -> None:
    driven = Driven(FIRST)
    driven.status(status(phase=phase))
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True)
    assert driven.told(stop) == [SignalProcess(FIRST, StopSignal.TERMINATE)]


def test_an_adopted_worker_is_asked_to_save_until_it_hears_and_stopped_if_it_has_nothing_to_save() -> None:
    driven = Driven(adopted=(FIRST,))
    stop = StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True)
    assert driven.told(stop) == [SendWorker(FIRST, Suspend(job=JOB))]
    assert SendWorker(FIRST, Suspend(job=JOB)) in driven.status(status())
    assert SendWorker(FIRST, Suspend(job=JOB)) in driven.status(status(sequence=2))
    ready = driven.status(status(sequence=3, phase=WorkerPhase.READY))
    assert SignalProcess(FIRST, StopSignal.TERMINATE) in ready
    assert SendWorker(FIRST, Suspend(job=JOB)) not in driven.status(status(sequence=4))


def test_an_end_is_told_with_the_last_phase_and_again_until_it_is_forgotten() -> None:
    driven = Driven(FIRST)
    last = status(phase=WorkerPhase.FINISHED)
    driven.status(last)
    gone = WorkerExit(
        job=JOB,
        worker=FIRST,
        exit_code=0,
        reason="exit code 0",
        phase=WorkerPhase.FINISHED,
        status=last,
        fault=Fault.NONE,
    )
    assert driven.machine.handle(driven.now, ProcessExited(FIRST, 0, "exit code 0")) == [SendController(gone)]
    assert sent(driven.pass_time(1.0), WorkerExit) == [gone]
    assert driven.hello().exited == (gone,)

    again = Driven(FIRST)
    again.machine.handle(again.now, ProcessExited(FIRST, 0, "exit code 0"))
    again.told(ForgetWorkers(workers=(FIRST,)))
    assert sent(again.pass_time(1.0), WorkerExit) == []
    assert again.hello().exited == ()


def test_a_process_that_cannot_be_started_is_an_end_of_its_worker() -> None:
    driven = Driven(FIRST)
    (told,) = sent(
        driven.machine.handle(driven.now, ProcessFailed(FIRST, "cannot be started: no space left")), WorkerExit
    )
    assert (told.exit_code, told.reason) == (None, "cannot be started: no space left")


def test_forgetting_a_worker_that_runs_changes_nothing() -> None:
    driven = Driven(FIRST)
    assert driven.told(ForgetWorkers(workers=(FIRST,))) == []
    assert driven.hello().starting == (FIRST,)


def test_a_log_grows_as_long_as_its_worker_runs() -> None:
    driven = Driven(FIRST)
    request = ReadLog(request="r", job=JOB, worker=FIRST, offset=0, limit=100)
    assert driven.told(request) == [ReadLogPiece(request, growing=True)]
    driven.machine.handle(driven.now, ProcessExited(FIRST, 0, ""))
    assert driven.told(request) == [ReadLogPiece(request, growing=False)]


def test_nothing_is_reported_before_the_controller_has_answered_for_the_first_time() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0)
    machine.handle(0.0, Started((local(),)))
    assert sent(machine.handle(0.0, WorkerStatusReceived(status())), WorkerReport) == []
    assert sent(machine.handle(0.0, ProcessExited(FIRST, 0, "")), WorkerExit) == []


class Silence:
    """An agent that allows its workers 10 s of silence, and one worker."""

    def __init__(self, phase: WorkerPhase = WorkerPhase.TRAINING) -> None:
        self.now = 1000.0
        self.machine = AgentMachine(SERVER, "agent-1", 1.0, worker_silence_s=10.0)
        self.machine.handle(self.now, Started((local(),)))
        self.machine.handle(self.now, WorkerStatusReceived(status(phase=phase)))

    def turn_for(self, seconds: float) -> list[Action]:
        """Turn whenever the machine asks for it, as the loop does, at least once a second."""
        actions: list[Action] = []
        end = self.now + seconds
        while self.now < end:
            deadline = self.machine.next_deadline()
            assert deadline is not None
            self.now = min(end, self.now + 1.0, max(deadline, self.now + 0.001))
            actions += self.machine.handle(self.now, TimePassed())
        return [action for action in actions if isinstance(action, SignalProcess)]


def test_a_worker_that_falls_silent_is_killed_until_it_is_gone_and_its_end_says_why() -> None:
    silence = Silence()
    assert silence.turn_for(9.9) == []
    assert silence.turn_for(0.2) == [SignalProcess(FIRST, StopSignal.KILL)]
    assert silence.turn_for(2.0) == [SignalProcess(FIRST, StopSignal.KILL)] * 2
    silence.machine.handle(silence.now, ControllerMessage(Acknowledged(incarnation="c", sent=0)))
    (end,) = sent(silence.machine.handle(silence.now, ProcessExited(FIRST, -9, "killed by SIGKILL")), WorkerExit)
    assert (end.exit_code, end.reason) == (-9, "said nothing for 10 s")


def test_each_word_of_a_worker_counts_also_one_without_news() -> None:
    silence = Silence()
    for sequence in range(2, 6):
        assert silence.turn_for(9.0) == []
        silence.machine.handle(silence.now, WorkerStatusReceived(status(sequence=sequence)))
    assert silence.turn_for(9.0) == []


@pytest.mark.parametrize(
    ("phase", "exit_code", "fault"),
    [
        (WorkerPhase.FINISHED, 0, Fault.NONE),
        (WorkerPhase.LEFT, 0, Fault.NONE),
        (WorkerPhase.TRAINING, 0, Fault.SCRIPT),
        (WorkerPhase.TRAINING, 1, Fault.SCRIPT),
        (WorkerPhase.FINISHED, 1, Fault.SCRIPT),
        (WorkerPhase.TRAINING, -9, Fault.KILLED),
        (WorkerPhase.TRAINING, None, Fault.KILLED),
    ],
)
def test_an_end_says_whose_fault_it_is(phase: WorkerPhase, exit_code: int | None, fault: Fault) -> None:
    silence = Silence()
    silence.machine.handle(silence.now, ControllerMessage(Acknowledged(incarnation="c", sent=0)))
    silence.machine.handle(silence.now, WorkerStatusReceived(status(sequence=9, phase=phase)))
    (end,) = sent(silence.machine.handle(silence.now, ProcessExited(FIRST, exit_code, "")), WorkerExit)
    assert (end.fault, end.phase) == (fault, phase)


def test_the_end_of_a_worker_that_was_stopped_or_silent_is_not_the_scripts_fault() -> None:
    stopped, silent = Silence(), Silence()
    for each in (stopped, silent):
        each.machine.handle(each.now, ControllerMessage(Acknowledged(incarnation="c", sent=0)))
    stopped.machine.handle(stopped.now, ControllerMessage(StopWorker(job=JOB, worker=FIRST, grace_s=5.0)))
    silent.turn_for(10.1)
    ends = [sent(each.machine.handle(each.now, ProcessExited(FIRST, 1, "")), WorkerExit) for each in (stopped, silent)]
    assert [end.fault for (end,) in ends] == [Fault.STOPPED, Fault.SILENT]


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_worker_whose_training_is_over_ends_by_itself_when_its_job_is_preempted(asked_first: bool) -> None:
    silence = Silence()
    finished = WorkerStatusReceived(status(sequence=9, phase=WorkerPhase.FINISHED))
    stop = ControllerMessage(StopWorker(job=JOB, worker=FIRST, grace_s=30.0, save=True))
    for event in (stop, finished) if asked_first else (finished, stop):
        actions = silence.machine.handle(silence.now, event)
        assert [action for action in actions if isinstance(action, SignalProcess)] == []
    assert silence.turn_for(30.1)[-1:] == [SignalProcess(FIRST, StopSignal.KILL)]
    cancelled = ControllerMessage(StopWorker(job=JOB, worker=FIRST, grace_s=5.0))
    assert silence.machine.handle(silence.now, cancelled) == [SignalProcess(FIRST, StopSignal.TERMINATE)]


def test_a_stop_that_overtakes_its_start_is_answered_and_the_start_is_refused() -> None:
    driven = Driven()
    (gone,) = sent(driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=5.0)), WorkerExit)
    assert (gone.worker, gone.exit_code, gone.fault) == (FIRST, None, Fault.STOPPED)
    assert driven.told(start()) == []
    assert driven.hello().exited == (gone,)
    driven.told(ForgetWorkers(workers=(FIRST,)))
    assert [action for action in driven.told(start()) if isinstance(action, StartProcess)] == []


def test_time_in_which_the_agent_itself_was_stopped_is_nobodys_silence() -> None:
    silence = Silence()
    assert silence.turn_for(6.0) == []
    silence.now += 3600.0
    assert silence.turn_for(3.5) == []
    silence.now += 60.0
    assert silence.turn_for(0.3) == []
    assert silence.turn_for(2.0) == [SignalProcess(FIRST, StopSignal.KILL)] * 2


def test_a_worker_that_still_starts_is_given_more_time_and_one_at_its_end_all_it_wants() -> None:
    starting = Silence(WorkerPhase.STARTING)
    assert starting.turn_for(99.0) == []
    assert starting.turn_for(2.0) != []
    for phase in (WorkerPhase.FINISHED, WorkerPhase.LEFT):
        assert Silence(phase).turn_for(200.0) == []


def test_a_worker_that_has_never_spoken_is_left_alone() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0, worker_silence_s=10.0)
    machine.handle(0.0, Started((local(),)))
    for now in range(1, 1000):
        assert not [a for a in machine.handle(float(now), TimePassed()) if isinstance(a, SignalProcess)]


# --------------------------------------------------------------------------------------------------------------- who it is


def test_each_hello_says_who_the_agent_is_and_which_hello_of_which_start_it_is() -> None:
    driven = Driven(identity=Identity(agent="a1", start=3, cluster="c", highest_job=7))
    assert driven.first[0] == KeepIdentity(Identity(agent="a1", start=3, cluster="c", highest_job=7))
    first = driven.hello()
    assert (first.agent, first.start, first.number, first.cluster, first.highest_job) == ("a1", 3, 2, "c", 7)


def test_the_cluster_that_has_taken_it_in_is_written_down_and_told() -> None:
    driven = Driven(identity=Identity(agent="a1"))
    driven.hello()
    actions = driven.told(Acknowledged(incarnation="c2", sent=0, cluster="mine"))
    assert KeepIdentity(Identity(agent="a1", cluster="mine")) in actions
    assert driven.hello().cluster == "mine"
    assert not [a for a in driven.told(Acknowledged(incarnation="c3", sent=0)) if isinstance(a, KeepIdentity)]
    assert driven.hello().cluster == "mine"


def test_the_greatest_number_of_a_job_is_written_down_before_its_worker_is_started() -> None:
    driven = Driven(identity=Identity(agent="a1"))
    assert driven.told(start()) == [KeepIdentity(Identity(agent="a1", highest_job=1)), StartProcess(start())]
    assert driven.told(start(SECOND)) == [StartProcess(start(SECOND))]
    assert driven.hello().highest_job == 1


def test_how_far_the_history_of_its_cluster_is_it_remembers_and_writes_down_once_in_a_while() -> None:
    driven = Driven(identity=Identity(agent="a1", cluster="mine", newest_event=5))

    def heard(event: int, cluster: str = "mine") -> list[Action]:
        return driven.told(Acknowledged(incarnation="c1", sent=0, cluster=cluster, newest_event=event))

    assert not [a for a in heard(7) if isinstance(a, KeepIdentity)]
    heard(6)
    heard(900, cluster="")  # of one that it is no member of
    kept = [a for _ in range(61) for a in driven.pass_time(1.0) + heard(7) if isinstance(a, KeepIdentity)]
    assert kept == [KeepIdentity(Identity(agent="a1", cluster="mine", newest_event=7))]
    assert driven.hello().newest_event == 7
    joined = driven.told(Acknowledged(incarnation="another", sent=0, cluster="other", newest_event=2))
    assert KeepIdentity(Identity(agent="a1", cluster="other", newest_event=2)) in joined


def test_an_identity_that_could_not_be_written_is_written_later_and_the_operator_is_told_once() -> None:
    driven = Driven()
    assert driven.hear(IdentityWritten("the disk is full")) == [Warn("the disk is full")]
    assert not [a for a in driven.pass_time(9.0) if isinstance(a, KeepIdentity)]
    assert [a for a in driven.pass_time(1.0) if isinstance(a, KeepIdentity)]
    assert driven.hear(IdentityWritten("the disk is full")) == []
    assert [a for a in driven.pass_time(10.0) if isinstance(a, KeepIdentity)]
    driven.hear(IdentityWritten())
    assert not [a for a in driven.pass_time(60.0) if isinstance(a, KeepIdentity)]


def test_a_refusal_is_logged_once_and_the_hello_repeated_slowly() -> None:
    driven = Driven()
    driven.hello()
    refused = HelloRefused(reason="another agent is server s1")
    assert driven.told(refused) == [Warn("the controller refuses this agent: another agent is server s1")]
    assert driven.machine.next_deadline() == driven.now + 5.0
    assert sent(driven.pass_time(5.0), AgentHello)
    assert driven.told(refused) == []
    taken_in = driven.told(Acknowledged(incarnation="c1", sent=0))
    assert Warn("the controller has taken this agent in") in taken_in


def test_a_worker_of_an_earlier_job_with_the_same_number_does_not_keep_a_new_one_from_starting() -> None:
    driven = Driven()
    driven.told(start(uid="old"))
    driven.hear(ProcessExited(FIRST, 0, "exit code 0"))
    new = start(uid="new")
    assert driven.told(new) == [StartProcess(new)]
    assert driven.told(ForgetWorkers(workers=(FIRST,), uids={FIRST: "old"})) == [ForgetWorker(JOB, FIRST, "old")]
    assert [process.uid for process in driven.hello().processes] == ["new"]


def test_a_worker_of_an_earlier_job_that_runs_is_neither_replaced_nor_ordered_nor_stopped_in_the_name_of_the_new_one() -> (
    None
):
    driven = Driven()
    driven.told(start(uid="old"))
    driven.status(status())
    (end,) = sent(driven.told(start(uid="new")), WorkerExit)
    assert (end.uid, "still runs" in end.reason) == ("new", True)
    assert driven.told(msgspec.structs.replace(order(2), uid="new")) == []
    (gone,) = sent(driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=1.0, uid="new")), WorkerExit)
    assert gone.uid == "new"
    assert driven.told(StopWorker(job=JOB, worker=FIRST, grace_s=1.0, uid="old")) != []


def test_a_gpu_that_is_not_there_is_a_refusal_before_anything_is_started() -> None:
    driven = Driven()
    (end,) = sent(driven.told(start(gpu=9)), WorkerExit)
    assert end.reason == "this server has no GPU 9"
    assert driven.hello().processes == ()


HANGS = "could not be started within 60 s: a file system may not answer"


def stuck() -> Driven:
    """An agent that has given up a start, and does not know what comes of it."""
    driven = Driven(FIRST)
    assert driven.hello().starting == (FIRST,)
    driven.told(Acknowledged(incarnation="another", sent=0))
    for _ in range(59):
        assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(1.0)
    actions = driven.pass_time(1.0)
    assert SignalProcess(FIRST, StopSignal.KILL) in actions
    (end,) = sent(actions, WorkerExit)
    assert (end.reason, end.fault) == (HANGS, Fault.SERVER)
    return driven


def test_a_start_whose_answer_does_not_come_counts_as_running_and_is_given_up_with_a_reason() -> None:
    driven = stuck()
    (end,) = sent(driven.told(start(SECOND)), WorkerExit)
    assert end.reason == "an earlier start on GPU 0 has not come to an end: a file system may not answer"


def test_a_worker_of_a_later_job_with_the_name_of_one_whose_start_has_no_end_yet_is_not_started() -> None:
    driven = stuck()
    (end,) = sent(driven.told(start(gpu=1, uid="new")), WorkerExit)
    assert end.reason == f"an earlier start of {FIRST} has not come to an end: a file system may not answer"
    assert (end.uid, end.fault) == ("new", Fault.SERVER)


def test_the_time_in_which_an_agent_was_away_does_not_count_for_a_start() -> None:
    driven = Driven(FIRST)
    deadline = driven.machine.next_deadline()
    assert deadline is not None
    assert deadline <= driven.now + 1.0, "it would not notice its absence"
    assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(100.0)
    for _ in range(59):
        assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(1.0)
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(1.0)


def test_a_start_that_was_given_up_and_comes_to_nothing_frees_its_gpu() -> None:
    driven = stuck()
    assert driven.hear(ProcessFailed(FIRST, "it was stopped before it began")) == []
    assert StartProcess(start(SECOND)) in driven.told(start(SECOND))


def test_a_process_that_begins_after_its_start_was_given_up_is_killed_and_leaves_nothing_behind() -> None:
    driven = stuck()
    driven.told(ForgetWorkers(workers=(FIRST,)))
    assert driven.hear(ProcessStarted(FIRST)) == [SignalProcess(FIRST, StopSignal.KILL)]
    assert SignalProcess(FIRST, StopSignal.KILL) in driven.pass_time(1.0)
    assert driven.hear(ProcessExited(FIRST, -9, "killed by SIGKILL")) == [ForgetWorker(JOB, FIRST, "")]
    assert StartProcess(start(SECOND)) in driven.told(start(SECOND))


def test_heartbeats_name_the_processes_that_run_and_have_not_spoken() -> None:
    driven = Driven(FIRST, SECOND)
    driven.hear(ProcessStarted(FIRST))
    (heartbeat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert heartbeat.starting == (FIRST,)
    driven.status(status())
    (heartbeat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert heartbeat.starting == ()


def test_what_was_said_in_an_earlier_session_starts_nothing() -> None:
    driven = Driven()
    hello = driven.hello()
    before = f"{hello.incarnation}/{hello.number - 1}"
    assert driven.told(Acknowledged(incarnation="another", sent=0, session=before)) == []
    assert driven.told(msgspec.structs.replace(start(), session=before)) == []
    driven.told(Acknowledged(incarnation="another", sent=0, session=hello.session))
    assert driven.told(msgspec.structs.replace(start(), session=before)) == []
    now = msgspec.structs.replace(start(), session=hello.session)
    assert StartProcess(now) in driven.told(now)
    assert sent(driven.told(Acknowledged(incarnation="another", sent=1, session=hello.session)), AgentHello) == []


def test_a_worker_that_has_been_started_has_all_the_time_it_wants_until_it_speaks() -> None:
    driven = Driven(FIRST)
    driven.hear(ProcessStarted(FIRST))
    for _ in range(100):
        assert SignalProcess(FIRST, StopSignal.KILL) not in driven.pass_time(1.0)


def test_a_piece_of_a_log_is_passed_on_when_it_has_been_read() -> None:
    piece = LogPiece(request="r", data=b"x", next_offset=1, end=True)
    assert Driven().hear(LogRead(piece)) == [SendController(piece)]


def test_ends_that_are_never_forgotten_do_not_keep_others_from_being_repeated() -> None:
    workers = [WorkerId(f"digits-1.{number}") for number in range(100)]
    driven = Driven(*workers)
    for worker in workers:
        driven.hear(ProcessExited(worker, 0, ""))
    told = {end.worker for _ in range(2) for end in sent(driven.pass_time(1.0), WorkerExit)}
    assert told == set(workers)
