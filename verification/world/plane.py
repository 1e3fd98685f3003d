"""Model of NCCL and Gloo: members build communicators, and each step is a meeting of all members.

A meeting completes for all, or for some, or hangs: a member that dies resets its connections, which the others may notice before
or after the step's result has reached them; a server that loses power resets nothing.

The state transfer from a source to each joiner runs while the others compute: first a header, then the rest, if the source (and
each relay) lives so long.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from elasticd.protocol.model import JobId, Roster
from elasticd.worker.training.stragglers import NOT_MEASURED
from elasticd.worker.transfer_plan import Transfer

from .network import Network
from .process import Process, State
from .timeline import Timeline

EXCHANGE_S = 0.01
HEADER_S = 0.02  # for the first bytes of the state
TRANSFER_S = 0.4  # for the rest of the state
BROKEN_BUILD = "connection timed out"
LOOK_AGAIN_S = 0.25  # between two checks of a meeting with a stopped or partitioned peer, since TCP waits


@dataclass(frozen=True)
class Part:
    """A member's contribution to a step."""

    step: int
    word: int  # the control word
    hosted: range  # virtual workers with gradients from this member
    state: int | None  # before the step; None: of a joiner that does not have it yet
    pace: int = NOT_MEASURED  # its times of the step before (`worker.pace`)
    hosting: tuple[int, ...] = ()  # that it wants as the leader, by rank


@dataclass(frozen=True)
class Carried:
    """A state in transfer to joiners."""

    applied: int
    state: int
    epoch: int
    where: int = 0  # number of the server that it comes from
    agreed: int = -1  # the step after which the last known decision was taken


@dataclass(frozen=True)
class Result:
    """The result of a step at each member."""

    step: int
    state: int
    word: int
    times: tuple[int, ...]  # by rank
    hosting: tuple[int, ...]  # by rank, from the next step on; empty: as before


class Member(Protocol):
    """The plane's interface to a worker."""

    name: str
    host: str
    job: JobId
    lineage: int

    @property
    def process(self) -> Process: ...

    def built(self, generation: int, attempt: int, group: Group | None, reason: str) -> None:
        """Report that a communicator is ready, or could not be built."""

    def state_begins(self, group: Group, carried: Carried) -> None:
        """Report that the header of the state has arrived."""

    def state_came(self, group: Group, carried: Carried) -> None:
        """Report that the whole state has arrived."""

    def state_sent(self, group: Group) -> None:
        """Report that everything that this member had to send has arrived."""

    def values_came(self, group: Group, carried: Carried) -> None:
        """Report that the source's registered values have arrived."""

    def step_completed(self, group: Group, index: int, result: Result) -> None:
        """Report that the sums of the step have arrived."""

    def agreed(self, group: Group, step: int) -> None:
        """Report that the contributions to the decision after this step have arrived."""

    def failed(self, group: Group, reason: str) -> None:
        """Report that the communicator has failed."""


Judge = Callable[["Group", dict[str, Part]], tuple[int, int]]


@dataclass
class _Joining:
    """Progress of the state transfer to one joiner."""

    source: str  # the holder at the start of the relay chain
    relays: tuple[str, ...]
    carried: Carried | None = None  # the state that the source sends
    waits: bool = False  # the joiner waits for the header
    told: bool = False  # the joiner has the header
    came: bool = False
    values: Carried | None = None  # the registered values, once the source has handed them over
    wants_values: bool = False


