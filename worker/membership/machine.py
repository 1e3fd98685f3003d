"""Membership of one worker: orders in, switches of generation out (design: worker-runtime 4; CoDDL 4.3, EDL 5.2).

Theory of operation
-------------------
A *generation* is a numbered roster with one communicator. The controller orders generations; their numbers only grow.
Per order one worker is the *leader*. The leader waits until all members of the new roster have sent `Ready`, lets all
of them build the new communicator beside the one in use (`Prepare`), and collects `Prepared`. Then it commits, in one
of two ways:

* **In band**, while the leader trains in generation `base`. It puts the new number into the control word of a step. The
  word is the maximum over all members of `base` and comes back with the step's reduction, so all of them learn the
  decision in the same step, and switch at the same boundary. No member can be late, and none leaves before all members
  know. The maximum makes two leaders that overlap (an order named another leader) harmless: one number wins for all.
  A worker of `base` that is not ready for the chosen generation is not in its roster, and exits. Workers of the new
  roster that are not in `base` get a `Commit` message.
* **By message**, if no member trains: at the start of a job, and after a loss (all communicators that the members could
  be in are broken, and each member has stopped). `base` is 0.

**Holders** are the members that have the state when a generation begins: in band all that come from `base`; by message
those with the greatest applied step, and among these the ones that know the most decisions of the script since that
step (`settled`, see `step_boundary`). If no member has any state, the leader alone is the holder: it reads the last
checkpoint or starts from the beginning. All others receive the state during the first step and host no virtual worker
in it.

**Cancelling**: a newer order ends the older campaign at once, unless its number is in flight in a control word: then
the step decides. Communicators that are not built yet are dropped at once. Prepared ones are kept until a generation at
or above theirs is in use, so a decision that overtakes an order always finds its communicator.

**Losses**: an order lists the generations that are `broken`. A member in one of them abandons its communicator: its
training thread returns from the operation that it waits for, reports which step it has applied, and stands still until
the next commit.

An attempt to prepare rests on the content of all `Ready` messages. A member that moves meanwhile (by a late commit of a
lower generation, or because its communicator broke) sends other content, also in its `Prepared`, and the leader starts
the next attempt; but not while its number is in flight: then the step decides about the prepared attempt. A member that
has missed the step which carried a decision cannot follow the decision, since the others count on its state: it waits
for the next order.

Every message that can be lost is repeated: `Ready` and `Prepared` every `RETRY_INTERVAL_S`, answered by `Commit` if the
generation has been committed, `Prepared` also to the leaders of overtaken orders, which may have committed before. A
preparation that takes longer than `prepare_timeout_s` starts again with the next attempt.

The machine is pure. Its shell (`control`) owns sockets, threads and communicators. The same protocol is written as a
model in `verification/membership.pml` and searched exhaustively for three workers (`make model-check`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...protocol import times
from ...protocol.errors import InvalidTransition
from ...protocol.messages import Commit, Order, Prepare, Prepared, Ready
from ...protocol.model import JobId, Roster, WorkerId, WorkerPhase
from .campaign import RETRY_INTERVAL_S, Campaign, Said, Stand
from .events import Abandon as Abandon
from .events import Action as Action
from .events import Arrived as Arrived
from .events import BoundaryReached as BoundaryReached
from .events import BuildGroup as BuildGroup
from .events import CollectiveFailed as CollectiveFailed
from .events import DropGroups as DropGroups
from .events import Event as Event
from .events import GroupBuilt as GroupBuilt
from .events import GroupFailed as GroupFailed
from .events import Leave as Leave
from .events import LoopEnded as LoopEnded
from .events import OrderReceived as OrderReceived
from .events import PeerSaid as PeerSaid
from .events import Proceed as Proceed
from .events import Propose as Propose
from .events import Report as Report
from .events import SendFollower as SendFollower
from .events import SendLeader as SendLeader
from .events import Settled as Settled
from .events import Stall as Stall
from .events import StateLost as StateLost
from .events import StepApplied as StepApplied
from .events import StepStarted as StepStarted
from .events import Switch as Switch
from .events import WordRead as WordRead
from .events import WorkerTick as WorkerTick

PREPARE_TIMEOUT_S = times.BUILD_TIMEOUT_S + times.PREPARE_MARGIN_S
MAX_EARLY = 4096


# -------------------------------------------------------------------------------------------------------------------- state


class Stage(enum.Enum):
    """Position of a worker's training thread among generations."""

    STARTING = "has not come to its loop"
    READY = "waits for its first generation"
    TRAINING = "is in a generation"
    ABANDONED = "has been told to come out of its generation's communicator"
    STOPPED = "has come out, and stands still"
    LEFT = "is in no roster any more"
    FINISHED = "its loop is over"

    __hash__ = object.__hash__  # there is one object of each; that of Enum is a call of Python's, four times in a step


