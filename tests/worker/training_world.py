"""Ranks that train: `python training_world.py CASE ADDRESS TIMETABLE DIRECTORY` forks a process for each worker; each writes what
it ends with to DIRECTORY.

CASE is a function of `training_cases`, and after a colon the job's determinism (default elastic).

TIMETABLE is JSON: a list of [first step, [workers]]. All switch as it says; a worker that is new in an entry is a joiner. One
worker alone is what `python script.py` does. The process imports torch once and stays single-threaded, so forking is safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
import training_cases
import zmq

from elasticd.protocol.model import Determinism, GpuAddress, GpuKind, JobId, Member, Roster, ServerId, WorkerId
from elasticd.worker.communicator import Communicator, RendezvousStore
from elasticd.worker.control import LeftJob, Progress, Switching
from elasticd.worker.environment import ClusterEnvironment
from elasticd.worker.membership import Stall
from elasticd.worker.progress import StepTimes
from elasticd.worker.run import Run

VIRTUAL_WORKERS = 4


class Timetable:
    """A control plane that switches at given steps; everybody knows them beforehand."""

    def __init__(self, me: int, address: str, entries: list[tuple[int, list[int]]]) -> None:
        self._me = me
        self.worker = WorkerId(f"w.{me}")
        self._entries = entries
        self._next_step = 0
        self._position = next(i for i, (_, workers) in enumerate(entries) if me in workers)
        self._communicators = [self._build(address, i) for i, (_, workers) in enumerate(entries) if me in workers]

    def _build(self, address: str, entry: int) -> Communicator:
        workers = self._entries[entry][1]
        store = RendezvousStore(zmq.Context(), address, f"w{self._me}/{entry}".encode(), str(entry), 60.0)
        return Communicator.build("gloo", store, workers.index(self._me), len(workers), "127.0.0.1", 600.0)

    def _switching(self) -> Switching:
        workers = self._entries[self._position][1]
        before = self._entries[self._position - 1][1] if self._position else []
        members = tuple(
            Member(worker=WorkerId(f"w.{w}"), gpu=GpuAddress(server=ServerId("s"), index=w)) for w in workers
        )
        roster = Roster(generation=self._position + 1, members=members, leader=members[0].worker)
        holders = tuple(worker in before if before else worker == workers[0] for worker in workers)
        return Switching(
            self._communicators.pop(0), roster, workers.index(self._me), holders, recovery=not self._position
        )

    def arrive(self) -> Switching:
        return self._switching()

    def step_started(self, last: bool) -> int:
        return 0

    def word_read(self, generation: int) -> None:
        pass

    def step_applied(self, step: int, progress: Progress) -> None:
        self._next_step = step + 1

    def boundary(self) -> Switching | Stall | None:
        following = self._position + 1
        if following == len(self._entries) or self._next_step != self._entries[following][0]:
            return None
        if self._me not in self._entries[following][1]:
            raise LeftJob
        self._position = following
        return self._switching()

    def failed(self, reason: str) -> Switching:
        raise AssertionError(f"nothing fails here: {reason}")

    def report(self, metrics: dict[str, float]) -> None:
        pass

    def finished(self) -> None:
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


def rank_main(case: str, me: int, address: str, entries: list[tuple[int, list[int]]]) -> dict[str, Any]:
    torch.set_num_threads(1)
    name, _, determinism = case.partition(":")
    place = environment(me, Determinism(determinism or "elastic"))
    run = Run(Timetable(me, address, entries), place, StepTimes(), VIRTUAL_WORKERS, seed=3)
    try:
        state = getattr(training_cases, name)(run)
    except LeftJob:
        return {"worker": me, "left": run.steps_done}
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
    )


def main() -> None:
    case, address, timetable, directory = sys.argv[1:]
    entries = [(int(step), list(workers)) for step, workers in json.loads(timetable)]
    children = []
    for me in sorted({worker for _, workers in entries for worker in workers}):
        pid = os.fork()
        if pid == 0:
            try:
                document = rank_main(case, me, address, entries)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            Path(directory, f"{me}.json").write_text(json.dumps(document))
            os._exit(0)
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))


if __name__ == "__main__":
    main()