class Group:
    """The communicator of one attempt at one generation."""

    def __init__(self, plane: Plane, roster: Roster, attempt: int, members: dict[str, Member]) -> None:
        self.roster, self.attempt, self.members = roster, attempt, members
        self.hosts = frozenset(member.host for member in members.values())
        self.lineage = 0  # of the holders' state
        self._plane = plane
        self._parts: dict[int, dict[str, Part]] = {}
        self._sums: dict[int, Result] = {}
        self._decisions: dict[int, dict[str, Member]] = {}  # by step: members that wait for the others
        self._reset = False  # the connections of a member were reset
        self._gone: set[str] = set()  # members that have abandoned it, or have moved to another
        self._joining: dict[str, _Joining] = {}
        names = "/".join(members)
        self._chance = random.Random(f"{plane.seed}/group/{roster.generation}/{attempt}/{names}").random

    # -- begin and end

    def plan(self, transfers: tuple[Transfer, ...]) -> None:
        """Set the transfers, source to joiner; all members give the same."""
        if self._joining or not transfers:
            return
        names = self.roster.workers
        came_from = {names[t.target_rank]: names[t.source_rank] for t in transfers}
        for target in came_from:
            relays, source = [], came_from[target]
            while source in came_from:
                relays.append(source)
                source = came_from[source]
            self._joining[target] = _Joining(source, tuple(relays))

    def leave(self, member: Member) -> None:
        """Remove a member that has moved to another communicator, or has abandoned this one."""
        self._gone.add(member.name)

    def lost(self, dead: Member, in_order: bool) -> None:
        """Handle the end of a member's process on a running server, which resets its connections.

        `in_order`: it ended by itself, and all its messages arrive before the others notice.
        """
        self._reset = True
        self._gone.add(dead.name)
        for member in self._others(dead.name):
            if in_order and any(member.name in self._parts[index] for index in self._sums if index in self._parts):
                member.process.later(0.1, member.failed, self, "connection closed by peer")
            elif self._chance() < 0.8:
                member.process.later(0.001 + 0.03 * self._chance(), member.failed, self, "connection reset by peer")

    def _others(self, name: str) -> list[Member]:
        found = [member for member in self.members.values() if member.name != name]
        return [member for member in found if member.process.alive and member.name not in self._gone]

    # -- steps

    def offer(self, member: Member, index: int, part: Part) -> None:
        """Take the part of the group's step `index` that a member has computed."""
        parts = self._parts.setdefault(index, {})
        parts[member.name] = part
        self._parts.pop(index - 3, None)
        self._sums.pop(index - 3, None)
        if self._reset and self._chance() < 0.8:
            member.process.later(0.002, member.failed, self, "connection reset by peer")
        if len(parts) == len(self.members):
            self._later(EXCHANGE_S, self._meet, index)

    def _later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        timeline = self._plane.timeline
        timeline.at(timeline.now + delay_s, self._chance(), call, *arguments)

    @property
    def _waits(self) -> bool:
        """Whether a member is stopped, or partitioned from another."""
        stopped = any(member.process.state is State.STOPPED for member in self.members.values())
        return stopped or self._plane.cut_among(self.hosts)

    def _meet(self, index: int) -> None:
        parts = self._parts.get(index)
        if parts is None or any(not member.process.alive for member in self.members.values()):
            return
        if self._waits:
            self._later(LOOK_AGAIN_S, self._meet, index)
            return
        if self._gone and self._chance() < 0.5:
            return  # a member has abandoned the group; its earlier messages may still complete the step for the others
        step, state = self._plane.judge(self, parts)
        word, times = max(part.word for part in parts.values()), tuple(parts[name].pace for name in self.roster.workers)
        self._sums[index] = Result(step, state, word, times, parts[self.roster.leader].hosting)
        for member in self.members.values():
            if member.name not in self._gone and not self._must_wait(member.name):
                self._deliver(member, index)

    def _must_wait(self, name: str) -> bool:
        """Must a member that has the sums still wait for the transfer, as its target or its source?"""
        joining = self._joining.get(name)
        mine = joining is not None and not joining.came
        return mine or any(other.source == name and not other.came for other in self._joining.values())

    def _deliver(self, member: Member, index: int) -> None:
        result = self._sums[index]
        member.process.later(0.001 + 0.05 * self._chance() ** 2, member.step_completed, self, index, result)

    # -- decisions between two steps

    def decide(self, member: Member, step: int) -> None:
        """Take a member that reaches the decision after a step, for which all other holders of the state are needed."""
        waiting = self._decisions.setdefault(step, {})
        waiting[member.name] = member
        if self._reset and self._chance() < 0.8:
            member.process.later(0.002, member.failed, self, "connection reset by peer")
        if {name for name in self.members if name not in self._joining or self._joining[name].came} <= set(waiting):
            self._later(EXCHANGE_S, self._agree, step)

    def _agree(self, step: int) -> None:
        waiting = self._decisions.get(step)
        if waiting is None or any(not member.process.alive for member in self.members.values()):
            return
        if self._waits:
            self._later(LOOK_AGAIN_S, self._agree, step)
            return
        for member in self._decisions.pop(step).values():
            if member.name not in self._gone:
                member.process.later(0.001 + 0.05 * self._chance() ** 2, member.agreed, self, step)

    # -- the state

    def send_state(self, source: Member, carried: Carried) -> None:
        """Begin to send the state from a holder to its joiners."""
        for name, joining in self._joining.items():
            if joining.source == source.name and joining.carried is None:
                joining.carried = carried
                self._announce(name, joining)

    def receive_state(self, target: Member) -> None:
        """Let a joiner wait for the header of the state."""
        joining = self._joining[target.name]
        joining.waits = True
        self._announce(target.name, joining)

    def _announce(self, name: str, joining: _Joining) -> None:
        if joining.waits and joining.carried is not None and not joining.told:
            self._later(HEADER_S * (1 + len(joining.relays)), self._begin, name)

    def _begin(self, name: str) -> None:
        joining = self._joining[name]
        if not self._passes(joining) or joining.told:
            return
        if self._waits:
            self._later(LOOK_AGAIN_S, self._begin, name)
            return
        assert joining.carried is not None
        joining.told = True
        target = self.members[name]
        target.process.later(0.001, target.state_begins, self, joining.carried)
        self._later(TRANSFER_S * (1 + len(joining.relays)) * (0.5 + self._chance()), self._come, name)

    def _passes(self, joining: _Joining) -> bool:
        """Return whether the source and all relays of this transfer are alive."""
        return all(
            self.members[name].process.alive and name not in self._gone for name in (joining.source, *joining.relays)
        )

    def _come(self, name: str) -> None:
        joining = self._joining[name]
        if joining.came or not self._passes(joining):
            return
        if self._waits:
            self._later(LOOK_AGAIN_S, self._come, name)
            return
        assert joining.carried is not None
        joining.came = True
        target, source = self.members[name], self.members[joining.source]
        target.process.later(0.0, target.state_came, self, joining.carried)
        if not self._must_wait(joining.source):
            source.process.later(0.001, source.state_sent, self)
        for member in (target, source):
            for index in self._sums:
                if member.name in self._parts.get(index, {}) and not self._must_wait(member.name):
                    self._deliver(member, index)

    def everything_sent(self, source: Member) -> bool:
        """Return whether all of the state that this member had to send has arrived."""
        return not any(joining.source == source.name and not joining.came for joining in self._joining.values())

    # -- registered values

    def exchange(self, member: Member, carried: Carried) -> bool:
        """Take a member that reaches the exchange of registered values. Returns whether it need not wait."""
        mine = self._joining.get(member.name)
        for name, joining in self._joining.items():
            if joining.source == member.name:
                joining.values = carried
                self._hand_over(name, joining)
        if mine is None:
            return True
        mine.wants_values = True
        self._hand_over(member.name, mine)
        return False

    def _hand_over(self, name: str, joining: _Joining) -> None:
        if joining.values is not None and joining.wants_values:
            target = self.members[name]
            target.process.later(0.005, target.values_came, self, joining.values)


