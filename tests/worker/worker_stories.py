"""One worker's state machine with the events of its shell; instructions and other actions are kept apart."""

from __future__ import annotations

from typing import Any, TypeVar

from elasticd.protocol.messages import Commit, Order, Prepare, Suspend
from elasticd.protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId, WorkerStatus
from elasticd.worker import events as e
from elasticd.worker.machine import WorkerMachine

A = TypeVar("A")

ME, OTHER, THIRD = WorkerId("job.1"), WorkerId("job.2"), WorkerId("job.3")
STEPS, STEPS_PER_EPOCH = 12, 4


def roster(generation: int, *workers: WorkerId, leader: WorkerId | None = None) -> Roster:
    members = tuple(Member(worker=w, gpu=GpuAddress(server=ServerId("s"), index=i)) for i, w in enumerate(workers))
    return Roster(generation=generation, members=members, leader=leader or workers[0])


class Story:
    """A state machine with a clock; `instructions` are those that the training thread has not carried out yet."""

    def __init__(self, **place: Any) -> None:
        self.now = 1000.0
        known: dict[str, Any] = {"virtual_workers": 4, "checkpoint_every_s": 600.0, **place}
        self.machine = WorkerMachine(
            e.WorkerConfig(job=JobId("job"), worker=ME, pid=1, address="me", **known), self.now
        )
        self.instructions: list[e.Instruction] = []
        self.others: list[e.Action] = []
        self.saves: list[e.SaveCheckpoint] = []
        self.acknowledges = True

    def tell(self, event: e.Event) -> None:
        for action in self.machine.handle(self.now, event):
            if isinstance(action, e.Instruction):
                self.instructions.append(action)
                if isinstance(action, e.SaveCheckpoint):
                    self.saves.append(action)
                continue
            self.others.append(action)
            if isinstance(action, e.SendStatus) and self.acknowledges:
                self.tell(e.StatusAcknowledged(action.status.sequence))

    def take(self) -> list[e.Instruction]:
        taken, self.instructions = self.instructions, []
        return taken

    def all(self, kind: type[A]) -> list[A]:
        return [action for action in self.others if isinstance(action, kind)]

    @property
    def status(self) -> WorkerStatus:
        """The newest status, once it is due."""
        self.wait(0.5)
        return self.all(e.SendStatus)[-1].status

    def wait(self, seconds: float) -> None:
        """Time passes, and the state machine is woken when it requests that."""
        end = self.now + seconds
        for _ in range(100_000):
            at = self.machine.next_deadline()
            if at > end:
                self.now = end
                return
            self.now = max(self.now, at)
            self.tell(e.WorkerTick())
        raise AssertionError(f"time stands still at {self.now}")

    # -- usual histories

    def order(self, roster: Roster, broken: tuple[int, ...] = ()) -> None:
        address = "" if roster.leader == ME else f"address of {roster.leader}"
        self.tell(e.OrderReceived(Order(job=self.job, roster=roster, leader_address=address, broken=broken)))

    @property
    def job(self) -> Any:
        return "job"

    def arrive(self, registers_values: bool = False) -> None:
        self.tell(e.Arrived(STEPS, STEPS_PER_EPOCH, 8, registers_values))

    def alone(self, generation: int = 1) -> list[e.Instruction]:
        """A worker alone in a new generation."""
        self.order(roster(generation, ME))
        build = self.all(e.BuildGroup)[-1]
        self.tell(e.GroupBuilt(generation, build.attempt))
        return self.take()

    def follows(self, generation: int, *workers: WorkerId, holders: tuple[WorkerId, ...]) -> list[e.Instruction]:
        """A member of a generation that another worker leads, by messages."""
        return self.follow(roster(generation, *workers), holders)

    def follow(self, roster: Roster, holders: tuple[WorkerId, ...]) -> list[e.Instruction]:
        generation = roster.generation
        self.order(roster)
        self.tell(e.PeerSaid(Prepare(job=self.job, generation=generation, attempt=1, base=0, holders=holders)))
        self.tell(e.GroupBuilt(generation, 1))
        self.tell(e.PeerSaid(Commit(job=self.job, generation=generation, attempt=1)))
        return self.take()

    def trains_alone(self, applied: int = -1) -> None:
        """A worker that has applied that step, in the script's own code. -1: it has started from scratch."""
        self.arrive()
        self.alone()
        self.tell(e.CheckpointMissing())
        assert self.take() == [e.EnterLoop(0)]
        for _ in range(applied + 1):
            self.step()

    def joins(self, applied: int = 4, registers_values: bool = False) -> None:
        """A joiner that has taken part in the step after `applied`, whose state it received, in its own code."""
        self.arrive(registers_values)
        self.follows(3, OTHER, ME, holders=(OTHER,))
        self.tell(e.StateArriving(applied))
        self.tell(e.StateTaken(applied, 0))
        self.tell(e.WordRead(0))
        self.tell(e.StepApplied(applied + 1))
        self.take()

    def begin_step(self) -> e.RunStep:
        """The script requests batches until there is one."""
        for _ in range(3):
            self.tell(e.StepWanted(self.epoch))
            (*_, last) = self.take()
            if isinstance(last, e.RunStep):
                return last
            assert isinstance(last, e.EndEpoch), last
            self.epoch += 1
        raise AssertionError("the job has no step left")

    epoch = 0

    def step(self, takes_s: float = 0.1) -> int:
        run = self.begin_step()
        self.now += takes_s
        self.tell(e.PartComputed())
        self.tell(e.WordRead(run.proposal))
        self.tell(e.StepApplied(run.step))
        return run.step

    def suspend(self, saver: WorkerId | None = None, saved: int | None = None, stand_by: bool = True) -> None:
        self.tell(e.SuspendReceived(Suspend(job=self.job, saver=saver, stand_by=stand_by, saved=saved)))
