"""State machine of the training thread. Pure: facts of the thread go in, instructions for it come out.

`worker.machine` combines it with the other parts of a worker.

Theory of operation
-------------------
The thread does one thing at a time (`doing` has the table of possible transitions). The table at the end of this module says
which facts may come during each activity; any other raises InvalidTransition and changes nothing. Between two steps the thread is
at a *boundary*: only there the generation changes, a preempted worker ends, and a checkpoint is begun.

A worker holds one of five parts of the job's state (`position`): the script's initial values; nothing of use, after a received
state has begun to overwrite them; the whole state of a step; this state without the script's registered values, which a joiner
gets one boundary later; or the whole state, on a newcomer that has not proved itself. Only a worker that has the whole state and
has proved itself counts as a holder, and only the state of a holder is saved.

*First steps of a generation* (`generation`). Holders of the state compute, and send it to the joiners meanwhile. A joiner hosts
no virtual worker, receives the state of the step before, and applies the same update. At the next boundary the registered values
follow. (Where loop bodies run on all workers together, a joiner receives the state first, and computes with the
others.) In the second step newcomers host no virtual worker either: each computes a micro-batch of a holder as well,
and all compare the results (`crosscheck`). A newcomer that differs ends, and has changed nothing for the others. From
the third step on all members host, or later if the comparison goes on. If no member has a state, the leader alone
counts as the holder: it loads a checkpoint, or begins anew. It ends instead if the job is known to have a newer
checkpoint than it finds, or if its initial values are gone.

*A failure* takes nothing that has been applied. The thread gives up the step in progress and waits for the next generation.

*Preemption.* At its next boundary the worker ends, saves the state and ends, or stands by until another worker has saved it
(`closing`, `suspension`). A step in progress is given up after a while, since a member that has ended does not send its part.

*Limits* (`limits`). A worker that takes too long alone ends its process. A worker that waits too long for others abandons the
communicator, as after a loss, and ends its process only if the thread does not come out of it. Long before that, it reports for
how long it has waited: if all members do so, the controller gives their generation up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...protocol import exits
from ...protocol.errors import InvalidTransition
from ...protocol.messages import Suspend
from ..builds import Builds, clock_time
from ..events import (
    Abandon,
    Action,
    Arrived,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointMissing,
    CheckpointSaved,
    CollectiveFailed,
    CompleteTransfers,
    Continue,
    Diverged,
    EndDecided,
    EndEpoch,
    EndProcess,
    EnterGeneration,
    EnterLoop,
    Evaluated,
    ExchangeValues,
    ExitScript,
    GiveState,
    GiveUpStep,
    JoinStep,
    LoadCheckpoint,
    LoopEnded,
    PartComputed,
    Progressed,
    ReceiveState,
    Resume,
    RunStep,
    ScriptEnded,
    SharingBegun,
    SharingEnded,
    StateArriving,
    StateTaken,
    StepApplied,
    StepWanted,
    TakeState,
    ThreadFact,
    TransfersCompleted,
    ValuesExchanged,
    Whole,
    WordRead,
    WorkerConfig,
)
from ..membership import machine as ms
from ..reporting import Reporting
from .closing import Closing
from .doing import IN_STEP, TOGETHER, Activity, Doing
from .generation import Generation, Transfers
from .limits import Durations
from .position import Holding, Position
from .saving import Checkpoints
from .stragglers import Stragglers
from .suspension import Suspension

MOUNTED = "is its directory mounted, and the same on all servers?"


class Training:
    """The state machine of the training thread. `handle` takes the thread's facts, other methods decisions of other machines."""

    def __init__(
        self, place: WorkerConfig, membership: ms.Membership, builds: Builds, reporting: Reporting, now: float
    ) -> None:
        self._place = place
        self._me = place.worker
        self._membership = membership
        self._builds = builds
        self._reporting = reporting
        self.durations = Durations(place.limits)
        self._activity = Activity(self.durations, now)
        self._generation = Generation(self._me, place.virtual_workers, place.rehosts)  # in use
        self.stragglers = Stragglers(place.virtual_workers, place.rehosts)
        self.position = Position()
        self.checkpoints = Checkpoints(place.checkpoint_every_s, now, place.checkpoint_directory)
        self.suspension = Suspension(self._me)
        self.batch_factor = 0  # requested by the cluster; 0: none

        self._divided = False  # each worker has a part of the optimizer state
        self._together = False  # all members run all loop bodies together
        self._whole = (
            -1,
            Whole.NOT,
        )  # an applied step, and the purpose for which the divided state after it was brought together
        self._wished_in = -1  # the last step after which this worker has needed the whole state
        self._save_waits = False  # a checkpoint is due, for which the state has to be brought together
        self._proves = False  # newcomers have to compute micro-batches of others, to be compared
        self._boundary_at: float | None = None  # time of the last boundary; None: no duration to measure
        self._shared_in = Doing.SCRIPT  # activity to which the thread returns after waiting for the others
        self._outlives_state = False  # the sharing code goes on even if another worker's state arrives
        self._code_waits: Doing | None = None  # activity of such code whose sharing has failed; None: none
        self._function_waits = False  # whether a function of `run.every` waits after such a failure

        self._note = ""
        self._closing = Closing(
            self._activity,
            self.position,
            self._generation,
            self.checkpoints,
            self.suspension,
            membership,
            reporting,
            self.follow,
            lambda: self._is_whole_here(Whole.TO_SAVE),
        )

    # -- parts of a status

    @property
    def doing(self) -> Doing:
        """Activity of the training thread."""
        return self._activity.doing

    @property
    def leads(self) -> bool:
        """Whether this worker leads the generation in use."""
        return self._generation.leads

    @property
    def note(self) -> str:
        if self._note:
            return self._note
        trouble = self.checkpoints.trouble
        if self.suspension and self.doing not in (Doing.CLOSING, Doing.OVER):
            text = f"preempted, and still {self.doing.value} since {clock_time(self._activity.since)}"
            return f"{text}; {trouble}" if trouble else text
        return "; ".join(note for note in (self._membership.note, self._builds.note, trouble) if note)

    def waits_s(self, now: float) -> float:
        """Return for how many seconds the thread has waited for others, if that is unusually long; else 0."""
        generation = self._generation
        return self._activity.waits_s(now, generation.hosted, with_state=generation.sends_state)

    @property
    def ending(self) -> bool:
        """Whether this worker is certain to end, in whatever generation it is. Then it enters no other."""
        return self._closing.decided

    # -- the doors

    def handle(self, now: float, fact: ThreadFact) -> list[Action]:
        """Handle a fact of the training thread. Raises InvalidTransition, with nothing changed, if the fact cannot come now."""
        doing = self._activity.doing
        method = _TABLE.get((doing, type(fact)))
        if method is not None:
            return method(self, now, fact)
        if isinstance(fact, ScriptEnded):
            return self._on_script_ended(now, fact)
        if doing is Doing.CLOSING:  # the thread waits for the end, or is about to
            return []
        if doing is Doing.OVER and isinstance(fact, LoopEnded):  # at the exit of a script that had to end
            return [Continue()]
        raise InvalidTransition(f"{type(fact).__name__} while the training thread is {doing.value}")

    def follow(self, now: float, decided: list[ms.Action]) -> list[Action]:
        """Carry out decisions of the membership."""
        actions: list[Action] = []
        for action in decided:
            match action:
                case ms.Propose() | ms.Proceed() | ms.Stall() | ms.Leave():
                    pass  # answers to a boundary or a step, taken there
                case ms.SendLeader() | ms.SendFollower():
                    actions.append(action)
                case ms.BuildGroup(roster, attempt, leader_address):
                    actions += self._builds.build(now, roster, attempt, leader_address)
                case ms.DropGroups(generations):
                    actions += self._builds.drop(generations)
                case ms.Abandon():
                    actions += self._abandon(now)
                case ms.Switch():
                    actions += self._enter(now, action)
                case ms.Report():
                    self._reporting.change(now)
        return actions

    def suspend(self, now: float, suspend: Suspend) -> list[Action]:
        """Handle the job's preemption."""
        if self.suspension.ask(now, suspend, self.durations.longest_step_s):
            self._reporting.change(now)
        return self._closing.suspended(now) if self.doing in (Doing.WAITING, Doing.STANDING_BY) else []

    def saved_or_not(self, now: float, fact: CheckpointSaved | CheckpointFailed) -> list[Action]:
        """Handle the result of a checkpoint."""
        return self._closing.saved_or_not(now, fact)

    def not_connected(self, now: float) -> list[Action]:
        """Handle a failure to build a communicator."""
        self._reporting.change(now)
        nothing_to_lose = self.doing is Doing.WAITING and not self.position.whole
        if not (nothing_to_lose and self._builds.out_of_patience(now)):
            return []
        text = f"{self._me} {self._builds.note}: it ends, to be replaced"
        return self._close(now, EndProcess(exits.UNREACHABLE, text), text)

    def acknowledged(self, now: float) -> list[Action]:
        """Handle the agent's acknowledgement of a status."""
        return self._closing.acknowledged(now)

    def deadline(self) -> float | None:
        """Return the time of the next deadline, at which `pass_time` has to be called (Unix time, s); None: none."""
        soonest = self._limit_at()
        for deadline in (self.suspension.give_up_at, self._activity.come_out_by):
            if deadline is not None and (soonest is None or deadline < soonest):
                soonest = deadline
        return soonest

    def was_away(self, now: float, away_s: float) -> None:
        """Extend the limits by a time for which the whole process was stopped: the training thread did not hang then."""
        self._activity.was_away(now, away_s)
        self.suspension.was_away(away_s)

    def pass_time(self, now: float) -> list[Action]:
        """Handle deadlines that have passed."""
        if self.doing in (Doing.STANDING_BY, Doing.CLOSING):
            return self._closing.pass_time(now)
        actions: list[Action] = []
        if self.suspension.give_up_at is not None and now >= self.suspension.give_up_at:
            self.suspension.give_up_at = None
            if self.doing in TOGETHER or self.doing is Doing.COMPUTING:
                self.suspension.stood_up = self.doing in TOGETHER
                actions += self._abandon(now)  # a member that has ended does not send its part of the step
        come_out_by = self._activity.come_out_by
        if come_out_by is not None and now >= come_out_by:
            why = f"does not come out of the communicator of generation {self._membership.generation}, which was abandoned"
            return [*actions, *self._hung(now, why)]
        limit = self._limit_at()
        if limit is None or now < limit:
            return actions
        took = f"for {now - self._activity.since:.0f} s"
        if self.doing in TOGETHER:
            self._note = f"{self.doing.value} {took}, which is too long"
            return [*actions, *self._abandon(now)]
        doing = self.doing.value.replace("a step", f"step {self.position.step}")
        return [*actions, *self._hung(now, f"has been {doing} {took}")]

    # -- the beginning

    def _on_arrived(self, now: float, fact: Arrived) -> list[Action]:
        decided = self._membership.handle(now, ms.Arrived())
        self.position.arrived(fact.total_steps, fact.steps_per_epoch, fact.registers_values, fact.epochs)
        self._proves, self._divided, self._together = fact.proves, fact.divided, fact.together
        self._reporting.samples_per_step = fact.samples_per_step
        self.checkpoints.expect(fact.state_bytes)
        self.durations.expect(fact.state_bytes)
        self._go(now, Doing.WAITING)
        if self.suspension:
            return self._closing.suspended(now)
        return self.follow(now, decided)

    def _enter(self, now: float, switch: ms.Switch) -> list[Action]:
        """Train on in another generation."""
        roster, before = switch.roster, self._generation.roster
        holds = self._generation.enter(roster, switch.holders, self._proves, self._together)
        self.stragglers.enter(roster)
        self._note = ""
        enter = EnterGeneration(
            roster,
            switch.attempt,
            self._generation.rank,
            self._generation.plan,
            self._membership.extends_proofs,
        )
        actions: list[Action] = [*self._builds.used(roster.generation), enter]
        if not holds:
            self._function_waits = False
            self._reporting.times.restarted()
            self._go(now, Doing.RECEIVING)
            return [*actions, ReceiveState(keep_own=self.position.whole)]
        workers_before = len(before.members) if before is not None else 0
        self._reporting.times.switched(roster.generation, workers_before, len(roster.members), switch.recovery)
        if self.position.whole:
            return [*actions, *self._entered(now)]
        if not self.checkpoints.wanted:
            return [*actions, *self._begin_anew(now, "")]
        self._function_waits = False
        self._go(now, Doing.LOADING)
        return [*actions, LoadCheckpoint(roster.generation)]

    def _on_loaded(self, now: float, fact: CheckpointLoaded) -> list[Action]:
        needed = self._place.checkpoint_step
        if needed is not None and fact.step < needed and (fact.damaged is None or fact.damaged < needed):
            because = f" ({fact.reason})" if fact.reason else ""
            return self._refuse(
                now, needed, f"the newest that this worker can read is that of step {fact.step}{because}"
            )
        if self.position.in_loop and fact.epoch < self.position.epoch:
            text = f"its script is in epoch {self.position.epoch}, and the newest checkpoint is of epoch {fact.epoch}"
            return self._close(now, EndProcess(exits.SPOILED, f"{self._me}: {text}: it ends, to be replaced"), text)
        if fact.damaged is not None:
            lost = max(0, fact.damaged - fact.step)
            text = f"the checkpoint of step {fact.damaged} is damaged: back to that of step {fact.step}, {lost} steps are lost"
            self._reporting.notice(now, f"{text} ({fact.reason})")
            self.checkpoints.trouble = text
        self._has_state(now, fact.step, fact.epoch, fact.next_epoch)
        if fact.total_steps is not None:
            self.position.ends_at(fact.total_steps)
        assert self._generation.roster is not None
        if not fact.others:
            self.checkpoints.loaded(fact.step, fact.epoch, self._generation.roster.generation)
        return self._entered(now)

    def _on_missing(self, now: float, fact: CheckpointMissing) -> list[Action]:
        needed = self._place.checkpoint_step
        if needed is not None:
            return self._refuse(now, needed, *_why_none(fact, needed))
        return self._begin_anew(now, fact.reason)

    def _begin_anew(self, now: float, reason: str) -> list[Action]:
        if self.position.holding is not Holding.INITIAL:
            because = f" ({reason})" if reason else ""
            text = f"has lost its initial values to a state that has not come, and there is no checkpoint{because}"
            return self._close(now, EndProcess(exits.SPOILED, f"{self._me} {text}: it ends, to be replaced"), text)
        if reason:
            self.checkpoints.trouble = f"began anew: {reason}"
        self._has_state(now, -1, 0, None)
        return self._entered(now)

    def _refuse(self, now: float, needed: int, found: str, remedy: str = MOUNTED) -> list[Action]:
        text = f"the job has a checkpoint of step {needed} or later; {found}: {remedy}"
        return self._close(now, EndProcess(exits.NO_CHECKPOINT, text), text)

    def _has_state(self, now: float, applied: int, epoch: int, next_epoch: int | None, settled: int = 0) -> None:
        """Take note that the whole state after `applied` has arrived."""
        self._membership.handle(now, ms.StepApplied(applied, settled))
        self.position.has_state(applied, epoch, next_epoch)
        self._reporting.change(now)

    def _entered(self, now: float) -> list[Action]:
        """Begin a generation in which this worker holds the state."""
        give: list[Action] = [GiveState()] if self.position.finished and self._generation.sends else []
        return [*give, *self._boundary(now)]

    # -- between steps

    def _on_wanted(self, now: float, fact: StepWanted) -> list[Action]:
        if self._boundary_at is not None:
            took_s = now - self._boundary_at
            if self.doing is Doing.PAUSED:
                self.durations.pause_ended(took_s)
            else:
                self.durations.step_ended(took_s)
        self._boundary_at = None
        self.position.epoch = fact.epoch
        return self._boundary(now)

    def _boundary(self, now: float) -> list[Action]:
        if self._generation.transfers is Transfers.DUE:
            self._go(now, Doing.EXCHANGING)
            if self._generation.sends or self._generation.joins:
                return [ExchangeValues()]
            return self._on_exchanged(now, ValuesExchanged(self.position.epoch))
        if self.suspension and not self._waits_for_whole():
            return self._closing.suspended(now)
        decided = self._membership.handle(now, ms.BoundaryReached())
        if len(decided) == 1 and type(decided[0]) is ms.Proceed:  # at nearly every boundary
            return self._proceed(now)
        actions = self.follow(now, decided)
        answers = [type(action) for action in decided]
        if ms.Leave in answers:
            return [*actions, *self._closing.close(now, ExitScript(0))]
        if ms.Stall in answers:
            return [*actions, *self._give_up(now, "abandoned")]
        if ms.Proceed in answers:
            return [*actions, *self._proceed(now)]
        return actions

    def _on_exchanged(self, now: float, fact: ValuesExchanged) -> list[Action]:
        partial = self.position.holding is Holding.PARTIAL
        if partial and self.position.is_complete(self._generation.proves):
            self._has_state(now, self.position.step, fact.epoch, self.position.next_epoch)
        else:
            self.position.is_in(fact.epoch)
        self._generation.values_exchanged(self.position.finished)
        return self._boundary(now)

    def _proceed(self, now: float) -> list[Action]:
        """Let the thread continue in the same generation."""
        if self._function_waits:  # the inner one, if code waits, too
            self._function_waits = False
            self._go(now, Doing.SCRIPT)
            return [Resume()]
        if self._code_waits is not None:
            doing, self._code_waits = self._code_waits, None
            self._go(now, doing)
            return [Resume()]
        position, saved = self.position, self._save_if_due(now)
        self._boundary_at = now
        if not position.in_loop:
            position.in_loop, self._boundary_at = True, None
            self._go(now, Doing.SCRIPT)
            return [*saved, EnterLoop(position.epoch)]
        if position.epoch_ends:
            self._go(now, Doing.PAUSED)
            if self.durations.pause_begins():
                self._reporting.change(now)  # a job that is preempted in it has more time to save
            return [*saved, EndEpoch()]
        position.step = position.next_step
        if (wish := self._whole_wanted()) is not Whole.NOT:
            self._wished_in = position.step
        proposed, generation = self._propose(now), self._generation
        self._go(now, Doing.COMPUTING)
        hosting: tuple[int, ...] = ()
        if generation.all_host:
            self.stragglers.hosts(generation.ranges)
            hosting = self.stragglers.wanted if generation.leads else ()
        return [
            *saved,
            RunStep(
                position.step,
                generation.ranges,
                proposed.generation,
                generation.sends_state and not generation.joins,  # a joiner forwards the state as it comes
                self.batch_factor,
                hosting,
                wish,
                proposed.workers,
            ),
        ]

    # -- a divided state, which no worker has whole

    def _is_whole(self, least: Whole) -> bool:
        """Return whether the state after the applied step is undivided, or was brought together on some worker."""
        return not self._divided or (self._whole[0] == self.position.applied and self._whole[1] >= least)

    def _is_whole_here(self, least: Whole) -> bool:
        """Return whether this worker has the whole state after the applied step."""
        roster = self._generation.roster
        alone = roster is not None and len(roster.members) == 1
        asked = alone or self.position.finished or self._wished_in == self.position.applied
        return not self._divided or (asked and self._is_whole(least))

    def _waits_for_whole(self) -> bool:
        """Return whether a preempted job runs another step, after which its divided state is brought together to be saved."""
        position = self.position
        holds = position.holding in (Holding.WHOLE, Holding.UNPROVED)
        to_save = self.checkpoints.wanted and holds and position.next_step > 0 and not position.finished
        durable = self.checkpoints.durable == (position.applied, position.epoch)
        return self._divided and to_save and not durable and not self._is_whole(Whole.TO_END)

    def _whole_wanted(self) -> Whole:
        """Return the purpose for which this worker needs the whole state after the step that begins."""
        roster = self._generation.roster
        if not self._divided or roster is None:
            return Whole.NOT
        if self.suspension and (self.suspension.saves(roster) or self.suspension.stands_by(roster)):
            return Whole.TO_END
        return Whole.TO_SAVE if self._save_waits and self._generation.leads else Whole.NOT

    def _propose(self, now: float) -> ms.Propose:
        stays = self.position.last_step or self._generation.proves
        (propose,) = self._membership.handle(now, ms.StepStarted(last=stays))
        assert isinstance(propose, ms.Propose)
        return propose

    # -- a step

    def _on_part_computed(self, now: float, fact: PartComputed) -> list[Action]:
        self.durations.part_computed(now - self._activity.since, self._generation.hosted)
        self._go(now, Doing.REDUCING)
        return []

    def _on_evaluated(self, now: float, fact: Evaluated) -> list[Action]:
        """Begin another evaluation of the loss, after all workers have ended the last one."""
        if self.doing is Doing.JOINING:
            self._activity.goes_on(now)
        else:
            self._go(now, Doing.COMPUTING)
        return []

    def _on_word(self, now: float, fact: WordRead) -> list[Action]:
        """Begin the update: everything that the other workers send in this step has arrived."""
        self._go(now, Doing.UPDATING)
        generation = self._generation
        if fact.hosting:
            generation.rehost(fact.hosting)
        if fact.times and generation.all_host:
            self.stragglers.heard(now, fact.times)
            if generation.leads and self.stragglers.news:
                self._reporting.notice(now, self.stragglers.news)
            self.stragglers.news = ""
        decided = self._membership.handle(now, ms.WordRead(fact.generation))
        return self.follow(now, decided) if decided else []

    def _on_applied(self, now: float, fact: StepApplied) -> list[Action]:
        if self.position.apply(fact.step, self._generation.joins_now, fact.next_epoch, fact.proof_goes_on):
            self._membership.handle(now, ms.StepApplied(fact.step))
        self._whole = (fact.step, fact.whole)
        self._generation.step_applied(fact.proof_goes_on)
        self._reporting.times.applied(fact.step, now)
        self._activity.become(Doing.SCRIPT)  # timed from the update's beginning, which runs code of the script, too
        return []

    def _on_arriving(self, now: float, fact: StateArriving) -> list[Action]:
        self.position.arrives(fact.applied, fact.next_epoch)
        if fact.total_steps is not None:
            self.position.ends_at(fact.total_steps)
        if self.position.no_step or self._together:
            self._go(now, Doing.TAKING)
            return [TakeState()]
        proposal = self._propose(now).generation
        self._go(now, Doing.JOINING)
        return [JoinStep(self.position.step, self._generation.ranges, proposal)]

    def _on_taken(self, now: float, fact: StateTaken) -> list[Action]:
        if fact.applied + 1 != self.position.step:
            raise InvalidTransition(f"the state of step {fact.applied} came in step {self.position.step}")
        self._membership.handle(now, ms.StateLost())  # the received state replaces the one before
        self._has_state(now, fact.applied, fact.epoch, fact.next_epoch, fact.settled)
        if self.doing is Doing.TAKING:
            self._go(now, Doing.SCRIPT)
        return []

    # -- the script's own code between two steps

    def _on_progressed(self, now: float, fact: Progressed) -> list[Action]:
        if self.suspension and fact.interruptible and not self._divided:  # a divided state is whole between steps only
            return self._closing.suspended(now)
        self._activity.goes_on(now)
        return [Resume()]

    def _on_sharing_begun(self, now: float, fact: SharingBegun) -> list[Action]:
        self._shared_in, self._outlives_state = self.doing, fact.resumes
        self._go(now, Doing.SHARING)
        return []

    def _on_sharing_ended(self, now: float, fact: SharingEnded) -> list[Action]:
        self._go(now, self._shared_in)
        if fact.settled:
            self._membership.handle(now, ms.Settled())
        return []

    def _on_sharing_failed(self, now: float, fact: CollectiveFailed) -> list[Action]:
        if self._outlives_state:
            self._code_waits = self._shared_in
        else:
            self._function_waits = True
        return self._give_up(now, fact.reason)

    def _on_end_decided(self, now: float, fact: EndDecided) -> list[Action]:
        self.position.ends_at(self.position.next_step)
        return []

    # -- failures

    def _on_diverged(self, now: float, fact: Diverged) -> list[Action]:
        return self._close(now, EndProcess(fact.code, fact.reason), fact.reason)

    def _on_failed(self, now: float, fact: CollectiveFailed) -> list[Action]:
        return self._give_up(now, fact.reason)

    def _give_up(self, now: float, reason: str) -> list[Action]:
        """Give up the step in progress, and wait for a generation without the lost member."""
        if self.position.give_up():
            self._membership.handle(now, ms.StateLost())
        decided = self._membership.handle(now, ms.CollectiveFailed(reason))
        give_up = GiveUpStep(restore_buffers=self.doing in IN_STEP)
        self._generation.give_up()
        self._boundary_at = None
        self._go(now, Doing.WAITING)
        actions = [give_up, *self.follow(now, decided)]
        if self.suspension and self.doing is Doing.WAITING:
            actions += self._closing.suspended(now)
        return actions

    def _abandon(self, now: float) -> list[Action]:
        """Abandon the communicator in use, which the thread has to leave within a limit."""
        if self.waits_s(now):
            self.durations.stalled()
        self._activity.abandon(now, self._generation.hosted)
        return [Abandon(self._membership.generation)]

    def _hung(self, now: float, why: str) -> list[Action]:
        text = f"{self._me} {why}, which is too long: it ends, to be replaced"
        return self._close(now, EndProcess(exits.HUNG, text), text)

    # -- checkpoints

    def _save_if_due(self, now: float) -> list[Action]:
        if not self._generation.leads or not (self._save_waits or self.checkpoints.due(now)):
            return []
        self._save_waits = not self._is_whole_here(Whole.TO_SAVE)
        if self._save_waits:
            return []
        return [self._closing.save(now, self.position.epoch)] if self.position.next_step else []

    # -- the end

    def _on_loop_ended(self, now: float, fact: LoopEnded) -> list[Action]:
        if self._generation.sends_state:
            self.position.epoch = fact.epochs
            self._go(now, Doing.SENDING)
            return [CompleteTransfers()]
        return self._closing.finish(now, fact.epochs)

    def _on_sent(self, now: float, fact: TransfersCompleted) -> list[Action]:
        return self._closing.finish(now, self.position.epoch)

    def _on_script_ended(self, now: float, fact: ScriptEnded) -> list[Action]:
        if self.doing is Doing.OVER:
            return [Continue()]
        if self.doing is Doing.CLOSING:
            return []
        return self._close(now, Continue(), f"the script ended without having finished: {fact.reason}")

    def _close(self, now: float, end: Action, note: str) -> list[Action]:
        """End with the action `end` before the script has finished its loop. `note`: the reason, for the last status."""
        actions = self._closing.close(now, end, unfinished=True)
        self._note = note
        return actions

    # -- time

    def _go(self, now: float, doing: Doing) -> None:
        self._activity.go(now, doing)

    def _limit_at(self) -> float | None:
        """Return when the present activity has taken too long (Unix time, s); None: it has no limit."""
        again_at = None
        if self.doing is Doing.STANDING_BY and (roster := self._generation.roster) is not None:
            again_at = self.suspension.again_at(roster)
        return self._activity.limit_at(self._generation.hosted, again_at)