class Plane:
    """All communicators of the cluster, and the meetings that build them."""

    def __init__(self, timeline: Timeline, network: Network, seed: int, judge: Judge, connect_s: float) -> None:
        """`judge`: maps the parts of a step to the step and the state after it. `connect_s`: seconds until the members of a
        communicator are connected.
        """
        self.timeline, self.network, self.seed, self.judge = timeline, network, seed, judge
        self._connect_s = connect_s
        self.broken_builds: dict[JobId, int] = {}  # number of the member at which the job's next communicator fails
        self.apart: set[str] = set()  # hosts that cannot exchange gradients with others, though messages pass
        self._meetings: dict[tuple[JobId, int, int, str], _Meeting] = {}
        self._groups: dict[str, list[Group]] = {}

    def build(self, member: Member, roster: Roster, attempt: int) -> None:
        """Take a member that arrives at the meeting that builds a communicator."""
        key = (member.job, roster.generation, attempt, roster.leader)
        meeting = self._meetings.setdefault(key, _Meeting(roster))
        meeting.members[member.name] = member
        if set(meeting.members) == set(roster.workers):
            self.timeline.at(self.timeline.now + self._connect_s, member.process.chance.random(), self._meet, key)

    def _meet(self, key: tuple[JobId, int, int, str]) -> None:
        meeting = self._meetings.get(key)
        if meeting is None or set(meeting.members) != set(meeting.roster.workers):
            return
        members = {str(worker): meeting.members[worker] for worker in meeting.roster.workers}
        hosts = frozenset(member.host for member in members.values())
        if any(not member.process.alive for member in members.values()) or self.cut_among(hosts):
            return  # members that wait there give up after a while
        del self._meetings[key]
        group = Group(self, meeting.roster, key[2], members)
        broken = self.broken_builds.pop(key[0], None)
        for number, member in enumerate(members.values()):
            if broken is not None and number == broken % len(members):
                member.process.later(0.02, member.built, key[1], key[2], None, BROKEN_BUILD)
                continue
            self._groups[member.name] = [*self._groups.get(member.name, ())[-3:], group]
            member.process.later(0.02 * member.process.chance.random(), member.built, key[1], key[2], group, "")

    def cut_among(self, hosts: frozenset[str]) -> bool:
        """Return whether any two of these hosts cannot exchange data."""
        return self.network.cut_among(hosts) or (len(hosts) > 1 and not self.apart.isdisjoint(hosts))

    def drop(self, member: Member, generation: int, attempt: int) -> None:
        """Remove a member, which gives up this meeting."""
        for key in [key for key in self._meetings if key[:3] == (member.job, generation, attempt)]:
            meeting = self._meetings[key]
            meeting.members.pop(member.name, None)
            if not meeting.members:
                del self._meetings[key]

    def close(self, leader: Member, generation: int, attempt: int) -> None:
        """End a meeting, and notify its waiting members."""
        meeting = self._meetings.pop((leader.job, generation, attempt, leader.name), None)
        for member in meeting.members.values() if meeting is not None else ():
            member.process.later(0.002, member.built, generation, attempt, None, "cancelled")

    def died(self, member: Member, in_order: bool) -> None:
        """Handle the end of a member's process on a running server."""
        self.vanished(member)
        for group in self._groups.pop(member.name, ()):
            group.lost(member, in_order)

    def vanished(self, member: Member) -> None:
        """Handle a power loss of a member's server: no peer is notified."""
        for key in [key for key, meeting in self._meetings.items() if member.name in meeting.members]:
            meeting = self._meetings[key]
            del meeting.members[member.name]
            if not meeting.members:
                del self._meetings[key]


@dataclass
class _Meeting:
    """Members that are building a communicator."""

    roster: Roster
    members: dict[str, Member] = field(default_factory=dict)
