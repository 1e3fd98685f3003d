"""Training ranks: `python training_ranks.py`, with tasks on its standard input, each a line of JSON:

    {"case": CASE, "address": ADDRESS, "timetable": TIMETABLE, "directory": DIRECTORY}

Optional fields: "checkpoints", a directory from which the job resumes and to which it writes; "max_steps"; "scaling" and
"sharding", the job file's.

For each task one process per worker is forked; each writes its final state to DIRECTORY. The answer is the worst of their exit
codes, a line on standard output.

CASE is a function of `training_cases`, or MODULE.FUNCTION of another module beside it; and after a colon
the job's determinism (default elastic).

TIMETABLE is a list of [first step, [workers]]. All switch at these steps; a worker that is new in an entry is a joiner. One
worker alone equals `python script.py`. An entry may have a third element, [workers]: these miss the step before, which the others
have applied, and which may not be the first of its generation. It may have a fourth, a number e: in the entry's first step all
workers leave the communicator of the entry before, after its evaluation e, and begin that step again; -1: before its
first body, while the rows of parameters under `fully_shard` are divided anew.

The process imports a training script's modules once, and stays single-threaded, so forking is safe.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import training_cases as training_cases  # imported before ranks are forked
import zmq

from elasticd.protocol.model import (
    Determinism,
    GpuKind,
    JobId,
    OnDivergence,
    Scaling,
    Sharding,
    WorkerId,
)
from elasticd.worker import warm
from elasticd.worker.code import Code
from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken, RendezvousStore
from elasticd.worker.completion import Completion
from elasticd.worker.environment import ClusterEnvironment
from elasticd.worker.inband import InBand, Part
from elasticd.worker.rehearsal import control
from elasticd.worker.rehearsal.timetable import FAILED as FAILED
from elasticd.worker.rehearsal.timetable import Timetable as Timetable
from elasticd.worker.run import Run
from elasticd.worker.sharding.divided import DividedState
from elasticd.worker.source.assigned import Source
from elasticd.worker.source.own_code import directories, own_modules
from elasticd.worker.source.syntax import imports
from elasticd.worker.trainer import ScriptExit

VIRTUAL_WORKERS = 4


class Rehearsal(control.Rehearsal):
    """A worker without an agent, whose communicators meet at an address."""

    def __init__(self, timetable: Timetable, address: str, place: ClusterEnvironment) -> None:
        def connect(generation: int, rank: int, size: int) -> Communicator:
            identity = f"{place.worker}/{generation}".encode()
            store = RendezvousStore(zmq.Context(), address, identity, str(generation), 60.0)
            return Communicator.build("gloo", store, rank, size, "127.0.0.1", 600.0)

        super().__init__(timetable, place, connect)


def digest(value: Any) -> Any:
    """A value that differs if a single bit differs."""
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
    """Let this worker not learn that a step is complete. The others apply the step, and get no answer of this worker in that
    generation any more: each ends the generation when all have the messages that they need of the step.
    """
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


def miss_confirmations(timetable: Timetable) -> None:
    """As `miss_steps`, where the optimizer state is divided: a step is complete when all have confirmed it."""
    confirm = DividedState._confirm

    def without(divided: DividedState, communicator: Communicator) -> None:
        confirm(divided, communicator)
        assert divided._pending is not None
        step = divided._pending.step
        if timetable.is_missed(step):
            timetable.meet()
            communicator.abort()
        if timetable.misses(step):
            raise CommunicatorBroken("missed")

    setattr(DividedState, "_confirm", without)  # noqa: B010


def break_steps(timetable: Timetable) -> None:
    """Break communicators in the middle of a step, as the timetable says."""
    evaluate = Completion._evaluate

    def broken(completion: Completion) -> bool:
        evaluation = completion._evaluations.number
        goes_on = evaluate(completion)
        if timetable.breaks(completion.part.step, evaluation):
            timetable.meet()
            completion._communicator.abort()
            raise CommunicatorBroken("broken")
        return goes_on

    setattr(Completion, "_evaluate", broken)  # noqa: B010


def break_divisions(timetable: Timetable) -> None:
    """Break communicators while rows are divided anew, as the timetable says."""
    if "torch.distributed.fsdp" not in sys.modules:
        return
    fully = importlib.import_module("elasticd.worker.sharding.fully")
    trade = fully.trade

    def broken(communicator: Communicator, *given: Any, **named: Any) -> Any:
        if timetable.breaks(timetable._next_step, -1):
            timetable.meet()
            communicator.abort()
        return trade(communicator, *given, **named)

    fully.trade = broken


def rank_main(
    case: str,
    me: int,
    address: str,
    timetable: list[Any],
    meeting: str,
    checkpoints: str = "",
    max_steps: int | None = None,
    scaling: Any = None,
    sharding: str = "none",
) -> dict[str, Any]:
    """meeting: a directory in which all ranks find each other's addresses. checkpoints: the job's directory; empty: none is
    written.
    """
    name, _, determinism = case.partition(":")
    cases = importlib.import_module(module_of(case))
    place = environment(me, Determinism(determinism or "elastic"))
    if name.rpartition(".")[2] != "rates_that_differ":  # otherwise the comparison would be the first to report
        place = replace(place, compare_every=1)
    if checkpoints:
        place = replace(place, checkpoint_directory=checkpoints, checkpoint_every_s=0.001, checkpoint_keep=100)
    place = replace(place, max_steps=max_steps, scaling=scaling and msgspec.convert(scaling, Scaling))
    place = replace(place, sharding=Sharding(sharding))
    entries = [(int(step), list(workers)) for step, workers, *_ in timetable]
    late = [entry[2] if len(entry) > 2 else [] for entry in timetable]
    broken = {number: entry[3] for number, entry in enumerate(timetable) if len(entry) > 3}
    table = Timetable(me, entries, late, broken, meeting=Path(meeting))
    if place.sharding is Sharding.NONE:
        miss_steps(table)
    else:
        miss_confirmations(table)
    break_steps(table)
    break_divisions(table)
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
    """The environment that an agent would create."""
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
    """Run `worker` in a forked process. Returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        worker()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def prepare(*later: str) -> None:
    """Load what every rank would load again: torch's code, and the syntax trees of the script's files with their imports.

    later: files of modules that a rank imports itself if it runs a script in them, since it analyses all that it has imported.
    """
    torch.set_num_threads(1)
    warm.prepare()
    _read_script(*later)


def _read_script(*later: str) -> None:
    Code(torch.device("cpu"))
    imported = [module["__file__"] for module in own_modules(directories(), {}).values()]
    for file in [*imported, *(str(Path(__file__).with_name(name)) for name in later)]:
        if source := Source.read(file):
            imports(source.tree)
    gc.freeze()  # objects of this process are not the ranks' garbage


def carry_out(case: str, address: str, timetable: list[Any], directory: str, **named: Any) -> int:
    """Run one task. Returns the worst exit code."""
    if module_of(case) not in sys.modules:  # once for all ranks
        importlib.import_module(module_of(case))
        _read_script()

    with tempfile.TemporaryDirectory() as meeting:

        def train(me: int) -> None:
            document = rank_main(case, me, address, timetable, meeting, **named)
            Path(directory, f"{me}.json").write_text(json.dumps(document))

        workers = sorted({worker for _, workers, *_ in timetable for worker in workers})
        children = [fork(partial(train, me)) for me in workers]
        return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def main() -> None:
    faulthandler.enable()  # a rank that dies by a signal says where
    prepare()
    for line in sys.stdin:
        print(carry_out(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
