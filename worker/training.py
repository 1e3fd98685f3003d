"""What the training thread is to do next. Pure: facts of that thread in, instructions for it out (`machine` has the whole).

Theory of operation
-------------------
The thread does one thing at a time (`Doing`), and the table at the end says which facts may come meanwhile; any other raises
InvalidTransition and changes nothing. Another table says what it may do next. Between two steps it is at a *boundary*: the only
place where the generation changes, where a preempted worker ends, and where a checkpoint is begun.

What the worker has of the job's state is one of four things (`Holding`): the script's initial values; nothing of use, after a
state has begun to overwrite them; the whole state of a step; or that but for the script's registered values, which a joiner
gets one boundary later. Only who has the whole counts as a holder, and only that is saved.

*First step of a generation.* Who holds the state computes, and sends it to the joiners meanwhile; a joiner hosts nothing,
receives the state of the step before, and applies the same update. At the next boundary the registered values follow, and from
then on all host. A holder that is alone without a state is the first of its job: it loads a checkpoint, or begins anew; not if
the job is known to have a newer checkpoint than it finds, nor if its initial values are gone: then it ends, to be replaced.

*A failure* takes nothing that has been applied. The thread gives up the step in progress and waits for the next generation.

*Preemption.* At its next boundary the worker ends, saves the state and ends, or stands by until somebody has saved it
(`suspension`). A step in progress is given up after a while: a member that has ended does not send its part.

*Limits* are those of `limits`. Who takes too long alone ends its process; who waits too long for others abandons the
communicator, as after a loss, and ends its process only if it does not come out of it. Long before that it tells for how long it
has waited: if all members do, the controller gives their generation up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from ..protocol import exits, times
from ..protocol.errors import InvalidTransition
from ..protocol.messages import Suspend
from ..protocol.model import Roster
from . import membership as ms
from .builds import Builds, clock_time
from .events import (
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
    EndEpoch,
    EndProcess,
    EnterGeneration,
    EnterLoop,
    ExchangeValues,
    ExitScript,
    GiveState,
    GiveUpStep,
    JoinStep,
    LoadCheckpoint,
    LoopEnded,
    PartComputed,
    Place,
    ReceiveState,
    RetireGroup,
    RunStep,
    SaveCheckpoint,
    ScriptEnded,
    StateArriving,
    StateTaken,
    StepApplied,
    StepWanted,
    TakeState,
    ThreadFact,
    TransfersCompleted,
    ValuesExchanged,
    WordRead,
)
from .hosting import assign
from .limits import Durations
from .reporting import Reporting
from .suspension import Suspension
from .topology import Transfer, plan_transfers


class Doing(enum.Enum):
    """What the training thread is doing."""

    STARTING = "preparing model and data"
    WAITING = "waiting for a generation"
    LOADING = "reading a checkpoint"
    RECEIVING = "waiting for the state"
    TAKING = "receiving the state"
    JOINING = "receiving the state in a step"
    COMPUTING = "computing its part of a step"
    REDUCING = "waiting for the others in a step"
    UPDATING = "applying a step"
    EXCHANGING = "waiting for the others' registered values"
    SCRIPT = "running the script's own code between two steps"
    SENDING = "sending the state to joiners"
    SAVING = "writing a checkpoint"
    STANDING_BY = "standing by until the state is saved"
    CLOSING = "waiting for its last report to arrive"
    OVER = "over"


ALONE = (Doing.LOADING, Doing.UPDATING, Doing.SCRIPT, Doing.SAVING)  # and may take as long as a pause
TOGETHER = (Doing.RECEIVING, Doing.TAKING, Doing.JOINING, Doing.REDUCING, Doing.EXCHANGING, Doing.SENDING)
WITH_STATE = (Doing.TAKING, Doing.JOINING, Doing.SENDING)
IN_STEP = (Doing.COMPUTING, Doing.REDUCING)

# From a boundary. A step that was reached in a generation that is broken meanwhile is not begun: the thread waits (again).
_AFTER_BOUNDARY = frozenset(
    {Doing.SCRIPT, Doing.COMPUTING, Doing.WAITING, Doing.SAVING, Doing.STANDING_BY, Doing.CLOSING}
)
_TRANSITIONS: dict[Doing, frozenset[Doing]] = {
    Doing.STARTING: frozenset({Doing.WAITING, Doing.CLOSING}),
    Doing.WAITING: _AFTER_BOUNDARY | {Doing.LOADING, Doing.RECEIVING},
    Doing.LOADING: _AFTER_BOUNDARY,
    Doing.RECEIVING: frozenset({Doing.TAKING, Doing.JOINING, Doing.WAITING, Doing.CLOSING}),
    Doing.TAKING: frozenset({Doing.SCRIPT, Doing.WAITING, Doing.CLOSING}),
    Doing.JOINING: frozenset({Doing.UPDATING, Doing.WAITING, Doing.CLOSING}),
    Doing.COMPUTING: frozenset({Doing.REDUCING, Doing.WAITING, Doing.SENDING, Doing.CLOSING}),
    Doing.REDUCING: frozenset({Doing.UPDATING, Doing.WAITING, Doing.SENDING, Doing.CLOSING}),
    Doing.UPDATING: frozenset({Doing.SCRIPT, Doing.SENDING, Doing.CLOSING}),
    Doing.EXCHANGING: _AFTER_BOUNDARY | {Doing.RECEIVING},
    Doing.SCRIPT: _AFTER_BOUNDARY | {Doing.EXCHANGING, Doing.RECEIVING, Doing.SENDING},
    Doing.SENDING: frozenset({Doing.SAVING, Doing.CLOSING}),
    Doing.SAVING: frozenset({Doing.STANDING_BY, Doing.CLOSING}),
    Doing.STANDING_BY: frozenset({Doing.SAVING, Doing.CLOSING}),
    Doing.CLOSING: frozenset({Doing.OVER}),
    Doing.OVER: frozenset(),
}

SAVES_UNDER_WAY = 3  # one is written, one waits for its turn, one is copied


class Holding(enum.Enum):
    """What this worker has of the job's state."""

    INITIAL = "the script's initial values"
    SPOILED = "nothing of use"
    PARTIAL = "a state without its registered values"
    WHOLE = "a state"


