"""Ranks that train: `python training_ranks.py`, and then on its standard input one errand a line, as JSON:

    {"case": CASE, "address": ADDRESS, "timetable": TIMETABLE, "directory": DIRECTORY}

It may also have "checkpoints", a directory from which the job goes on and in which it writes, and "max_steps".

For each errand a process is forked for each worker; each writes what it ends with to DIRECTORY, and the worst of their exit codes
is the answer, one line on standard output.

CASE is a function of `training_cases`, or MODULE.FUNCTION of another module beside it; and after a colon
the job's determinism (default elastic).

TIMETABLE is a list of [first step, [workers]]. All switch as it says; a worker that is new in an entry is a joiner. One worker
alone is what `python script.py` does. An entry may have a third element, [workers]: these miss the step before, which the others
have applied, and which may not be the first of its generation. It may have a fourth, a number e: all workers come out of the
communicator of the entry before in the entry's first step, after its evaluation e, and begin that step anew.

The process imports once what a training script needs, and stays single-threaded, so forking is safe.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import training_cases as training_cases  # here already when ranks are forked
import zmq

from elasticd.protocol.model import (
    Determinism,
    GpuAddress,
    GpuKind,
    JobId,
    Member,
    OnDivergence,
    Roster,
    ServerId,
    WorkerId,
)
from elasticd.worker import warm
from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken, RendezvousStore
from elasticd.worker.driver import MachineControl
from elasticd.worker.environment import ClusterEnvironment
from elasticd.worker.events import (
    BuildGroup,
    Instruction,
    SendFollower,
    SendLeader,
    SendStatus,
    StatusAcknowledged,
    TimePassed,
)
from elasticd.worker.inband import InBand, Part
from elasticd.worker.machine import WorkerMachine
from elasticd.worker.membership import machine as m
from elasticd.worker.run import Run
from elasticd.worker.stepping import Stepping
from elasticd.worker.trainer import ScriptExit

VIRTUAL_WORKERS = 4
MEET_WITHIN_S = 300.0
FAILED = "failed"  # in the directory in which ranks see who is where


class Timetable(m.Membership):
    """A membership that switches at given steps; everybody knows them beforehand."""

    def __init__(
        self,
        me: int,
        entries: list[tuple[int, list[int]]],
        late: Sequence[list[int]] = (),
        broken: Mapping[int, int] | None = None,
        *,
        meeting: Path,
    ) -> None:
        """late: by entry, who misses the step before. broken: by entry, after which evaluation of its first step the communicator
        of the one before breaks. meeting: a directory in which all see who is where."""
        super().__init__(JobId("w"), WorkerId(f"w.{me}"))
        self._number = me
        self._meeting = meeting
        self.entries = entries
        self._late = [*late, *([] for _ in entries[len(late) :])]
        self._broken = dict(broken or {})
        self._next_step = 0
        self._position = next(i for i, (_, workers) in enumerate(entries) if me in workers)

    def mine(self) -> list[int]:
        """The generations that this worker is in."""
        return [i + 1 for i, (_, workers) in enumerate(self.entries) if self._number in workers]

    def handle(self, now: float, event: m.Event) -> list[m.Action]:
        match event:
            case m.Arrived():
                return self._switch_to(self._position)
            case m.StepStarted():
                return [m.Propose(0)]
            case m.StepApplied(step):
                self._next_step = step + 1
            case m.BoundaryReached():
                return self._at_boundary()
            case m.CollectiveFailed(reason):
                return self.failed(reason)
        return []

    def meet(self) -> None:
        """Wait until all workers of the present generation have come here: what one has not read yet is lost when another one
        closes its connections."""
        workers = self.entries[self._position][1]
        (self._meeting / f"{self._position}.{self._number}.here").touch()
        deadline = time.monotonic() + MEET_WITHIN_S
        while not all((self._meeting / f"{self._position}.{worker}.here").exists() for worker in workers):
            assert time.monotonic() < deadline, f"not all of {workers} have come"
            assert not (self._meeting / FAILED).exists(), "another rank has failed"
            time.sleep(0.001)

    def misses(self, step: int) -> bool:
        """Does this worker miss that step?"""
        return self._number in self._missing(step)

    def is_missed(self, step: int) -> bool:
        """Does anybody miss that step?"""
        return bool(self._missing(step))

    def _missing(self, step: int) -> list[int]:
        following = self._position + 1
        ends = following < len(self.entries) and self.entries[following][0] == step + 1
        return self._late[following] if ends else []

    def breaks(self, step: int, evaluation: int) -> bool:
        """Does the communicator in use break behind this evaluation?"""
        following = self._position + 1
        is_next = following < len(self.entries) and self.entries[following][0] == step
        return is_next and self._broken.get(following) == evaluation

    def failed(self, reason: str) -> list[m.Action]:
        if self._broken.pop(self._position + 1, None) is not None:
            return self._switch_to(self._position + 1)
        is_behind = self.misses(self._next_step)
        assert is_behind or self.is_missed(self._next_step - 1), f"nothing fails here: {reason}"
        return self._switch_to(self._position + 1)

    def _at_boundary(self) -> list[m.Action]:
        following = self._position + 1
        if following == len(self.entries) or self._next_step != self.entries[following][0]:
            return [m.Proceed()]
        if following in self._broken:
            return [m.Proceed()]
        self.meet()
        if self._number not in self.entries[following][1]:
            return [m.Leave()]
        return self._switch_to(following)

    def _switch_to(self, position: int) -> list[m.Action]:
        self._position = position
        workers = self.entries[position][1]
        before = self.entries[position - 1][1] if position else []
        members = tuple(
            Member(worker=WorkerId(f"w.{w}"), gpu=GpuAddress(server=ServerId("s"), index=w)) for w in workers
        )
        roster = Roster(generation=position + 1, members=members, leader=members[0].worker)
        whole = [w for w in before if w not in self._late[position]]
        holders = tuple(WorkerId(f"w.{w}") for w in workers if (w in whole if before else w == workers[0]))
        return [m.BuildGroup(roster, 1, ""), m.Switch(roster, 1, holders, recovery=not position)]


class Rehearsal(MachineControl):
    """A worker without an agent, whose communicators are built before it begins."""

    def __init__(self, timetable: Timetable, address: str, place: ClusterEnvironment) -> None:
        super().__init__(WorkerMachine(place.place(os.getpid(), ""), 0.0, timetable))
        self._communicators = {g: self._connect(timetable, address, g) for g in timetable.mine()}

    def _connect(self, timetable: Timetable, address: str, generation: int) -> Communicator:
        workers, me = timetable.entries[generation - 1][1], timetable._number
        store = RendezvousStore(zmq.Context(), address, f"w{me}/{generation}".encode(), str(generation), 60.0)
        return Communicator.build("gloo", store, workers.index(me), len(workers), "127.0.0.1", 600.0)

    def next(self) -> Instruction:
        with self._lock:
            while not self._instructions:
                self.tell(TimePassed())
                self._turned.wait(0.01)
            return self._instructions.popleft()

    def _send(self, action: SendLeader | SendFollower | SendStatus) -> None:
        assert isinstance(action, SendStatus)
        self.tell(StatusAcknowledged(action.status.sequence))

    def _build(self, build: BuildGroup) -> None:
        pass

    def _take(self, generation: int, attempt: int) -> Communicator:
        return self._communicators.pop(generation, None) or Communicator.alone()

    def _close_rendezvous(self, generation: int, attempt: int) -> None:
        pass


def digest(value: Any) -> Any:
    """Something that differs if a single bit does."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {list(value.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
    if isinstance(value, dict):
        return {str(key): digest(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [digest(item) for item in value]
    return repr(value)


def module_of(case: str) -> str:
    return case.rpartition(".")[0] or "training_cases"


def miss_steps(timetable: Timetable) -> None:
    """This worker does not come to know that a step that it misses is complete. The others apply it, and get no answer from it in
    that generation any more: each ends it when all have heard what they need of the step."""
    complete = InBand.complete

    def without(in_band: InBand, communicator: Communicator, part: Part) -> int:
        proposal = complete(in_band, communicator, part)
        if timetable.is_missed(part.step):
            timetable.meet()
            communicator.abort()
        if timetable.misses(part.step):
            raise CommunicatorBroken("missed")
        return proposal

    setattr(InBand, "complete", without)  # noqa: B010


def break_steps(timetable: Timetable) -> None:
    """Communicators break in the middle of a step, where the timetable says so."""
    evaluate = Stepping._evaluate

    def broken(stepping: Stepping, part: Part, computed: Callable[[], None]) -> bool:
        assert stepping.evaluations is not None
        evaluation = stepping.evaluations.number
        goes_on = evaluate(stepping, part, computed)
        if timetable.breaks(part.step, evaluation):
            timetable.meet()
            stepping._communicator.abort()
            raise CommunicatorBroken("broken")
        return goes_on

    setattr(Stepping, "_evaluate", broken)  # noqa: B010


def rank_main(
    case: str,
    me: int,
    address: str,
    timetable: list[Any],
    meeting: str,
    checkpoints: str = "",
    max_steps: int | None = None,
) -> dict[str, Any]:
    """meeting: a directory in which all ranks see who is where. checkpoints: where the job's are; if it is not given, none is
    written."""
    name, _, determinism = case.partition(":")
    cases = importlib.import_module(module_of(case))
    place = environment(me, Determinism(determinism or "elastic"))
    if name.rpartition(".")[2] != "rates_that_differ":  # else the comparison would be the first to tell
        place = replace(place, compare_every=1)
    if checkpoints:
        place = replace(place, checkpoint_directory=checkpoints, checkpoint_every_s=0.001, checkpoint_keep=100)
    place = replace(place, max_steps=max_steps)
    entries = [(int(step), list(workers)) for step, workers, *_ in timetable]
    late = [entry[2] if len(entry) > 2 else [] for entry in timetable]
    broken = {number: entry[3] for number, entry in enumerate(timetable) if len(entry) > 3}
    table = Timetable(me, entries, late, broken, meeting=Path(meeting))
    miss_steps(table)
    break_steps(table)
    run = Run(Rehearsal(table, address, place), place, VIRTUAL_WORKERS, seed=3)
    try:
        state = getattr(cases, name.rpartition(".")[2])(run)
        table.meet()
    except ScriptExit:
        return {"worker": me, "left": run.steps_done}
    except BaseException:
        Path(meeting, FAILED).touch()
        raise
    norm = float(sum(value.float().square().sum() for value in state[0].values()))
    return {"worker": me, "steps": run.steps_done, "norm": norm, "state": digest(state)}


def environment(me: int, determinism: Determinism) -> ClusterEnvironment:
    """What an agent would say."""
    return ClusterEnvironment(
        job=JobId("w"),
        worker=WorkerId(f"w.{me}"),
        agent_address="",
        address="127.0.0.1",
        gpu_kind=GpuKind.CPU,
        virtual_workers=VIRTUAL_WORKERS,
        determinism=determinism,
        checkpoint_directory=tempfile.mkdtemp(),
        checkpoint_every_s=3600.0,
        checkpoint_keep=1,
        max_steps=None,
        on_divergence=OnDivergence.FAIL,
    )


def fork(worker: Callable[[], None]) -> int:
    """A process that does this and ends. Returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        worker()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def carry_out(case: str, address: str, timetable: list[Any], directory: str, **named: Any) -> int:
    """One errand. Returns the worst exit code."""
    importlib.import_module(module_of(case))  # once for all ranks

    with tempfile.TemporaryDirectory() as meeting:

        def train(me: int) -> None:
            document = rank_main(case, me, address, timetable, meeting, **named)
            Path(directory, f"{me}.json").write_text(json.dumps(document))

        workers = sorted({worker for _, workers, *_ in timetable for worker in workers})
        children = [fork(partial(train, me)) for me in workers]
        return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def main() -> None:
    torch.set_num_threads(1)
    warm.prepare()
    gc.freeze()  # what is there is no rank's garbage
    for line in sys.stdin:
        print(carry_out(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
