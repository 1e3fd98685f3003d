"""A job that is preempted again and again, in a process that has not imported the tests: this module as a script.

A run compares every value that its process can reach, which in a pytest process are a million.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticd.protocol.messages import Suspend
from elasticd.protocol.model import Determinism, GpuAddress, GpuKind, JobId, Member, Roster, ServerId, WorkerId
from elasticd.worker import warm
from elasticd.worker.driver import LocalControl
from elasticd.worker.environment import ClusterEnvironment
from elasticd.worker.events import CheckpointLoaded, CheckpointMissing, Event, StepWanted, SuspendReceived
from elasticd.worker.machine import WorkerMachine
from elasticd.worker.run import Run
from elasticd.worker.trainer import ScriptExit

if TYPE_CHECKING:
    from tests.forked import Scripts

EPOCHS, STEPS = 3, 4  # steps of an epoch

WHOLE = (10**6,)  # boundaries of an undisturbed run


class Turn(LocalControl):
    """A worker whose job is preempted at its `boundaries`-th boundary; counted from 0."""

    def __init__(self, place: ClusterEnvironment, boundaries: int, saver: WorkerId | None) -> None:
        member = Member(worker=place.worker, gpu=GpuAddress(server=ServerId("localhost"), index=0))
        roster = Roster(generation=1, members=(member,), leader=member.worker)
        self._left = boundaries
        self._suspend = Suspend(job=place.job, saver=saver)
        super().__init__(WorkerMachine(place.place(1, ""), 0.0), roster)

    def tell(self, fact: Event) -> None:
        if isinstance(fact, StepWanted | CheckpointLoaded | CheckpointMissing):
            if self._left <= 0:
                super().tell(SuspendReceived(self._suspend))
            self._left -= 1
        super().tell(fact)


class Turns:
    """A job, from one process to the next: each ends as a script's does, with its exit handlers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.runs = 0

    def train(self, boundaries: int, saver: WorkerId | None) -> dict[str, Any] | None:
        """Final state of the script; None: it was preempted before."""
        self.runs += 1
        place = ClusterEnvironment(
            job=JobId("job"),
            worker=WorkerId("solo.0"),
            agent_address="",
            address="127.0.0.1",
            gpu_kind=GpuKind.CPU,
            virtual_workers=2,
            determinism=Determinism.ELASTIC,
            checkpoint_directory=str(self._directory),
            checkpoint_every_s=3600.0,
            checkpoint_keep=2,
            max_steps=None,
        )
        run = Run(Turn(place, boundaries, saver), place, 2, seed=5)
        try:
            return self._script(run)
        except ScriptExit:
            run.finish()  # the exit handler
            return None

    def _script(self, run: Run) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, interrupted: Sequence[int], saver: WorkerId | None) -> dict[str, Any] | None:
        """Final state of the script after preemptions at these boundaries, one per run."""
        for boundaries in interrupted:
            if (found := self.train(boundaries, saver)) is not None:
                return found
        return None


class Ordinary(Turns):
    """Ends with the model, the optimizer's state, and its own values."""

    lbfgs = False

    def _script(self, run: Run) -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if self.lbfgs:
            optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
        ended: list[int] = []
        run.register("ended", lambda: list(ended), lambda values: ended.__setitem__(slice(None), values))
        data = torch.randn(STEPS * 8, 3), torch.randn(STEPS * 8, 1)
        model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
        for epoch in run.epochs(EPOCHS):
            with torch.no_grad():
                model[0].weight.mul_(0.9)  # the state of a step in this epoch includes it
            for x, y in batches:

                def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = nn.functional.mse_loss(model(x), y)
                    loss.backward()
                    return loss

                optimizer.step(closure)
            ended.append(epoch)
        kept = {f"optimizer {key}": str(value) for key, value in optimizer.state_dict().items()}
        return {"ended": ended, "steps": run.steps_done, **model.state_dict(), **kept}


class Lbfgs(Ordinary):
    lbfgs = True


class Keeping(Turns):
    """Keeps variables of its own, which loop bodies change; some are begun anew in each epoch."""

    def _script(self, run: Run) -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(STEPS * 8, 3), torch.randn(STEPS * 8, 1)
        model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
        scale, losses, ended = 1.0, [1.0], []
        for epoch in run.epochs(EPOCHS):
            total = 0.0
            for x, y in batches:
                loss = nn.functional.mse_loss(model(x), y)
                (loss * scale / (1.0 + total + losses[-1])).backward()
                optimizer.step()
                scale = max(0.3, 0.98 * scale)
                total += float(x.abs().mean())
                losses.append(loss.item())
            ended.append(epoch)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1.0 + total)
        return {"ended": ended, "steps": run.steps_done, "scale": scale, "losses": losses, **model.state_dict()}


class Reads(Turns):
    """Records the script's readings of the last step."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.seen: list[dict[str, list[Any]]] = []

    def _script(self, run: Run) -> dict[str, Any]:
        seen: dict[str, list[Any]] = {}
        self.seen.append(seen)
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        data = torch.randn(32, 3, generator=torch.Generator().manual_seed(1)), torch.ones(32, 1)
        run.prepare(model, optimizer, data, batch_size=4, max_grad_norm=math.inf, scheduler=scheduler)

        def note(point: str) -> None:
            seen[point] = [run.last_lr, run.grad_norm, run.means, run.shared]

        for epoch in run.epochs(3):
            note(f"begin {epoch}")
            for step in run.steps():
                for x, y in step:
                    note(f"step {step.number}")
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    run.share(loss=loss)
                    loss.backward()
            note(f"end {epoch}")
        note("over")
        return dict(model.state_dict())


KINDS: dict[str, type[Turns]] = {kind.__name__: kind for kind in (Ordinary, Lbfgs, Keeping, Reads)}


class Play:
    """Client of this module's process."""

    def __init__(self, scripts: Scripts) -> None:
        self._started = scripts.start(Path(__file__))

    def close(self) -> None:
        assert self._started.close() == 0

    def __call__(self, kind: str, directory: Path, interrupted: Sequence[int], saver: str | None = None) -> Any:
        """Play one job through its preemptions: number of processes, final state (None: of `interrupted` each has preempted it),
        and readings.
        """
        with tempfile.NamedTemporaryFile() as file:
            errand = [kind, str(directory), list(interrupted), saver, file.name]
            assert self._started.ask(json.dumps(errand)) == "done\n", "it has failed: see what it printed"
            return torch.load(file.name, weights_only=False)


def frozen() -> None:
    """Freeze all objects: a loop's start searches unfrozen objects for optimizers and copies, and the million of PyTorch and
    pytest would cost half a second each time.
    """
    warm.prepare()
    gc.collect()
    gc.freeze()


def main() -> None:
    for line in sys.stdin:
        kind, directory, interrupted, saver, file = json.loads(line)
        frozen()  # runs stay in the memory of their process; in the product there is one, at its end
        turns = KINDS[kind](Path(directory))
        end = turns.whole(interrupted, saver and WorkerId(saver))
        torch.save((turns.runs, end, getattr(turns, "seen", [])), file)
        print("done", flush=True)


if __name__ == "__main__":
    main()