class Transfers(enum.Enum):
    """Of the state, in the generation in use."""

    NONE = "nobody needs the state"
    PENDING = "the first step brings the state to joiners"
    DUE = "the registered values follow"


class Training:
    """The machine of the training thread. `handle` takes its facts; the other methods what others have decided."""

    def __init__(
        self, place: Place, membership: ms.Membership, builds: Builds, reporting: Reporting, now: float
    ) -> None:
        self._place = place
        self._me = place.worker
        self._membership = membership
        self._builds = builds
        self._reporting = reporting
        self.durations = Durations(place.limits)
        self.doing = Doing.STARTING
        self.holding = Holding.INITIAL
        self._since = now  # it does what it does

        # where the job is
        self.total_steps: int | None = None
        self._steps_per_epoch = 1
        self._registers_values = False
        self.epoch = 0  # of the script's loop; before it has begun, of the state
        self._in_loop = False
        self._next_step = 0
        self._step = -1  # in progress, or applied last
        self._boundary_at: float | None = None  # the last one; None: nothing to measure from
        self._paused = False  # since then the script has run between two epochs

        # the generation in use
        self._roster: Roster | None = None
        self._rank = 0
        self._plan: tuple[Transfer, ...] = ()
        self._transfers = Transfers.NONE
        self._ranges: tuple[range, ...] = ()

        # checkpoints
        every_s = place.checkpoint_every_s
        self._save_at = now + every_s if every_s is not None else float("inf")
        self._saves_begun = 0
        self._saving: dict[int, tuple[SaveCheckpoint, float]] = {}  # by number, the newest last: since when
        self._trouble = ""  # with the last one
        self.saved: int | None = None
        self.saved_generation = 0  # whose checkpoint that is now
        self._durable: tuple[int, int] | None = None  # step and epoch of the newest checkpoint

        # the end
        self.suspension = Suspension(self._me)
        self._come_out_by: float | None = None  # of an abandoned communicator
        self._end: Action = Continue()
        self._last_sequence = 0
        self._note = ""

    # -- what a status shows

    @property
    def note(self) -> str:
        if self._note:
            return self._note
        if self.suspension and self.doing not in (Doing.CLOSING, Doing.OVER):
            trouble = f"; {self._trouble}" if self._trouble else ""
            return f"preempted, and still {self.doing.value} since {clock_time(self._since)}{trouble}"
        return "; ".join(note for note in (self._membership.note, self._builds.note, self._trouble) if note)

    def waits_s(self, now: float) -> float:
        """For so long it has waited for the others, which is longer than it should where none of them computes; 0: it has not."""
        if self.doing not in TOGETHER or self._come_out_by is not None:
            return 0.0
        waited_s = now - self._since
        return waited_s if waited_s >= self.durations.stall_limit_s(self._hosted, self._with_state) else 0.0

    @property
    def _with_state(self) -> bool:
        """Is it the state that has to arrive, from or at this worker?"""
        return self.doing in WITH_STATE or (self._transfers is Transfers.PENDING and self._sends)

    @property
    def ending(self) -> bool:
        """Is it decided that this worker ends, in whatever generation it is? Then it enters no other."""
        suspended = self.doing is Doing.SAVING and bool(self.suspension)
        return suspended or self.doing in (Doing.STANDING_BY, Doing.CLOSING, Doing.OVER)

    # -- the doors

    def handle(self, now: float, fact: ThreadFact) -> list[Action]:
        """Take a fact of the training thread. Raises InvalidTransition, with nothing changed, if it cannot come now."""
        if isinstance(fact, ScriptEnded):
            return self._on_script_ended(now, fact)
        if self.doing is Doing.CLOSING:  # the thread waits for the end, or is about to
            return []
        if self.doing is Doing.OVER and isinstance(fact, LoopEnded):  # at the exit of a script that had to end
            return [Continue()]
        method = _TABLE.get((self.doing, type(fact)))
        if method is None:
            raise InvalidTransition(f"{type(fact).__name__} while the training thread is {self.doing.value}")
        return method(self, now, fact)

    def follow(self, now: float, decided: list[ms.Action]) -> list[Action]:
        """Carry out what the membership has decided."""
        actions: list[Action] = []
        for action in decided:
            match action:
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
                case ms.Propose() | ms.Proceed() | ms.Stall() | ms.Leave():
                    pass  # answers to a boundary or a step, taken there
        return actions

    def suspend(self, now: float, suspend: Suspend) -> list[Action]:
        """The job is preempted."""
        if self.suspension.ask(now, suspend, self.durations.longest_step_s):
            self._reporting.change(now)
        return self._end_suspended(now) if self.doing in (Doing.WAITING, Doing.STANDING_BY) else []

    def saved_or_not(self, now: float, fact: CheckpointSaved | CheckpointFailed) -> list[Action]:
        """The writer of checkpoints has come to an end with one."""
        saving = self._saving.pop(fact.number, None)
        if saving is None:
            return []
        save, begun = saving
        if isinstance(fact, CheckpointSaved):
            self._saving = {number: other for number, other in self._saving.items() if number > fact.number}
            self._has_saved(save)
            self.durations.saving_s, self._trouble = now - begun, ""
        elif save.generation == self._membership.generation:  # else others save now
            self._trouble = f"no checkpoint of step {save.step}: {fact.reason}"
        self._reporting.change(now)
        if self.doing is not Doing.SAVING or fact.number != self._saves_begun:
            return []
        if isinstance(fact, CheckpointFailed) and isinstance(self._end, ExitScript):
            self.suspension.failed(now)
            self._go(now, Doing.STANDING_BY)
            return self._end_suspended(now)
        return self._close(now, self._end)

    def not_connected(self, now: float) -> list[Action]:
        """A communicator could not be built."""
        self._reporting.change(now)
        nothing_to_lose = self.doing is Doing.WAITING and self.holding is not Holding.WHOLE
        if not (nothing_to_lose and self._builds.out_of_patience(now)):
            return []
        text = f"{self._me} {self._builds.note}: it ends, to be replaced"
        return self._close(now, EndProcess(exits.UNREACHABLE, text), text)

    def acknowledged(self, now: float) -> list[Action]:
        """The agent has acknowledged a status."""
        if self.doing is Doing.CLOSING and self._reporting.has_arrived(self._last_sequence):
            return self._over(now)
        return []

    def deadline(self) -> float | None:
        """When `pass_time` has something to do (Unix time, s)."""
        soonest = self._limit_at()
        for deadline in (self.suspension.give_up_at, self._come_out_by):
            if deadline is not None and (soonest is None or deadline < soonest):
                soonest = deadline
        return soonest

    def was_away(self, now: float, away_s: float) -> None:
        """The whole process was stopped for so long: that is no time in which the training thread hung."""
        self._since = min(now, self._since + away_s)
        if self._come_out_by is not None:
            self._come_out_by += away_s
        if self.suspension.give_up_at is not None:
            self.suspension.give_up_at += away_s

    def pass_time(self, now: float) -> list[Action]:
        """Deadlines may have come."""
        if self.doing is Doing.CLOSING:
            return self._over(now) if now >= self._since + times.LAST_REPORT_TIMEOUT_S else []
        if self.doing is Doing.STANDING_BY:
            return self._stand_by(now)
        actions: list[Action] = []
        if self.suspension.give_up_at is not None and now >= self.suspension.give_up_at:
            self.suspension.give_up_at = None
            if self.doing in TOGETHER or self.doing is Doing.COMPUTING:
                self.suspension.stood_up = self.doing in TOGETHER
                actions += self._abandon(now)  # a member that has ended does not send its part of the step
        if self._come_out_by is not None and now >= self._come_out_by:
            why = f"does not come out of the communicator of generation {self._membership.generation}, which was abandoned"
            return [*actions, *self._hung(now, why)]
        limit = self._limit_at()
        if limit is None or now < limit:
            return actions
        took = f"for {now - self._since:.0f} s"
        if self.doing in TOGETHER:
            self._note = f"{self.doing.value} {took}, which is too long"
            return [*actions, *self._abandon(now)]
        doing = self.doing.value.replace("a step", f"step {self._step}")
        return [*actions, *self._hung(now, f"has been {doing} {took}")]

    # -- the beginning

    def _on_arrived(self, now: float, fact: Arrived) -> list[Action]:
        decided = self._membership.handle(now, ms.Arrived())
        self.total_steps, self._steps_per_epoch = fact.total_steps, fact.steps_per_epoch
        self._registers_values = fact.registers_values
        self._reporting.samples_per_step = fact.samples_per_step
        self._go(now, Doing.WAITING)
        if self.suspension:
            return self._end_suspended(now)
        return self.follow(now, decided)

    def _enter(self, now: float, switch: ms.Switch) -> list[Action]:
        """Go on in another generation."""
        roster, before = switch.roster, len(self._roster.members) if self._roster else 0
        self._roster, self._rank = roster, roster.rank(self._me)
        holds = [worker in switch.holders for worker in roster.workers]
        self._plan = _plan(roster, holds)
        self._transfers = Transfers.PENDING if self._plan else Transfers.NONE
        self._ranges = assign(self._place.virtual_workers, holds)
        self._note = ""
        enter = EnterGeneration(roster, switch.attempt, self._rank, self._plan)
        actions: list[Action] = [*self._builds.used(roster.generation), enter]
        if not holds[self._rank]:
            self._reporting.times.restarted()
            self._go(now, Doing.RECEIVING)
            return [*actions, ReceiveState(keep_own=self.holding is Holding.WHOLE)]
        self._reporting.times.switched(roster.generation, before, len(roster.members), switch.recovery)
        if self.holding is Holding.WHOLE:
            return [*actions, *self._entered(now)]
        if self._place.checkpoint_every_s is None:
            return [*actions, *self._begin_anew(now, "")]
        self._go(now, Doing.LOADING)
        return [*actions, LoadCheckpoint(roster.generation)]

    def _on_loaded(self, now: float, fact: CheckpointLoaded) -> list[Action]:
        needed = self._place.checkpoint_step
        if needed is not None and fact.step < needed:
            return self._refuse(now, needed, f"the newest that this worker finds is that of step {fact.step}")
        self._has_state(now, fact.step, fact.epoch)
        assert self._roster is not None
        self.saved, self.saved_generation = fact.step, self._roster.generation
        self._durable = fact.step, fact.epoch
        return self._entered(now)

    def _on_missing(self, now: float, fact: CheckpointMissing) -> list[Action]:
        needed = self._place.checkpoint_step
        if needed is not None:
            return self._refuse(now, needed, fact.reason or "this worker finds none")
        return self._begin_anew(now, fact.reason)

    def _begin_anew(self, now: float, reason: str) -> list[Action]:
        if self.holding is not Holding.INITIAL:
            because = f" ({reason})" if reason else ""
            text = f"has lost its initial values to a state that has not come, and there is no checkpoint{because}"
            return self._close(now, EndProcess(exits.SPOILED, f"{self._me} {text}: it ends, to be replaced"), text)
        if reason:
            self._trouble = f"began anew: {reason}"
        self._has_state(now, -1, 0)
        return self._entered(now)

    def _refuse(self, now: float, needed: int, found: str) -> list[Action]:
        text = f"the job has a checkpoint of step {needed} or later; {found}: is its directory the same on all servers?"
        return self._close(now, EndProcess(exits.NO_CHECKPOINT, text), text)

    def _has_state(self, now: float, applied: int, epoch: int) -> None:
        """All of the state after `applied` is here."""
        self._membership.handle(now, ms.StepApplied(applied))
        self.holding, self._next_step = Holding.WHOLE, applied + 1
        if not self._in_loop:
            self.epoch = epoch
        self._reporting.change(now)

    def _entered(self, now: float) -> list[Action]:
        """This worker holds the state in a new generation."""
        give: list[Action] = [GiveState()] if self._finished and self._sends else []
        return [*give, *self._boundary(now)]

    # -- between steps

    def _on_wanted(self, now: float, fact: StepWanted) -> list[Action]:
        if self._boundary_at is not None:
            (self.durations.pause_ended if self._paused else self.durations.step_ended)(now - self._boundary_at)
        self._boundary_at, self._paused = None, False
        self.epoch = fact.epoch
        return self._boundary(now)

    def _boundary(self, now: float) -> list[Action]:
        if self._transfers is Transfers.DUE:
            self._go(now, Doing.EXCHANGING)
            if self._sends or self._source is not None:
                return [ExchangeValues()]
            return self._on_exchanged(now, ValuesExchanged(self.epoch))
        if self.suspension:
            return self._end_suspended(now)
        decided = self._membership.handle(now, ms.BoundaryReached())
        actions = self.follow(now, decided)
        answers = {type(action) for action in decided}
        if ms.Leave in answers:
            return [*actions, *self._close(now, ExitScript(0))]
        if ms.Stall in answers:
            return [*actions, *self._give_up(now, "abandoned")]
        if ms.Proceed in answers:
            return [*actions, *self._proceed(now)]
        return actions

    def _on_exchanged(self, now: float, fact: ValuesExchanged) -> list[Action]:
        if self.holding is Holding.PARTIAL:
            self._has_state(now, self._step, fact.epoch)
        elif not self._in_loop:
            self.epoch = fact.epoch
        self._transfers, self._plan = Transfers.NONE, ()
        assert self._roster is not None
        self._ranges = assign(self._place.virtual_workers, [True] * len(self._roster.members))
        return self._boundary(now)

    def _proceed(self, now: float) -> list[Action]:
        """In the same generation."""
        saved = self._save_if_due(now)
        self._boundary_at = now
        if not self._in_loop:
            self._in_loop, self._boundary_at = True, None
            self._go(now, Doing.SCRIPT)
            return [*saved, EnterLoop(self.epoch)]
        if self._finished or self._next_step // self._steps_per_epoch != self.epoch:
            self._paused = True
            self._go(now, Doing.SCRIPT)
            return [*saved, EndEpoch()]
        self._step = self._next_step
        proposal = self._propose(now)
        self._go(now, Doing.COMPUTING)
        send = self._transfers is Transfers.PENDING and self._sends
        return [*saved, RunStep(self._step, self._ranges, proposal, send)]

    def _propose(self, now: float) -> int:
        (propose,) = self._membership.handle(now, ms.StepStarted(last=self._step + 1 >= (self.total_steps or 0)))
        assert isinstance(propose, ms.Propose)
        return propose.generation

    @property
    def _finished(self) -> bool:
        return self.total_steps is not None and self._next_step >= self.total_steps

    @property
    def _leads(self) -> bool:
        return self._roster is not None and self._roster.leader == self._me

    @property
    def _sends(self) -> bool:
        """Does this worker send the state to anybody in this generation?"""
        return any(transfer.source_rank == self._rank for transfer in self._plan)

    @property
    def _source(self) -> int | None:
        return next((t.source_rank for t in self._plan if t.target_rank == self._rank), None)

    # -- a step

    def _on_part_computed(self, now: float, fact: PartComputed) -> list[Action]:
        self.durations.part_computed(now - self._since, len(self._ranges[self._rank]))
        self._go(now, Doing.REDUCING)
        return []

    def _on_word(self, now: float, fact: WordRead) -> list[Action]:
        """All has come that the others had to send."""
        self._go(now, Doing.UPDATING)
        return self.follow(now, self._membership.handle(now, ms.WordRead(fact.generation)))

    def _on_applied(self, now: float, fact: StepApplied) -> list[Action]:
        if fact.step != self._step or self.holding is not Holding.WHOLE:
            raise InvalidTransition(
                f"step {fact.step} applied in step {self._step} by one that has {self.holding.value}"
            )
        joins = self._transfers is Transfers.PENDING and self._source is not None
        if joins and self._registers_values:
            self.holding, self._next_step = Holding.PARTIAL, self._step + 1
        else:
            self._membership.handle(now, ms.StepApplied(fact.step))
            self._next_step = self._step + 1
        if self._transfers is Transfers.PENDING:
            self._transfers = Transfers.DUE
        self._reporting.times.applied(fact.step, now)
        self._become(Doing.SCRIPT)  # since the update has begun, which is the script's code, too
        return []

    def _on_arriving(self, now: float, fact: StateArriving) -> list[Action]:
        self._step = fact.applied + 1
        if self.holding is not Holding.WHOLE:
            self.holding = Holding.SPOILED
        if self._step >= (self.total_steps or 0):
            self._go(now, Doing.TAKING)
            return [TakeState()]
        proposal = self._propose(now)
        self._go(now, Doing.JOINING)
        return [JoinStep(self._step, self._ranges, proposal)]

    def _on_taken(self, now: float, fact: StateTaken) -> list[Action]:
        if fact.applied + 1 != self._step:
            raise InvalidTransition(f"the state of step {fact.applied} came in step {self._step}")
        self._membership.handle(now, ms.StateLost())  # whatever it had before
        self._has_state(now, fact.applied, fact.epoch)
        if self.doing is Doing.TAKING:
            self._go(now, Doing.SCRIPT)
        return []

    # -- failures

    def _on_failed(self, now: float, fact: CollectiveFailed) -> list[Action]:
        return self._give_up(now, fact.reason)

    def _give_up(self, now: float, reason: str) -> list[Action]:
        """Give the step in progress up, and wait for a generation without the lost member."""
        if self.holding is Holding.PARTIAL:  # the source is gone, and the values with it
            self.holding = Holding.SPOILED
            self._membership.handle(now, ms.StateLost())
        decided = self._membership.handle(now, ms.CollectiveFailed(reason))
        give_up = GiveUpStep(restore_buffers=self.doing in IN_STEP)
        self._transfers, self._plan = Transfers.NONE, ()
        self._boundary_at = None
        self._go(now, Doing.WAITING)
        actions = [give_up, *self.follow(now, decided)]
        if self.suspension and self.doing is Doing.WAITING:
            actions += self._end_suspended(now)
        return actions

    def _abandon(self, now: float) -> list[Action]:
        """The thread has to come out of the communicator in use."""
        if self.waits_s(now):
            self.durations.stalled()
        if self.doing in TOGETHER:
            self._come_out_by = now + self.durations.come_out_limit_s(self._hosted)
        return [Abandon(self._membership.generation)]

    def _hung(self, now: float, why: str) -> list[Action]:
        text = f"{self._me} {why}, which is too long: it ends, to be replaced"
        return self._close(now, EndProcess(exits.HUNG, text), text)

    # -- checkpoints

    def _save_if_due(self, now: float) -> list[Action]:
        if self._place.checkpoint_every_s is None or not self._leads or now < self._save_at:
            return []
        self._save_at = now + self._place.checkpoint_every_s
        return [self._save(now, self.epoch)] if self._next_step else []

    def _save(self, now: float, epoch: int) -> SaveCheckpoint:
        self._saves_begun += 1
        save = SaveCheckpoint(self._saves_begun, self._next_step - 1, epoch, self._membership.generation)
        self._saving[self._saves_begun] = save, now
        while len(self._saving) > SAVES_UNDER_WAY:
            del self._saving[next(iter(self._saving))]  # it has been left out
        return save

    def _has_saved(self, save: SaveCheckpoint) -> None:
        self.saved, self.saved_generation = save.step, save.generation
        self._durable = save.step, save.epoch

    def _save_and_end(self, now: float, epoch: int, end: Action) -> list[Action]:
        """Save what has been applied, and then end so."""
        self._end = end
        self._go(now, Doing.SAVING)
        return [self._save(now, epoch)]

    # -- the end

    def _end_suspended(self, now: float) -> list[Action]:
        """Save the state, if it is this worker that does; else stand by or end."""
        self.suspension.give_up_at = None
        durable = self._durable == (self._next_step - 1, self.epoch)
        whole = self.holding is Holding.WHOLE and self._next_step > 0
        to_save = self._place.checkpoint_every_s is not None and whole and not durable
        if not to_save or self._roster is None or self.suspension.covers(self._next_step - 1):
            return self._close(now, ExitScript(0))
        retire: list[Action] = []
        if self.doing is not Doing.STANDING_BY:
            retire.append(RetireGroup(self._roster.generation))
        again_at = self.suspension.again_at(self._roster)
        if again_at is not None and now >= again_at:
            return [*retire, *self._save_and_end(now, self.epoch, ExitScript(0))]
        if again_at is None and not self.suspension.stands_by(self._roster):
            return self._close(now, ExitScript(0))
        if self.doing is not Doing.STANDING_BY:
            self._go(now, Doing.STANDING_BY)
        return retire

    def _stand_by(self, now: float) -> list[Action]:
        """Time has passed: this worker may be the one to try again, or nobody has told it anything for too long."""
        if now >= self._since + times.MOST_SAVE_S:
            return self._close(now, ExitScript(0))
        return self._end_suspended(now)

    def _on_loop_ended(self, now: float, fact: LoopEnded) -> list[Action]:
        if self._transfers is Transfers.PENDING and self._sends:
            self.epoch = fact.epochs
            self._go(now, Doing.SENDING)
            return [CompleteTransfers()]
        return self._finish(now, fact.epochs)

    def _on_sent(self, now: float, fact: TransfersCompleted) -> list[Action]:
        return self._finish(now, self.epoch)

    def _finish(self, now: float, epochs: int) -> list[Action]:
        """The leader leaves a checkpoint of the end, so that whatever follows can be done again."""
        self.epoch = epochs
        whole = self.holding is Holding.WHOLE and self._finished
        if self._place.checkpoint_every_s is not None and self._leads and whole:
            return self._save_and_end(now, epochs, Continue())
        return self._close(now, Continue())

    def _on_script_ended(self, now: float, fact: ScriptEnded) -> list[Action]:
        if self.doing is Doing.OVER:
            return [Continue()]
        if self.doing is Doing.CLOSING:
            return []
        return self._close(now, Continue(), f"the script ended without having finished: {fact.reason}")

    def _close(self, now: float, end: Action, note: str = "") -> list[Action]:
        """Wait until the agent has the last status, but not for ever, and end so."""
        actions: list[Action] = []
        if end == Continue() and not note:
            actions = self.follow(now, self._membership.handle(now, ms.LoopEnded()))
        self._note = note or self._note
        self._end = end
        self.suspension.give_up_at = None
        self._go(now, Doing.CLOSING)
        self._reporting.change(now)
        self._last_sequence = self._reporting.next_sequence
        return actions

    def _over(self, now: float) -> list[Action]:
        self._go(now, Doing.OVER)
        return [self._end]

    # -- time

    def _go(self, now: float, doing: Doing) -> None:
        self._become(doing)
        self._since = now
        if doing not in TOGETHER:
            self._come_out_by = None

    def _become(self, doing: Doing) -> None:
        if doing not in _TRANSITIONS[self.doing]:
            raise InvalidTransition(f"the training thread is {self.doing.value}, and cannot be {doing.value} next")
        self.doing = doing

    @property
    def _hosted(self) -> int:
        return len(self._ranges[self._rank]) if self._ranges else 0

    def _limit_at(self) -> float | None:
        """When the training thread has taken too long with what it does."""
        if self.doing is Doing.COMPUTING:
            return self._since + self.durations.step_limit_s(self._hosted)
        if self.doing in ALONE:
            return self._since + self.durations.pause_limit_s
        if self.doing in TOGETHER and self._come_out_by is None:
            return self._since + self.durations.others_limit_s(self._hosted)
        if self.doing is Doing.CLOSING:
            return self._since + times.LAST_REPORT_TIMEOUT_S
        if self.doing is Doing.STANDING_BY and self._roster is not None:
            again_at, latest = self.suspension.again_at(self._roster), self._since + times.MOST_SAVE_S
            return latest if again_at is None else min(again_at, latest)
        return None


