"""A worker's process: its control thread, its training thread and the user's script, around the product's state machine.

The training thread is a model of `worker.trainer` and `worker.run`: it carries out the state machine's instructions one after the
other and reports each result. It decides nothing. Durations come from the plan's script.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, assert_never

from elasticd.agent.events import StopSignal
from elasticd.protocol import exits
from elasticd.protocol.messages import (
    Commit,
    Order,
    Prepare,
    Prepared,
    Ready,
    StartWorker,
    StatusReceived,
    Suspend,
    ToWorkerFromAgent,
    WriteCheckpoint,
)
from elasticd.protocol.model import Determinism, GpuAddress, WorkerId, WorkerPhase, WorkerStatus
from elasticd.protocol.times import BUILD_TIMEOUT_S
from elasticd.worker import events as w
from elasticd.worker.lineages import newest_first, overtaken_by, superfluous, taken_over
from elasticd.worker.machine import WorkerMachine
from elasticd.worker.training.stragglers import NOT_MEASURED, packed

from .ground import Checkpoint, Ground
from .known import LASTS_S
from .plan import PACES, Ending, Moment
from .plane import BROKEN_BUILD, Carried, Group, Part, Result
from .process import Process, State

LOAD_S = 0.3  # to read a checkpoint
SCRIPT_S = 0.001  # of the script's code between two steps
COME_OUT_S = 0.002  # to return from an abandoned communicator


class Host(Protocol):
    """The server of a worker, as the worker sees it."""

    host: str
    gpu_name: str
    storage_hidden: bool
    storage_hangs: bool
    disk_full: bool

    def gpu(self, index: int) -> GpuAddress: ...

    def hear(self, worker: Worker, status: WorkerStatus) -> None:
        """Receive a worker's status."""

    def process_ended(self, worker: Worker, code: int | None, reason: str) -> None:
        """Report that a worker's process has ended."""


