"""All decisions of a worker, behind one method `handle`: facts in, actions out (design: worker-runtime 4). Pure.

Theory of operation
-------------------
`WorkerMachine.handle` takes facts from other processes, from helper threads and from the training thread, one at a time.
It is composed of parts that know nothing of sockets, threads and tensors:

* `membership`: orders in, switches of generation out; the protocol among the workers of a job;
* `builds`: the communicators beside the one in use: the wanted attempt, and its limit;
* `training`: the next instruction of the training thread, the worker that saves, steps that run again, limits of time;
* `reporting`: the time and the contents of the next status.

Shells (`driver`, `control`, `trainer`, `run`; a simulated world) carry the actions out, in the order in which they come:

* `SendLeader`, `SendFollower`, `SendStatus`: send. A message that cannot be sent is lost: the machine repeats those that matter.
* `BuildGroup`: begin in the background; report GroupBuilt or GroupFailed, however late. `DropGroup`: destroy the communicator, or
  cancel its building, and report nothing. `CloseRendezvous`: only at the leader of the attempt.
* `Abandon`: make the training thread leave the communicator of that generation; it then reports CollectiveFailed, unless it has
  left by itself.
* `RetireGroup`: close the connections of the communicator in use; the training thread does not use it any more.
* `EndProcess`: at once.
* an `Instruction`: put it into the training thread's queue. The thread carries instructions out one after the other, and waits
  when there is none. `EnterGeneration` also makes that generation's communicator the one that `Abandon` means, from this moment
  on.

Answers of the training thread
------------------------------
====================  ==============================================================================================
instruction           facts that the thread reports, in this order
====================  ==============================================================================================
(none yet)            Arrived when the script comes to its loop
EnterGeneration       none: the next instruction follows
LoadCheckpoint        CheckpointLoaded or CheckpointMissing
EnterLoop             StepWanted when the script asks for a batch; LoopEnded
RunStep               PartComputed, WordRead, StepApplied; StepWanted when the script asks for more. CollectiveFailed in
                      place of either of the first two (also after PartComputed). Before WordRead, for each further
                      evaluation of the loss that the optimizer needs: Evaluated, PartComputed
EndEpoch              StepWanted in the next epoch; LoopEnded
ReceiveState          StateArriving as soon as the header is there, before any of this worker's values is overwritten;
                      the answer to it is JoinStep or TakeState; CollectiveFailed
JoinStep              StateTaken, WordRead, StepApplied, StepWanted at once; CollectiveFailed in place of either of the first two
TakeState             StateTaken, StepWanted at once; CollectiveFailed
GiveState             none: the next instruction follows
ExchangeValues        ValuesExchanged; CollectiveFailed
GiveUpStep            none: the thread waits
SaveCheckpoint        CheckpointSaved or CheckpointFailed, from any thread; the thread waits if nothing follows
CompleteTransfers     TransfersCompleted, also when the communicator fails
Continue              none: the script goes on after its loop, or its process to its end
ExitScript            none: SystemExit with the code
====================  ==============================================================================================

In a step all members of a generation take part, joiners too: it completes when each has reported PartComputed (a joiner: has its
state), and its control word is the greatest proposal. CollectiveFailed means that nothing of the instruction has been applied.
Diverged may come in place of WordRead in a RunStep, and of StepApplied, and when an error ends a newcomer's script; the thread
then waits for its process to end.
LoopEnded may also come in the middle of a step, where a script leaves its loop by `break`; ScriptEnded at any time. After either
the thread waits for Continue.

TimePassed has to come at `next_deadline`; a status is sent only then. If it comes `AWAY_S` later than that, the whole process was
stopped in between: that time does not count for the training thread. A worker that is over continues to report, since its agent
may be new.
"""

from __future__ import annotations

from ..protocol import times
from ..protocol.model import WorkerPhase
from .builds import Builds
from .events import (
    Action,
    BatchesChanged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointWanted,
    Event,
    GroupBuilt,
    GroupFailed,
    MetricsReported,
    Noticed,
    OperatorsTraced,
    OrderReceived,
    PartComputed,
    PeerSaid,
    SendStatus,
    StatusAcknowledged,
    StepApplied,
    StepWanted,
    SuspendReceived,
    WordRead,
    WorkerConfig,
    WorkerTick,
)
from .membership import machine as ms
from .reporting import Reporting
from .training.machine import Training

_OF_STEP = (StepWanted, StepApplied, WordRead, PartComputed)  # facts of every step


