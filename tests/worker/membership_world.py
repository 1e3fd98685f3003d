"""A whole job in one process: membership machines, a hostile network between them, and a controller that follows the rules.

Everything that can happen next is an entry of `enabled()`, in a stated order; a seeded random source (or a test) picks. The
collective is modelled as it is: a step ends when all of a generation's members are in it; with a dead member it fails at
some of them, even where it has succeeded at others, and at the rest only when they are told to abandon it.
Invariants are asserted as things happen.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from elasticd.protocol.messages import Order
from elasticd.protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId, WorkerPhase
from elasticd.worker import membership as m

JOB = JobId("job-1")
MAX_WAITING = 20  # messages: a second is long, no network lets the repeats of one pile up on those of the last


@dataclass
class Node:
    """One worker: its machine, and where its training thread stands."""

    name: WorkerId
    machine: m.Membership
    thread: str = "starting"  # starting, waiting, boundary, collective, gone
    alive: bool = True
    aborted: set[int] = field(default_factory=set)
    joining: bool = False  # in the first step of a generation, without the state
    state: int | None = None  # last applied step of the state it really holds
    target: int = -1  # step in progress

    @property
    def usable(self) -> bool:
        return self.alive and self.thread != "gone"


@dataclass
class Collective:
    """One step of one generation: who has come, and with what word."""

    words: dict[WorkerId, int] = field(default_factory=dict)
    complete: bool = False
    broken: bool = False


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.nodes: dict[WorkerId, Node] = {}
        self.channels: dict[tuple[str, str], deque[object]] = {}
        self.builds: list[tuple[WorkerId, Roster, int]] = []
        self.steps: dict[tuple[int, int], Collective] = {}  # (generation, step of the generation)
        self.count: dict[tuple[WorkerId, int], int] = {}  # steps that a worker began in a generation
        self.rosters: dict[int, Roster] = {}
        self.broken: set[int] = set()
        self.order_broken: dict[int, set[int]] = {}
        self.newest = 0
        self.story: list[str] = []
        self.applied_steps = 0
        self.last_reports: dict[WorkerId, tuple[WorkerPhase, int, int | None]] = {}

    # -- the controller, as cluster 1 and worker-runtime 4 ask of it

    def order(self, workers: list[WorkerId], leader: WorkerId) -> None:
        self.newest += 1
        members = tuple(Member(worker=w, gpu=GpuAddress(server=ServerId("s"), index=i)) for i, w in enumerate(workers))
        roster = Roster(generation=self.newest, members=members, leader=leader)
        self.rosters[self.newest] = roster
        self.order_broken[self.newest] = set(self.broken)
        for worker in workers:
            if worker not in self.nodes:
                self.nodes[worker] = Node(worker, m.Membership(JOB, worker))
        order = Order(job=JOB, roster=roster, leader_address=leader, broken=tuple(sorted(self.broken)))
        self.note(f"order {self.newest} {workers} led by {leader}, broken {sorted(self.broken)}")
        for node in self.nodes.values():
            if node.alive:
                self.post("controller", node.name, order)

    def committed(self) -> int:
        return max((n.machine.generation for n in self.nodes.values()), default=0)

    def crash(self, worker: WorkerId) -> None:
        node = self.nodes[worker]
        node.alive, node.thread = False, "gone"
        self.note(f"crash {worker}")
        for key in list(self.channels):
            if key[1] == worker:
                self.channels[key].clear()
        self.builds = [b for b in self.builds if b[0] != worker]
        for (generation, _), collective in self.steps.items():
            if worker in self.rosters[generation].workers and not collective.complete:
                collective.broken = True
        self.broken |= {g for g, roster in self.rosters.items() if worker in roster.workers and g >= self.known()}
        self.reorder()

    def known(self) -> int:
        """The committed generation as far as reports have told."""
        return max((generation for _, generation, _ in self.last_reports.values()), default=0)

    def reported(self, node: Node) -> None:
        machine = node.machine
        self.last_reports[node.name] = (machine.phase, machine.generation, machine.applied)
        if node.alive and machine.phase is WorkerPhase.TRAINING:
            self.check_leader(node)
        if machine.phase is not WorkerPhase.BROKEN or not node.alive:
            return
        base = machine.generation
        hit = {
            g
            for g, roster in self.rosters.items()
            if g >= base and node.name in roster.workers and base not in self.order_broken[g]
        }
        if hit - self.broken or base not in self.order_broken[self.newest]:
            self.broken |= hit | {base}
            self.reorder()

    def check_leader(self, node: Node) -> None:
        """An order given before anyone held state may have named a leader that is not in the generation that came to be."""
        roster, newest = self.rosters[node.machine.generation], self.rosters[self.newest]
        if newest.generation > roster.generation and newest.leader not in roster.workers:
            if any(w in roster.workers and self.nodes[w].usable for w in newest.workers):
                workers = [w for w in newest.workers if self.nodes[w].usable]
                self.order(workers, next(w for w in workers if w in roster.workers))
            else:
                self.order([node.name, *(w for w in newest.workers if self.nodes[w].usable)], node.name)

    def reorder(self) -> None:
        """The survivors of the newest roster that hold state go on; without any, new workers."""
        survivors = [w for w in self.rosters[self.newest].workers if self.nodes[w].usable]
        holders = [n for n in self.nodes.values() if n.usable and n.machine.applied is not None]
        holders.sort(key=lambda n: -(n.machine.applied or 0))
        if holders and not any(n.name in survivors for n in holders):
            survivors.append(holders[0].name)
        if not survivors:
            survivors = [WorkerId(f"{JOB}.{len(self.nodes)}")]
        leader = next((n.name for n in holders if n.name in survivors), survivors[0])
        self.order(survivors, leader)

    # -- the network

    def post(self, source: str, target: str, message: object) -> None:
        self.channels.setdefault((source, target), deque()).append(message)

    def deliver(self, key: tuple[str, str]) -> None:
        message = self.channels[key].popleft()
        node = self.nodes.get(WorkerId(key[1]))
        if node is None or not node.alive:
            return
        if isinstance(message, Order):
            self.drive(node, m.OrderReceived(message))
        else:
            self.drive(node, m.PeerSaid(message))  # type: ignore[arg-type]

    # -- machines and their shells

    def drive(self, node: Node, event: m.Event) -> list[m.Action]:
        actions = node.machine.handle(self.now, event)
        for action in actions:
            match action:
                case m.SendLeader(address, message):
                    self.post(node.name, address, message)
                case m.SendFollower(worker, message):
                    self.post(node.name, worker, message)
                case m.BuildGroup(roster, attempt, _):
                    self.builds = [b for b in self.builds if (b[0], b[1].generation) != (node.name, roster.generation)]
                    self.builds.append((node.name, roster, attempt))
                case m.DropGroups(generations):
                    self.builds = [b for b in self.builds if not (b[0] == node.name and b[1].generation in generations)]
                case m.Abandon(generation):
                    node.aborted.add(generation)
                case m.Switch():
                    self.switched(node, action)
                case m.Report():
                    self.reported(node)
                case _:
                    pass
        return actions

    def switched(self, node: Node, switch: m.Switch) -> None:
        self.note(f"{node.name} enters {switch.roster.generation}, holders {switch.holders}")
        assert node.name in switch.roster.workers
        node.joining = node.name not in switch.holders
        if not node.joining and node.state is None:
            assert switch.holders == (node.name,), "a holder without a state that is not alone"
            node.state = -1
            self.drive(node, m.StepApplied(-1))
        node.thread = "boundary"

    # -- the training thread

    def advance(self, node: Node) -> None:
        if node.thread == "starting":
            node.thread = "waiting"
            self.drive(node, m.Arrived())
        elif node.thread == "boundary":
            self.at_boundary(node)
        elif node.thread == "collective":
            self.in_collective(node)

    def at_boundary(self, node: Node) -> None:
        actions = self.drive(node, m.BoundaryReached())
        if any(isinstance(a, m.Leave) for a in actions):
            self.note(f"{node.name} leaves")
            node.thread = "gone"
            if node.name in self.rosters[self.newest].workers:
                self.reorder()  # a later order wanted it, but it was decided before that it goes
            return
        if any(isinstance(a, m.Stall) for a in actions):
            self.fail(node, "abandoned")
            return
        if any(isinstance(a, m.Switch) for a in actions):
            return
        generation = node.machine.generation
        (propose,) = self.drive(node, m.StepStarted(last=False))
        assert isinstance(propose, m.Propose)
        index = self.count.get((node.name, generation), 0)
        self.count[node.name, generation] = index + 1
        collective = self.steps.setdefault((generation, index), Collective())
        dead = [w for w in self.rosters[generation].workers if not self.nodes[w].alive]
        collective.broken |= bool(dead) and not collective.complete
        assert node.name not in collective.words
        collective.words[node.name] = propose.generation
        node.thread = "collective"
        collective.complete = set(collective.words) == set(self.rosters[generation].workers)
        if collective.complete:
            self.check_step(generation, index)

    def check_step(self, generation: int, index: int) -> None:
        members = [self.nodes[w] for w in self.rosters[generation].workers]
        states = {n.state for n in members if not n.joining}
        assert len(states) == 1, f"step of generation {generation} from different states: {states}"
        (state,) = states
        assert state is not None
        for node in members:
            node.target = state + 1

    def in_collective(self, node: Node) -> None:
        generation = node.machine.generation
        index = self.count[node.name, generation] - 1
        collective = self.steps[generation, index]
        if generation in node.aborted and not collective.complete:
            self.fail(node, "abandoned")
        elif collective.complete:
            self.drive(node, m.WordRead(max(collective.words.values())))
            node.state, node.joining = node.target, False
            self.applied_steps += 1
            self.drive(node, m.StepApplied(node.target))
            node.thread = "boundary"

    def fail(self, node: Node, reason: str) -> None:
        node.thread = "waiting"
        self.note(f"{node.name} stops in {node.machine.generation}: {reason}")
        self.drive(node, m.CollectiveFailed(reason))

    # -- what can happen next

    def enabled(self) -> list[Callable[[], None]]:
        choices: list[Callable[[], None]] = []
        waiting = [key for key in sorted(self.channels) if self.channels[key]]
        choices += [partial(self.deliver, key) for key in waiting]
        choices += [partial(self.built, *build) for build in self.builds]
        for node in self.nodes.values():
            if node.alive and node.thread in ("starting", "boundary"):
                choices.append(partial(self.advance, node))
            elif node.alive and node.thread == "collective":
                generation = node.machine.generation
                collective = self.steps[generation, self.count[node.name, generation] - 1]
                if collective.complete or generation in node.aborted:
                    choices.append(partial(self.advance, node))
                lost = any(not self.nodes[w].alive for w in self.rosters[generation].workers)
                if lost or (collective.broken and not collective.complete):
                    choices.append(partial(self.fail, node, "peer lost"))
        if sum(len(channel) for channel in self.channels.values()) < MAX_WAITING:
            choices.append(self.tick)
        return choices

    def built(self, worker: WorkerId, roster: Roster, attempt: int) -> None:
        self.builds.remove((worker, roster, attempt))
        if any(not self.nodes[w].alive for w in roster.workers):
            self.drive(self.nodes[worker], m.GroupFailed(roster.generation, attempt, "member lost"))
        else:
            self.drive(self.nodes[worker], m.GroupBuilt(roster.generation, attempt))

    def tick(self) -> None:
        self.now += 0.6
        for node in self.nodes.values():
            if node.alive and node.thread != "gone":
                deadline = node.machine.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self.drive(node, m.TimePassed())

    def run(self, steps: int, rng: random.Random) -> None:
        for _ in range(steps):
            choices = self.enabled()
            choices[rng.randrange(len(choices))]()

    def settle(self, rng: random.Random, limit: int = 20_000) -> None:
        """With no more orders and crashes: the newest order is reached, and all of its members train on."""
        for _ in range(limit):
            roster = self.rosters[self.newest]
            members = [self.nodes[w] for w in roster.workers]
            if all(n.machine.generation == self.newest and (n.state or -1) >= 0 for n in members):
                begun = [self.count.get((n.name, self.newest), 0) for n in members]
                if min(begun) >= 3:
                    return
            self.run(1, rng)
        raise AssertionError("the newest order was not reached\n" + "\n".join(self.story[-60:]) + "\n" + self.picture())

    def picture(self) -> str:
        return "\n".join(
            f"{n.name}: alive={n.alive} {n.thread} phase={n.machine.phase.value} generation={n.machine.generation} "
            f"order={n.machine.order_generation} applied={n.machine.applied}"
            for n in self.nodes.values()
        )

    def note(self, text: str) -> None:
        self.story.append(f"{self.now:.1f} {text}")