_IN_GENERATION = frozenset({Stage.TRAINING, Stage.ABANDONED})
_ALIVE = frozenset(Stage) - {Stage.LEFT, Stage.FINISHED}

# Allowed transitions. Any other one is a bug.
_TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.STARTING: frozenset({Stage.READY, Stage.FINISHED}),
    Stage.READY: frozenset({Stage.TRAINING, Stage.FINISHED}),
    Stage.TRAINING: frozenset({Stage.TRAINING, Stage.ABANDONED, Stage.STOPPED, Stage.LEFT, Stage.FINISHED}),
    Stage.ABANDONED: frozenset({Stage.STOPPED, Stage.FINISHED}),
    Stage.STOPPED: frozenset({Stage.TRAINING, Stage.FINISHED}),
    Stage.LEFT: frozenset(),
    Stage.FINISHED: frozenset(),
}


@dataclass
class _Group:
    """A communicator beside the one in use."""

    roster: Roster
    attempt: int
    base: int
    holders: tuple[WorkerId, ...]
    leader_address: str
    built: bool = False


class Membership:
    """The state machine. `handle` is the only input; the properties serve status reports."""

    extends_proofs = True  # generations may wait until joining workers have been compared in several steps

    def __init__(self, job: JobId, worker: WorkerId, prepare_timeout_s: float = PREPARE_TIMEOUT_S) -> None:
        """prepare_timeout_s: limit of an attempt in seconds; longer than any communicator takes to be built."""
        self._job = job
        self._me = worker
        self._prepare_timeout_s = prepare_timeout_s
        self._stage = Stage.STARTING
        self._roster: Roster | None = None
        self._attempt = 0
        self._superseded = 0  # a generation committed by message while this worker still trained in a lower one
        self._applied: int | None = None
        self._settled = 0  # decisions of the script since `_applied`
        self._order: Order | None = None
        self._proposed = 0  # generation in flight in the present step's control word; 0: none
        self._decided = 0  # generation read from that control word; 0: none
        self._groups: dict[int, _Group] = {}
        self._campaign: Campaign | None = None
        self._early: dict[WorkerId, Ready] = {}  # for orders that have reached a follower before this worker
        self._retry_at: float | None = None
        self._note = ""

    # -- values of a status report

    @property
    def generation(self) -> int:
        """Committed generation; 0 before the first."""
        return self._roster.generation if self._roster else 0

    @property
    def roster(self) -> Roster | None:
        return self._roster

    @property
    def order_generation(self) -> int:
        return self._order.generation if self._order else 0

    @property
    def floor(self) -> int:
        """Lowest generation that this worker may still propose."""
        return self._proposed or self.order_generation

    @property
    def applied(self) -> int | None:
        return self._applied

    @property
    def unheard(self) -> tuple[WorkerId, ...]:
        """Workers from which a message is missing before the newest order can be followed.

        A leader misses messages of members; a member that stands still misses its leader's.
        """
        order = self._order
        if order is None or order.generation <= self.generation or self._me not in order.roster.workers:
            return ()
        if self._leads():
            assert self._campaign is not None
            return self._campaign.unheard
        prepares = order.generation in self._groups
        return () if prepares or self._base() != 0 else (order.roster.leader,)

    @property
    def note(self) -> str:
        return self._note

    @property
    def over(self) -> bool:
        """Whether the worker has finished or left: no event changes its state, and no report follows."""
        return self._stage is Stage.FINISHED or self._stage is Stage.LEFT

    @property
    def phase(self) -> WorkerPhase:
        return _PHASES[self._stage]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of entries in each of the tables."""
        return {"prepared generations": len(self._groups), "early words": len(self._early)}

    # -- the entry point

    def next_deadline(self) -> float | None:
        """Return when `WorkerTick` is wanted (Unix time, s); None: never."""
        if self.over:
            return None
        campaign = self._campaign.deadline if self._campaign is not None else None
        retry = self._retry_at
        if campaign is None or retry is None:
            return retry if campaign is None else campaign
        return min(campaign, retry)

    def handle(self, now: float, event: Event) -> list[Action]:
        """Handle one event and return the actions.

        Raises InvalidTransition, without a change, for an event that only a bug can send.
        """
        stage = self._stage
        if stage is Stage.FINISHED or stage is Stage.LEFT:
            return []
        if stage not in _ALLOWED.get(type(event), _ALIVE):
            raise InvalidTransition(f"{type(event).__name__} of a worker that {self._stage.value}")
        match event:
            case StepStarted(last):  # first, since every step has one
                return self._on_step_started(last)
            case WordRead(generation):
                return self._on_word(generation)
            case StepApplied(step, settled):
                return self._on_applied(step, settled)
            case BoundaryReached():
                return self._on_boundary(now)
            case OrderReceived(order):
                return self._on_order(now, order)
            case PeerSaid(message):
                return self._on_peer(now, message)
            case GroupBuilt(generation, attempt):
                return self._on_built(now, generation, attempt, "")
            case GroupFailed(generation, attempt, reason):
                return self._on_built(now, generation, attempt, reason)
            case Arrived():
                return self._on_arrived(now)
            case Settled():
                self._settled += 1
                return []
            case StateLost():
                self._applied, self._settled = None, 0
                return []
            case CollectiveFailed(reason):
                return self._on_failed(now, reason)
            case LoopEnded():
                self._go(Stage.FINISHED)
                return [Report(), DropGroups(tuple(sorted(self._groups)))]
            case WorkerTick():
                return self._on_time(now)

    def _go(self, stage: Stage) -> None:
        assert stage in _TRANSITIONS[self._stage], f"from {self._stage} to {stage}"
        self._stage = stage

    # -- orders

    def _on_order(self, now: float, order: Order) -> list[Action]:
        known = self._order
        if known and (order.generation, order.leader_address) == (known.generation, known.leader_address):
            return []
        if order.generation < self.order_generation or (
            known and order.generation == known.generation and not order.leader_address
        ):
            return []  # stale
        newer = order.generation > self.order_generation
        self._order = order
        actions: list[Action] = []
        if newer:
            actions += [Report(), *self._cancel_unbuilt(order.generation), *self._check_broken()]
            self._campaign = None
            if self._leads():
                self._campaign = Campaign(self._job, self._me, order.roster, self._prepare_timeout_s)
                for ready in self._early.values():
                    self._campaign.knows_already(ready)
            self._early = {w: r for w, r in self._early.items() if r.generation > order.generation}
        return actions + self._advance(now)

    def _cancel_unbuilt(self, generation: int) -> list[Action]:
        """Drop communicators below `generation` that are not built here: no leader can have committed to them."""
        cancelled = tuple(sorted(g for g, group in self._groups.items() if g < generation and not group.built))
        for old in cancelled:
            del self._groups[old]
        return [DropGroups(cancelled)] if cancelled else []

    def _check_broken(self) -> list[Action]:
        """Abandon the communicator in use if the newest order reports the loss of a member."""
        if self._order is None or self._stage is not Stage.TRAINING:
            return []
        if self.generation not in self._order.broken:
            return []
        self._go(Stage.ABANDONED)
        self._note = self._note or f"generation {self.generation} has lost a member"
        return [Abandon(self.generation), Report()]

    def _leads(self) -> bool:
        order = self._order
        return order is not None and order.generation > self.generation and order.roster.leader == self._me

    def _base(self) -> int | None:
        """Return the generation in which this worker trains, or 0 if it stands still.

        None before the loop, and while the training thread leaves an abandoned communicator.
        """
        if self._stage in (Stage.READY, Stage.STOPPED):
            return 0
        return self.generation if self._stage is Stage.TRAINING else None

    def _advance(self, now: float) -> list[Action]:
        """Take the next step towards the newest order: send Ready to its leader, or lead."""
        order, base = self._order, self._base()
        self._retry_at = None
        if order is None or order.generation <= self.generation or base is None:
            return []
        overtaken = self._ask_overtaken(base)
        if overtaken:
            self._retry_at = now + RETRY_INTERVAL_S
        if self._me not in order.roster.workers:
            return overtaken
        ready = Ready(
            job=self._job,
            generation=order.generation,
            worker=self._me,
            base=base,
            applied=self._applied,
            settled=self._settled,
        )
        if self._leads():
            return [*overtaken, *self._on_ready(now, ready)]
        self._retry_at = now + RETRY_INTERVAL_S
        if not order.leader_address:
            return overtaken
        return [*overtaken, SendLeader(order.leader_address, ready)]

    def _ask_overtaken(self, base: int) -> list[Action]:
        """Ask the leaders of overtaken orders for their commit, if this worker stands still.

        A leader may have committed before it received the next order, and a worker that stands still learns of a commit
        by message alone.
        """
        if base:
            return []
        return [
            SendLeader(group.leader_address, self._prepared(group, base, ""))
            for generation, group in sorted(self._groups.items())
            if group.built
            and generation < self.order_generation
            and group.roster.leader != self._me
            and not self._missed(group)
        ]

    def _missed(self, group: _Group) -> bool:
        """Return whether this worker, which stands still, has missed the step that would have carried the decision."""
        return group.base > 0 and group.base == self.generation

    def _on_time(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self._retry_at is not None and now >= self._retry_at:
            actions += self._advance(now)
        campaign = self._campaign
        if campaign is not None and campaign.deadline is not None and now >= campaign.deadline:
            actions += self._say(now, campaign.try_again(now, self._stand()))
        return actions

    # -- fellow workers

    def _on_peer(self, now: float, message: Ready | Prepare | Prepared | Commit) -> list[Action]:
        if message.job != self._job:
            return []
        match message:
            case Ready():
                return self._repeat_commit(message) or self._on_ready(now, message)
            case Prepare():
                return self._on_prepare(now, message)
            case Prepared():
                return self._repeat_commit(message) or self._on_prepared(now, message)
            case Commit():
                return self._on_commit(now, message)

    def _repeat_commit(self, message: Ready | Prepared) -> list[Action]:
        """Answer a member of the generation in use that has not received its commit."""
        if self._roster is None or message.generation != self.generation or self._roster.leader != self._me:
            return []
        commit = Commit(job=self._job, generation=self.generation, attempt=self._attempt)
        return [SendFollower(message.worker, commit)]

    def _on_ready(self, now: float, ready: Ready) -> list[Action]:
        campaign = self._campaign
        if ready.generation > self.order_generation and (ready.worker in self._early or len(self._early) < MAX_EARLY):
            self._early[ready.worker] = ready
            return []
        if campaign is None:
            return []
        return self._say(now, campaign.on_ready(now, ready, self._stand()))

    def _say(self, now: float, said: Said) -> list[Action]:
        """Return the actions for the leader's messages: sends to followers, and the leader's own build."""
        actions: list[Action] = []
        for worker, message in said:
            actions += self._build(now, message) if worker == self._me else [SendFollower(worker, message)]
        return actions

    def _stand(self) -> Stand:
        return Stand(self._base(), in_flight=self._proposed > 0 and self._stage is not Stage.STOPPED)

    def _on_prepare(self, now: float, message: Prepare) -> list[Action]:
        order, base = self._order, self._base()
        if order is None or message.generation != order.generation or base is None or self._leads():
            return []
        if self._me not in order.roster.workers or order.generation <= self.generation:
            return []
        if base not in (0, message.base):
            return []  # sent before this worker's last switch; its next Ready has the new base
        group = self._groups.get(message.generation)
        if group is not None and group.attempt >= message.attempt:
            return [SendLeader(group.leader_address, self._prepared(group, base, ""))] if group.built else []
        return self._build(now, message)

    def _build(self, now: float, message: Prepare) -> list[Action]:
        order = self._order
        assert order is not None
        assert order.generation == message.generation
        self._groups[message.generation] = _Group(
            roster=order.roster,
            attempt=message.attempt,
            base=message.base,
            holders=message.holders,
            leader_address=order.leader_address,
        )
        return [BuildGroup(order.roster, message.attempt, order.leader_address)]

    def _prepared(self, group: _Group, base: int, error: str) -> Prepared:
        return Prepared(
            job=self._job,
            generation=group.roster.generation,
            attempt=group.attempt,
            worker=self._me,
            base=base,
            applied=self._applied,
            settled=self._settled,
            error=error,
        )

    def _on_built(self, now: float, generation: int, attempt: int, error: str) -> list[Action]:
        group = self._groups.get(generation)
        if group is None or group.attempt != attempt:
            return []
        if error:
            del self._groups[generation]
        group.built = not error
        base = self._base()
        if base is None:
            return []  # the training thread is about to stop; a Ready from another base follows
        message = self._prepared(group, base, error)
        if group.roster.leader == self._me:
            return self._on_prepared(now, message)
        return [SendLeader(group.leader_address, message)]

    def _on_prepared(self, now: float, message: Prepared) -> list[Action]:
        campaign = self._campaign
        if campaign is None:
            return []
        said = campaign.on_prepared(now, message, self._stand())
        if said is not None:
            return self._say(now, said)
        if campaign.all_prepared and campaign.base == 0:
            return self._commit_by_message(now, campaign)
        return []

    # -- commits

    def _commit_by_message(self, now: float, campaign: Campaign) -> list[Action]:
        order = self._order
        assert order is not None
        if self._base() != 0:
            return []
        message = Commit(job=self._job, generation=campaign.generation, attempt=campaign.attempt)
        others = [worker for worker in order.roster.workers if worker != self._me]
        return [*(SendFollower(worker, message) for worker in others), *self._switch(now, campaign.generation)]

    def _on_commit(self, now: float, message: Commit) -> list[Action]:
        group = self._groups.get(message.generation)
        if group is None or not group.built or group.attempt != message.attempt:
            return []
        if message.generation <= self.generation:
            return []
        if self._base() == 0:
            return [] if self._missed(group) else self._switch(now, message.generation)
        if group.base == 0 and self._stage in _IN_GENERATION:
            # This worker received a commit by message of a lower generation late; the others are in this generation
            # already.
            self._superseded = message.generation
            self._note = f"generation {message.generation} has superseded {self.generation}"
            if self._stage is Stage.TRAINING:
                self._go(Stage.ABANDONED)
            return [Abandon(self.generation), Report()]
        return []  # decided in band: the boundary switches

    def _on_step_started(self, last: bool) -> list[Action]:
        campaign = self._campaign
        self._decided = 0
        self._proposed = 0
        if not last and campaign is not None and campaign.all_prepared and campaign.base == self.generation:
            self._proposed = campaign.generation
        return [Propose(self._proposed, campaign.workers if self._proposed and campaign is not None else ())]

    def _on_word(self, generation: int) -> list[Action]:
        if generation and generation <= self.generation:
            raise InvalidTransition(f"generation {generation} proposed in generation {self.generation}")
        self._decided = generation
        if generation != self._proposed:
            self._proposed = 0  # another leader's number won
        return []

    def _on_applied(self, step: int, settled: int) -> list[Action]:
        if self._applied is not None and step <= self._applied:
            raise InvalidTransition(f"step {step} applied after step {self._applied}")
        self._applied, self._settled = step, settled
        return []

    def _on_boundary(self, now: float) -> list[Action]:
        if self._stage is Stage.ABANDONED:
            return [Stall()]
        if not self._decided:
            return [Proceed()]
        group = self._groups.get(self._decided)
        if group is None or not group.built:
            self._go(Stage.LEFT)
            return [Report(), DropGroups(tuple(sorted(self._groups))), Leave()]
        newcomers = []
        if group.roster.leader == self._me and self._roster is not None:
            message = Commit(job=self._job, generation=self._decided, attempt=group.attempt)
            known = set(self._roster.workers)
            newcomers = [SendFollower(worker, message) for worker in group.roster.workers if worker not in known]
        return [*newcomers, *self._switch(now, self._decided)]

    def _switch(self, now: float, generation: int) -> list[Action]:
        """Put a committed generation with a built communicator into use."""
        group = self._groups.pop(generation)
        recovery = group.base == 0
        dropped = tuple(sorted(g for g in self._groups if g < generation))
        for old in dropped:
            del self._groups[old]
        self._roster, self._attempt = group.roster, group.attempt
        self._go(Stage.TRAINING)
        self._superseded = 0
        self._proposed = self._decided = 0
        self._note = ""
        if self._campaign is not None:
            if self._campaign.generation <= generation:
                self._campaign = None
            else:  # its preparation started from another base: every member has to send Ready again
                self._campaign = self._campaign.anew()
        switch = Switch(group.roster, group.attempt, group.holders, recovery)
        return [switch, DropGroups(dropped), Report(), *self._check_broken(), *self._advance(now)]

    # -- the training thread

    def _on_arrived(self, now: float) -> list[Action]:
        self._go(Stage.READY)
        return [Report(), *self._advance(now)]

    def _on_failed(self, now: float, reason: str) -> list[Action]:
        if self._stage is Stage.STOPPED:
            return []
        self._go(Stage.STOPPED)
        self._decided = 0
        self._note = self._note or reason
        if self._superseded:
            return self._switch(now, self._superseded)
        return [Abandon(self.generation), Report(), *self._advance(now)]


_PHASES = {
    Stage.STARTING: WorkerPhase.STARTING,
    Stage.READY: WorkerPhase.READY,
    Stage.TRAINING: WorkerPhase.TRAINING,
    Stage.ABANDONED: WorkerPhase.BROKEN,
    Stage.STOPPED: WorkerPhase.BROKEN,
    Stage.LEFT: WorkerPhase.LEFT,
    Stage.FINISHED: WorkerPhase.FINISHED,
}

# Stages in which an event of the training thread may come; any other event may come in every stage that is not over.
_ALLOWED: dict[type, frozenset[Stage]] = {
    Arrived: frozenset({Stage.STARTING}),
    StepStarted: _IN_GENERATION,
    WordRead: _IN_GENERATION,
    StepApplied: _IN_GENERATION,
    Settled: _IN_GENERATION,
    BoundaryReached: _IN_GENERATION,
    StateLost: _IN_GENERATION | {Stage.STOPPED},
    CollectiveFailed: _IN_GENERATION | {Stage.STOPPED},
}