def _plan(roster: Roster, holds: list[bool]) -> tuple[Transfer, ...]:
    """Who sends the state to whom; nobody if all have it."""
    holders = [rank for rank, has in enumerate(holds) if has]
    joiners = [rank for rank, has in enumerate(holds) if not has]
    if not joiners:
        return ()
    gpus, places = [member.gpu for member in roster.members], [member.place for member in roster.members]
    return plan_transfers(gpus, holders, joiners, places, relays=True)


_Method = Callable[[Training, float, Any], list[Action]]
_TABLE: dict[tuple[Doing, type], _Method] = {
    (Doing.STARTING, Arrived): Training._on_arrived,
    (Doing.STARTING, LoopEnded): Training._on_loop_ended,
    (Doing.LOADING, CheckpointLoaded): Training._on_loaded,
    (Doing.LOADING, CheckpointMissing): Training._on_missing,
    (Doing.RECEIVING, StateArriving): Training._on_arriving,
    (Doing.RECEIVING, CollectiveFailed): Training._on_failed,
    (Doing.TAKING, StateTaken): Training._on_taken,
    (Doing.TAKING, CollectiveFailed): Training._on_failed,
    (Doing.JOINING, StateTaken): Training._on_taken,
    (Doing.JOINING, WordRead): Training._on_word,
    (Doing.JOINING, CollectiveFailed): Training._on_failed,
    (Doing.COMPUTING, PartComputed): Training._on_part_computed,
    (Doing.COMPUTING, CollectiveFailed): Training._on_failed,
    (Doing.COMPUTING, LoopEnded): Training._on_loop_ended,
    (Doing.REDUCING, WordRead): Training._on_word,
    (Doing.REDUCING, CollectiveFailed): Training._on_failed,
    (Doing.REDUCING, LoopEnded): Training._on_loop_ended,
    (Doing.UPDATING, StepApplied): Training._on_applied,
    (Doing.UPDATING, LoopEnded): Training._on_loop_ended,
    (Doing.EXCHANGING, ValuesExchanged): Training._on_exchanged,
    (Doing.EXCHANGING, CollectiveFailed): Training._on_failed,
    (Doing.SCRIPT, StepWanted): Training._on_wanted,
    (Doing.SCRIPT, LoopEnded): Training._on_loop_ended,
    (Doing.SENDING, TransfersCompleted): Training._on_sent,
}