def _why_none(fact: CheckpointMissing, needed: int) -> tuple[str, str]:
    """Return why no checkpoint can be loaded, and the remedy."""
    if fact.damaged is not None and fact.damaged >= needed:
        remedy = "put one back from a backup, or cancel the job and submit it anew"
        return f"all that are there are damaged ({fact.reason})", remedy
    found = f"this worker finds none in {fact.where}" if fact.where else "this worker finds none"
    return fact.reason or found, MOUNTED


_Method = Callable[[Training, float, Any], list[Action]]
_TABLE: dict[tuple[Doing, type], _Method] = {
    (Doing.STARTING, Arrived): Training._on_arrived,
    (Doing.STARTING, LoopEnded): Training._on_loop_ended,
    (Doing.LOADING, CheckpointLoaded): Training._on_loaded,
    (Doing.LOADING, CheckpointMissing): Training._on_missing,
    (Doing.LOADING, Diverged): Training._on_diverged,
    (Doing.RECEIVING, StateArriving): Training._on_arriving,
    (Doing.RECEIVING, CollectiveFailed): Training._on_failed,
    (Doing.RECEIVING, Diverged): Training._on_diverged,
    (Doing.TAKING, StateTaken): Training._on_taken,
    (Doing.TAKING, CollectiveFailed): Training._on_failed,
    (Doing.JOINING, StateTaken): Training._on_taken,
    (Doing.JOINING, Evaluated): Training._on_evaluated,
    (Doing.JOINING, WordRead): Training._on_word,
    (Doing.JOINING, CollectiveFailed): Training._on_failed,
    (Doing.JOINING, Diverged): Training._on_diverged,
    (Doing.COMPUTING, PartComputed): Training._on_part_computed,
    (Doing.COMPUTING, CollectiveFailed): Training._on_failed,
    (Doing.COMPUTING, Diverged): Training._on_diverged,
    (Doing.COMPUTING, LoopEnded): Training._on_loop_ended,
    (Doing.REDUCING, Evaluated): Training._on_evaluated,
    (Doing.REDUCING, WordRead): Training._on_word,
    (Doing.REDUCING, CollectiveFailed): Training._on_failed,
    (Doing.REDUCING, Diverged): Training._on_diverged,
    (Doing.REDUCING, LoopEnded): Training._on_loop_ended,
    (Doing.UPDATING, StepApplied): Training._on_applied,
    (Doing.UPDATING, Diverged): Training._on_diverged,
    (Doing.UPDATING, LoopEnded): Training._on_loop_ended,
    (Doing.EXCHANGING, ValuesExchanged): Training._on_exchanged,
    (Doing.EXCHANGING, CollectiveFailed): Training._on_failed,
    (Doing.SCRIPT, StepWanted): Training._on_wanted,
    (Doing.SCRIPT, LoopEnded): Training._on_loop_ended,
    (Doing.SCRIPT, CollectiveFailed): Training._on_failed,
    (Doing.SCRIPT, Diverged): Training._on_diverged,
    (Doing.PAUSED, StepWanted): Training._on_wanted,
    (Doing.PAUSED, Diverged): Training._on_diverged,
    (Doing.PAUSED, LoopEnded): Training._on_loop_ended,
    (Doing.SENDING, TransfersCompleted): Training._on_sent,
    (Doing.SHARING, SharingEnded): Training._on_sharing_ended,
    (Doing.SHARING, CollectiveFailed): Training._on_sharing_failed,
    **{
        (doing, fact): method
        for doing in (Doing.SCRIPT, Doing.PAUSED)
        for fact, method in (
            (Progressed, Training._on_progressed),
            (SharingBegun, Training._on_sharing_begun),
            (EndDecided, Training._on_end_decided),
        )
    },
}