class WorkerMachine:
    """The state machine of one worker."""

    def __init__(self, place: WorkerConfig, now: float, membership: ms.Membership | None = None) -> None:
        """membership: one with a history; None: that of a worker that has received no message yet."""
        times.check()
        self.job = place.job
        self._builds = Builds(place.worker, place.device)
        prepare_s = self._builds.timeout_s + times.PREPARE_MARGIN_S
        self._membership = membership or ms.Membership(place.job, place.worker, prepare_s)
        self._reporting = Reporting(place, self._membership, now)
        self._training = Training(place, self._membership, self._builds, self._reporting, now)

    @property
    def phase(self) -> WorkerPhase:
        return self._membership.phase

    @property
    def generation(self) -> int:
        """Committed generation, 0 before the first."""
        return self._membership.generation

    @property
    def applied(self) -> int | None:
        """The step whose whole state this worker has; None: none."""
        return self._membership.applied

    @property
    def sizes(self) -> dict[str, int]:
        """Number of entries in each table, for a monitor to check that none grows without limit."""
        return {**self._membership.sizes, "communicators being built": len(self._builds)}

    def next_deadline(self) -> float:
        """Return when `handle` has to be called with `WorkerTick` (Unix time, s)."""
        soonest = self._reporting.deadline
        for deadline in (self._membership.next_deadline(), self._builds.deadline(), self._training.deadline()):
            if deadline is not None and deadline < soonest:
                soonest = deadline
        return soonest

    def handle(self, now: float, event: Event) -> list[Action]:
        """Handle one fact. Raises InvalidTransition, with nothing changed, for a fact that only a bug can report."""
        if isinstance(event, _OF_STEP):
            return self._training.handle(now, event)
        match event:
            case OrderReceived() | PeerSaid() | GroupBuilt() if self._training.ending:
                return []  # no other worker may count on it in another generation
            case OrderReceived(order) if order.batch_factor > self._training.batch_factor:
                self._training.batch_factor = order.batch_factor
                return self.handle(now, event)
            case OrderReceived() | PeerSaid():
                return self._training.follow(now, self._membership.handle(now, event))
            case GroupBuilt(generation, attempt):
                dropped = self._builds.built(generation, attempt)
                return dropped or self._training.follow(now, self._membership.handle(now, event))
            case GroupFailed(generation, attempt, reason):
                dropped = self._builds.failed(now, generation, attempt, reason)
                if not dropped:
                    return []  # it has been overtaken
                told = self._training.follow(now, self._membership.handle(now, event))
                return [*dropped, *told, *self._training.not_connected(now)]
            case SuspendReceived(suspend):
                return self._training.suspend(now, suspend)
            case CheckpointWanted(step):
                self._training.checkpoints.wanted_now(now, step)
                return []
            case StatusAcknowledged(sequence):
                self._reporting.acknowledged(sequence)
                return self._training.acknowledged(now)
            case CheckpointSaved() | CheckpointFailed():
                return self._training.saved_or_not(now, event)
            case MetricsReported(metrics):
                self._reporting.measured(metrics)
                self._reporting.change(now)
                return []
            case BatchesChanged(changes, ceiling):
                self._reporting.batch_changed(changes, ceiling)
                self._reporting.change(now)
                return []
            case Noticed(text):
                self._reporting.notice(now, text)
                return []
            case OperatorsTraced(agnostic, text):
                self._reporting.hardware_agnostic = agnostic
                if self._training.leads:
                    self._reporting.notice(now, text)
                self._reporting.change(now)
                return []
            case WorkerTick():
                return self._pass_time(now)
            case _:
                return self._training.handle(now, event)

    def _pass_time(self, now: float) -> list[Action]:
        late_s = now - self.next_deadline()
        if late_s >= times.AWAY_S:
            self._training.was_away(now, late_s)
        actions: list[Action] = []
        for generation, attempt in self._builds.overdue(now):
            reason = f"it did not stand within {self._builds.timeout_s:.0f} s"
            actions += self.handle(now, GroupFailed(generation, attempt, reason))
        deadline = self._membership.next_deadline()
        if deadline is not None and now >= deadline:
            actions += self._training.follow(now, self._membership.handle(now, ms.WorkerTick()))
        actions += self._training.pass_time(now)
        if now >= self._reporting.deadline:
            actions.append(self._status(now))
        return actions

    def _status(self, now: float) -> SendStatus:
        training = self._training
        checkpoints = training.checkpoints
        status = self._reporting.status(
            now,
            training.position.epoch,
            training.position.total_steps,
            training.durations.longest_step_s,
            checkpoints.lasts_s,
            checkpoints.saved,
            checkpoints.saved_generation,
            checkpoints.file,
            training.waits_s(now),
            training.suspension.failures,
            self._builds.failing_s(now),
            training.stragglers.slow() if training.leads else (),
            training.stragglers.exchange_s,
            training.stragglers.paces if training.leads else {},
            training.note,
        )
        return SendStatus(status)