class Worker(Process):
    """One worker."""

    def __init__(self, world: Ground, agent: Host, start: StartWorker) -> None:
        super().__init__(world, start.worker, agent.host)
        self._world, self._agent, self._start = world, agent, start
        self.job = start.job
        self.uid = start.uid
        self.gpu: GpuAddress = agent.gpu(start.gpu)
        self.lineage = 0
        self._script = world.scripts[start.job.rpartition("-")[0]]
        self._pid = world.next_pid()
        self._address = f"{start.worker}@{agent.host}/{self._pid}"
        world.addresses[self._address] = self, self.from_follower
        self._machine: WorkerMachine | None = None  # from elastic.join() on
        self._followers: dict[WorkerId, Worker] = {}
        self._built: dict[tuple[int, int], Group] = {}
        # the training thread
        self._queue: deque[w.Instruction] = deque()
        self._doing: w.Instruction | None = None  # the instruction in progress
        self._taken: w.Instruction | None = None  # the instruction that waits for the state, once the state has come
        self._task = 0  # number of the task in progress; grows, so that late results are recognized
        self._hung = False
        self._arrived = False  # the script has reached its training loop
        self._group: Group | None = None  # in use
        self._abandoned = False
        self._index = 0  # of the group's next step
        self._pace = NOT_MEASURED  # its times of the last step, as its next word has them
        self._began_s = self._computed_s = 0.0  # its part of the step in progress
        self._applied, self._state, self._epoch = -1, 0, 0
        self._least_epoch = 0  # epoch of the state that it received or loaded
        self._initial = 0  # the script's values before the first step; changed once a state has begun to arrive
        self._values = -1  # the step of its registered values
        self._agreed = -1  # the step of the last decision that this worker knows
        self._deciding = False  # it waits for the others' decision
        self._behind = False  # its script still runs such code, though its state may be past the decision
        self._newcomer = False  # it received its state, and has computed no part of a step since
        self._traced = False  # its operators are known
        self._ended: tuple[int, str] | None = None  # exit code and text of the script, once it may continue

    @property
    def process(self) -> Process:
        return self

    @property
    def devices(self) -> tuple[str, ...]:
        """Identifies the worker's GPUs and the machine; two machines may have the same name."""
        return tuple(f"{self.host}:{index}" for index in self._start.gpus or (self._start.gpu,))

    @property
    def _number(self) -> int:
        """Number of its server."""
        return int("".join(filter(str.isdigit, self.host)) or 0)

    @property
    def leads(self) -> bool:
        return self._group is not None and self._group.roster.leader == self.name

    @property
    def well(self) -> bool:
        """Whether the worker runs, and is in its training loop."""
        return self.state is State.RUNNING and self._arrived and not self._hung

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the worker's tables, and of the queue of its training thread."""
        own = {"instructions": len(self._queue), "communicators that stand": len(self._built)}
        return own if self._machine is None else {**self._machine.sizes, **own}

    # -- the script, up to its loop

    @property
    def _steps_per_epoch(self) -> int:
        return self._script.evaluate_every or self._script.steps

    @property
    def _epochs(self) -> int:
        return -(-self._script.steps // self._steps_per_epoch)

    def _next_epoch_after(self, step: int) -> int | None:
        """Return the epoch of the step after this one, if only the data determines it; else None."""
        if not self._script.sequential:
            return None
        return self._epochs if step + 1 >= self._script.steps else (step + 1) // self._steps_per_epoch

    def begin(self) -> None:
        """Begin, as the process has started."""
        ending = self._script.ending
        if ending is Ending.EXITS_UNJOINED:
            self.later(self._script.start_s, self.exits, 0, "exit code 0")
        elif ending is Ending.FAILS_UNJOINED:
            self.later(self._script.start_s, self.exits, 3, "exit code 3: ValueError: bad")
        elif ending is not Ending.NEVER_JOINS:
            self.later(self.chance.uniform(0.1, 0.25) * self._script.start_s, self._join)

    def _join(self) -> None:
        self._world.oracle.joined(self.job)
        spec = self._start.spec
        place = w.WorkerConfig(
            job=self.job,
            worker=WorkerId(self.name),
            pid=self._pid,
            address=self._address,
            virtual_workers=spec.virtual_workers,
            checkpoint_every_s=spec.checkpoint.every_s,
            checkpoint_step=self._start.checkpoint_step,
            limits=w.Limits(spec.step_timeout_s, spec.pause_timeout_s),
        )
        self._machine = WorkerMachine(place, self.now)
        if self._agent.storage_hangs:
            return
        self.later(self.chance.uniform(0.5, 1.0) * self._script.start_s, self._arrive, self._task)

    def _arrive(self, task: int) -> None:
        if self._runs(task):
            self._arrived = True
            script = self._script
            if script.sequential:
                arrived = w.Arrived(None, None, 8, script.registers, self._epochs, proves=True)
            else:
                arrived = w.Arrived(script.steps, self._steps_per_epoch, 8, script.registers, proves=True)
            self._tell(arrived)
            if self._script.odd_metrics:
                self._tell(w.MetricsReported({"loss": float("nan"), "accuracy": float("inf"), "epoch": 1.0}))

    # -- the control thread

    def deadline(self) -> float | None:
        return self._machine.next_deadline() if self._machine is not None else None

    def turn(self) -> None:
        self._tell(w.WorkerTick())

    def from_agent(self, message: ToWorkerFromAgent) -> None:
        match message:
            case Order():
                self._tell(w.OrderReceived(message))
            case Suspend():
                self._tell(w.SuspendReceived(message))
            case WriteCheckpoint(step=step):
                self._tell(w.CheckpointWanted(step))
            case StatusReceived(sequence=sequence):
                self._tell(w.StatusAcknowledged(sequence))

    def from_follower(self, message: Ready | Prepared, who: Worker) -> None:
        self._followers[WorkerId(who.name)] = who
        self._tell(w.PeerSaid(message))

    def from_leader(self, message: Prepare | Commit) -> None:
        self._tell(w.PeerSaid(message))

    def built(self, generation: int, attempt: int, group: Group | None, reason: str) -> None:
        if group is None:
            if reason == BROKEN_BUILD:  # if this message is lost, the leader waits for the time limit of a build
                self._world.oracle.hit(self.name, 2 * BUILD_TIMEOUT_S)
            self._tell(w.GroupFailed(generation, attempt, reason))
            return
        self._built[generation, attempt] = group
        self._tell(w.GroupBuilt(generation, attempt))

    def _tell(self, event: w.Event) -> None:
        """Give the state machine an event, carry out its actions, and let the training thread continue."""
        if self._machine is None:
            return
        for action in self._machine.handle(self.now, event):
            self._act(action)
            if not self.alive:
                return
        self._go_on()

    def _act(self, action: w.Action) -> None:
        world = self._world
        match action:
            case w.SendLeader(address, message):
                if (found := world.addresses.get(address)) is not None:
                    leader, hears = found
                    world.network.send(self, leader, hears, message, self, peers=True)
            case w.SendFollower(worker, message):
                follower = self._followers.get(worker)
                if follower is not None:
                    world.network.send(self, follower, follower.from_leader, message, peers=True)
            case w.SendStatus(status):
                self._agent.hear(self, status)
            case w.BuildGroup(roster, attempt):
                world.plane.build(self, roster, attempt)
            case w.DropGroup(generation, attempt):
                group = self._built.pop((generation, attempt), None)
                if group is not None:
                    group.leave(self)
                world.plane.drop(self, generation, attempt)
            case w.CloseRendezvous(generation, attempt):
                world.plane.close(self, generation, attempt)
            case w.Abandon(generation):
                if self._group is not None and self._group.roster.generation == generation:
                    self._abandoned = True
                    self.later(COME_OUT_S, self.failed, self._group, "abandoned")
            case w.RetireGroup(generation):
                if self._group is not None and self._group.roster.generation == generation:
                    self._group.lost(self, in_order=True)
            case w.EndProcess(code, reason):
                self.exits(code, reason)
            case _:
                if isinstance(action, w.EnterGeneration):
                    self._enter(action)
                self._queue.append(action)

    def _enter(self, enter: w.EnterGeneration) -> None:
        if self._group is not None:
            self._group.leave(self)
        self._group = self._built.pop((enter.roster.generation, enter.attempt))
        self._abandoned, self._index, self._pace = False, 0, NOT_MEASURED
        self._group.plan(enter.transfers)
        if self._world.story.on and self.leads:
            members = ", ".join(f"{member.worker} on {member.gpu}" for member in enter.roster.members)
            self._world.story.say(f"{self.job} generation {enter.roster.generation} trains: {members}")
        self._world.moment(Moment.SWITCH, self.job)

    # -- the training thread

    def _runs(self, task: int) -> bool:
        """Return whether the training thread is still at this task."""
        return task == self._task and not self._hung and self.alive

    def _go_on(self) -> None:
        while self._queue and self._doing is None and not self._hung and self.alive:
            instruction = self._queue.popleft()
            self._doing = instruction
            self._task += 1
            self._carry_out(instruction, self._task)

    def _soon(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        """Call after `delay_s` as part of the present task, unless the thread has moved on by then."""
        self.later(delay_s, self._as_task, self._task, call, arguments)

    def _as_task(self, task: int, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self._runs(task):
            call(*arguments)

    def _answer(self, fact: w.ThreadFact) -> None:
        """Report the last fact about an instruction: the thread takes the next one."""
        self._doing = None
        self._tell(fact)

    def _carry_out(self, instruction: w.Instruction, task: int) -> None:
        match instruction:
            case w.EnterGeneration():
                self._doing = None
            case w.LoadCheckpoint(generation):
                self._soon(LOAD_S, self._load, generation)
            case w.EnterLoop(epoch):
                self._epoch = epoch
                self._soon(SCRIPT_S, self._decide if epoch < self._epochs else self._end_loop)
            case w.RunStep():
                self._run_step(instruction)
            case w.EndEpoch():
                evaluates = self._script.evaluate_every and self.leads
                self._soon(self._script.evaluate_s if evaluates else SCRIPT_S, self._next_epoch)
            case w.ReceiveState():
                self._in_group(lambda group: group.receive_state(self))
            case w.JoinStep(step, ranges, proposal):
                part = Part(step, proposal, self._hosted(ranges), None)
                self._in_group(lambda group: group.offer(self, self._index, part))
            case w.TakeState():
                self._in_group(lambda group: None)
            case w.GiveState():
                self._doing = None
                self._send_state()
            case w.ExchangeValues():
                self._in_group(self._exchange)
            case w.GiveUpStep():
                self._doing = None
                if self._group is not None:
                    self._group.leave(self)
            case w.SaveCheckpoint():
                self._doing = None
                self._world.moment(Moment.SAVE, self.job)
                checkpoint = Checkpoint(
                    instruction.step, self._state, instruction.epoch, instruction.generation, self._agreed
                )
                self.later(self._script.save_s, self._save, instruction.number, checkpoint)
            case w.CompleteTransfers():
                if self._group is None or self._abandoned or self._group.everything_sent(self):
                    self._soon(SCRIPT_S, self._answer, w.TransfersCompleted())
            case w.Continue():
                code, reason = self._ended or (0, "finished")
                own_s = 0.2 if self.leads else self._script.after_s
                self._soon(SCRIPT_S if self._ended else own_s, self.exits, code, reason)
            case w.Resume():
                self._behind = False
                self._soon(SCRIPT_S, self._decide)
            case w.ExitScript(code):
                assert self._machine is not None
                if self._machine.phase is WorkerPhase.LEFT:
                    self._world.oracle.left(self.job, WorkerId(self.name), self._machine.generation)
                self._soon(SCRIPT_S, self.exits, code, f"exit code {code}")
            case _:
                assert_never(instruction)

    def _in_group(self, work: Callable[[Group], None]) -> None:
        """Call `work` with the group of members; if the communicator was abandoned, it fails instead."""
        assert self._group is not None
        if self._abandoned:
            self._soon(COME_OUT_S, self.failed, self._group, "abandoned")
        else:
            work(self._group)

    # -- checkpoints

    @property
    def _checkpoints(self) -> list[Checkpoint]:
        """The job's checkpoints. Their cleanup follows the product's rules (`worker.lineages`)."""
        return self._world.checkpoints.setdefault(f"{self.job}.{self.uid}", [])

    def _load(self, generation: int) -> None:
        if self._agent.storage_hangs:
            self._soon(LOAD_S, self._load, generation)
            return
        kept = [] if self._agent.storage_hidden else self._checkpoints
        files = {checkpoint.name: checkpoint for checkpoint in kept}
        newest = next((files[name] for name in newest_first(files)), None)
        own_newest, resume = newest, self._start.spec.resume
        if newest is None and resume is not None and not self._agent.storage_hidden:
            others = self._world.checkpoints.get(f"{resume.job}.{resume.uid}", [])
            newest = next((one for one in others if one.name == newest_first(each.name for each in others)[0]), None)
        begins = newest if newest is not None else Checkpoint(-1, self._initial, 0, 0)
        before = self._applied, self._state
        self._applied, self._state, self._values = begins.step, begins.state, begins.step
        self._agreed = begins.agreed
        self._doing = None
        assert self._machine is not None
        fact: w.ThreadFact = w.CheckpointMissing()
        if newest is not None:
            after = self._next_epoch_after(begins.step)
            fact = w.CheckpointLoaded(begins.step, begins.epoch, after, others=own_newest is None)
        actions = self._machine.handle(self.now, fact)
        if self._machine.applied == begins.step:
            self._least_epoch = begins.epoch
            if own_newest is not None:
                own = taken_over(own_newest.name, generation)
                kept[kept.index(own_newest)] = replace(own_newest, generation=own.generation)
                self._world.oracle.goes_on(self.job, generation)
            least = self._start.checkpoint_step
            oracle, name = self._world.oracle, WorkerId(self.name)
            self.lineage = oracle.begins(self.job, name, begins.step, begins.state, least if least is not None else -1)
        else:
            self._applied, self._state = before
        for action in actions:
            self._act(action)
        self._go_on()

    def _save(self, number: int, checkpoint: Checkpoint) -> None:
        if self._agent.storage_hangs:
            self.later(LOAD_S, self._save, number, checkpoint)
            return
        if self._agent.disk_full:
            self._tell(w.CheckpointFailed(number, "no space left on device"))
            return
        if self._agent.storage_hidden:
            self._tell(w.CheckpointFailed(number, "stale file handle"))
            return
        kept, name = self._checkpoints, checkpoint.name
        if overtaken_by((other.name for other in kept), checkpoint.generation) is not None:
            self._tell(w.CheckpointFailed(number, "a newer generation goes on from a checkpoint here"))
            return
        oracle = self._world.oracle
        oracle.saved(self.job, WorkerId(self.name), checkpoint.step, checkpoint.epoch, checkpoint.generation)
        kept[:] = [*(other for other in kept if other.name != name), checkpoint]
        gone = superfluous((other.name for other in kept), checkpoint.generation, self._start.spec.checkpoint.keep)
        kept[:] = [other for other in kept if other.name not in gone]
        self._tell(w.CheckpointSaved(number))

    # -- a step

    def _trace(self) -> None:
        """Report, in the first body of a heterogeneous job, whether all operators have one algorithm on all GPU types."""
        if self._start.spec.determinism is Determinism.HETEROGENEOUS and not self._traced:
            self._traced = True
            if self._script.agnostic:
                self._world.oracle.may_mix(self.job)
            self._tell(w.OperatorsTraced(self._script.agnostic, "the operators are known"))

    def _run_step(self, run: w.RunStep) -> None:
        assert self._group is not None
        if run.send:
            self._send_state()
        generation = self._group.roster.generation
        self._world.oracle.steps_on(self.job, WorkerId(self.name), generation, run.step)
        hosted = self._hosted(run.ranges)
        self._trace()
        part = Part(run.step, run.proposal, hosted, self._whole_state, self._pace, run.hosting)
        self._pace, self._began_s = NOT_MEASURED, self.now
        own_s = (
            self._script.step_s * len(hosted) / self._start.spec.virtual_workers * PACES.get(self._agent.gpu_name, 1.0)
        )
        differs = self._newcomer and bool(hosted) and self._script.ending is Ending.UNLIKE
        self._newcomer = self._newcomer and not hosted
        if differs:  # another worker has computed one of its virtual workers as well
            self._world.oracle.differed(self.job)
            self._soon(own_s, self.exits, exits.UNLIKE, f"exit code {exits.UNLIKE}: count is 7 there and 0 here")
            return
        if self._script.ending is Ending.OUT_OF_MEMORY and hosted and run.step >= self._script.ends_at:
            self._soon(0.9 * own_s, self.exits, -9, "killed by SIGKILL")  # no worker ever survives this step
        else:
            self._soon(own_s, self._computed, self._group, part)

    def _hosted(self, ranges: tuple[range, ...]) -> range:
        """Return the virtual workers that this worker hosts."""
        assert self._group is not None
        return ranges[self._group.roster.rank(WorkerId(self.name))]

    @property
    def _whole_state(self) -> int:
        """The state with the script's registered values, which must belong to the same step."""
        fits = not self._script.registers or self._values == self._applied
        whole = self._state if fits else hash((self._state, self._values))
        return hash((whole, self._agreed)) if self._script.agrees_every else whole

    def _computed(self, group: Group, part: Part) -> None:
        if self._abandoned:
            self.failed(group, "abandoned")
            return
        task = self._task
        self._computed_s = self.now
        self._tell(w.PartComputed())
        if self._runs(task):
            group.lineage = max(group.lineage, self.lineage)
            group.offer(self, self._index, part)

    def step_completed(self, group: Group, index: int, result: Result) -> None:
        stepping = isinstance(self._doing, w.RunStep | w.JoinStep)
        if not stepping or group is not self._group or index != self._index or self._hung:
            return
        if self._abandoned:
            self.failed(group, "abandoned")
            return
        self._world.moment(Moment.DECISION if result.word else Moment.STEP, self.job)
        task = self._task
        if isinstance(self._doing, w.RunStep) and self._doing.ranges and not self._doing.send:
            self._pace = packed(self._computed_s - self._began_s, self.now - self._computed_s)
        self._tell(w.WordRead(result.word, result.times, result.hosting))
        if not self._runs(task):
            return
        self._index += 1
        if isinstance(self._doing, w.RunStep):
            self._values = result.step
        self._applied, self._state = result.step, result.state
        self.lineage = group.lineage
        self._tell(w.StepApplied(result.step, self._next_epoch_after(result.step)))
        generation = group.roster.generation
        self._world.oracle.applied(self.job, WorkerId(self.name), generation, self.lineage, result.step, result.state)
        if self._runs(task):
            self._soon(SCRIPT_S, self._after_step)

    def _after_step(self) -> None:
        script = self._script
        if script.ends_at and self._applied + 1 >= script.ends_at:
            match script.ending:
                case Ending.RAISES:
                    self._end_script(1, "exit code 1: ValueError: wrong shape")
                    return
                case Ending.EXITS:
                    self._end_script(0, "exit code 0")
                    return
        self._decide()

    def _decide(self) -> None:
        """Take the decision after the last applied step together with the others, if one is due and unknown."""
        done, every = self._applied + 1, self._script.agrees_every
        due = every and done > 0 and done % every == 0 and done < self._script.steps
        if not due or self._agreed == self._applied or self._group is None:
            self._want()
            return
        task = self._task
        self._tell(w.SharingBegun(resumes=not self._behind))
        if not self._runs(task):
            return
        self._deciding = True
        if self._abandoned:
            self.later(COME_OUT_S, self.failed, self._group, "abandoned")
        else:
            self._group.decide(self, self._applied)

    def agreed(self, group: Group, step: int) -> None:
        if group is not self._group or not self._deciding or self._hung or step != self._applied:
            return
        if self._abandoned:
            self.failed(group, "abandoned")
            return
        self._deciding, self._agreed, task = False, step, self._task
        self._world.moment(Moment.AGREE, self.job)
        self._tell(w.SharingEnded(settled=True))
        if self._runs(task):
            self._want()

    def _want(self) -> None:
        self._answer(w.StepWanted(self._epoch))

    def _next_epoch(self) -> None:
        self._world.oracle.epoch_ended(self.job, WorkerId(self.name), self._epoch, self._least_epoch)
        self._epoch += 1
        if self._epoch >= self._epochs or self._applied + 1 >= self._script.steps:
            self._end_loop()
        else:
            self._want()

    def _end_loop(self) -> None:
        self._answer(w.LoopEnded(self._epochs))

    def _end_script(self, code: int, reason: str) -> None:
        self._ended = (code, reason)
        self._answer(w.ScriptEnded(reason))

    def failed(self, group: Group, reason: str) -> None:
        in_group = w.RunStep | w.JoinStep | w.ReceiveState | w.TakeState | w.ExchangeValues
        if group is not self._group or self._hung:
            return
        if isinstance(self._doing, w.CompleteTransfers):
            self._answer(w.TransfersCompleted())
        elif self._deciding:
            self._deciding, self._behind = False, True
            group.leave(self)
            self._answer(w.CollectiveFailed(reason))
        elif isinstance(self._doing, in_group) and self._in_progress():
            group.leave(self)
            self._answer(w.CollectiveFailed(reason))

    def _in_progress(self) -> bool:
        """Return whether the step in progress is not applied yet, or the state still missing."""
        doing = self._doing
        if isinstance(doing, w.TakeState):
            return self._taken is not doing
        return not isinstance(doing, w.RunStep | w.JoinStep) or self._applied < doing.step

    # -- the state

    def _send_state(self) -> None:
        assert self._group is not None
        self._group.lineage = max(self._group.lineage, self.lineage)
        self._group.send_state(self, self._carried)

    @property
    def _carried(self) -> Carried:
        return Carried(self._applied, self._state, self._epoch, self._number, self._agreed)

    def state_begins(self, group: Group, carried: Carried) -> None:
        self._world.moment(Moment.JOIN, self.job)
        if self._script.ending is Ending.MISFITS and self._number % 2 != carried.where % 2:
            self._world.oracle.misfitted(self.job)
            self.exits(1, "exit code 1: UserError: another model: this one has other parameters")
            return
        self._initial = hash((self._pid, carried.state))
        if group is self._group and isinstance(self._doing, w.ReceiveState) and not self._hung:
            self._answer(w.StateArriving(carried.applied, self._next_epoch_after(carried.applied)))

    def state_came(self, group: Group, carried: Carried) -> None:
        doing = self._doing
        if group is not self._group or not isinstance(doing, w.JoinStep | w.TakeState) or self._hung:
            return
        self._applied, self._state, self._agreed = carried.applied, carried.state, carried.agreed
        self._newcomer = True
        self._values = carried.applied
        self.lineage = group.lineage
        self._epoch = self._least_epoch = carried.epoch
        self._taken = doing
        settled = int(carried.agreed == carried.applied >= 0)
        self._tell(w.StateTaken(carried.applied, carried.epoch, self._next_epoch_after(carried.applied), settled))
        if isinstance(doing, w.TakeState) and self._doing is doing:
            self._soon(SCRIPT_S, self._want)

    def state_sent(self, group: Group) -> None:
        if group is self._group and isinstance(self._doing, w.CompleteTransfers) and not self._hung:
            self._answer(w.TransfersCompleted())

    def _exchange(self, group: Group) -> None:
        if group.exchange(self, self._carried):
            self._soon(SCRIPT_S, self._answer, w.ValuesExchanged(self._epoch))

    def values_came(self, group: Group, carried: Carried) -> None:
        if group is self._group and isinstance(self._doing, w.ExchangeValues) and not self._hung:
            self._epoch, self._values = carried.epoch, carried.applied
            self._least_epoch = max(self._least_epoch, carried.epoch)
            self._answer(w.ValuesExchanged(carried.epoch))

    # -- its end

    def break_link(self) -> None:
        """Let the worker's communicator fail, although all members live."""
        if self._group is not None:
            self.failed(self._group, "connection reset by peer")

    def hang(self) -> None:
        """Stop the training thread; the control thread goes on. A script that loads data forever is ended by another limit.
        Code after the training loop has no limit, since an evaluation may take hours: a thread that hangs there would never be
        ended.
        """
        self._hung = self._arrived and not isinstance(self._doing, w.Continue)

    def signalled(self, how: StopSignal) -> None:
        """Handle a signal from the worker's agent."""
        if how is StopSignal.KILL:
            self.killed("killed by SIGKILL")
        elif self._script.ending is Ending.IGNORES_SIGNAL and self._machine is not None:
            self._world.oracle.disturbed(self.job, LASTS_S)  # until it is killed, it trains in vain
        elif self._script.ending is Ending.EXITS_ON_SIGNAL and self._machine is not None:
            if not self._hung:  # Python runs a handler when the call in progress returns
                self.later(0.1, self._exit_on_signal)
        else:
            self.later(0.001, self.exits, -15, "killed by SIGTERM")

    def _exit_on_signal(self) -> None:
        self._queue.clear()
        self._deciding = False
        self._task += 1
        self._end_script(0, "exit code 0")

    def killed(self, reason: str) -> None:
        self.exits(-9, reason)

    def exits(self, code: int, reason: str) -> None:
        """End the process."""
        if not self.alive:
            return
        if self._world.story.on:
            self._world.story.say(f"{self.name} on {self.host} ends: {reason}")
        self.die()
        self._world.plane.died(self, in_order=code == 0)
        self._agent.process_ended(self, code, reason)

    def vanishes(self) -> None:
        """End without notice, as the process's server has lost power."""
        self.die()
        self._world.plane.vanished(self)
