"""Whether a script has finished its training, decided by how it left its loop."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import Roster, WorkerId
from elasticd.worker import events as e
from elasticd.worker.communication.communicator import Communicator
from elasticd.worker.data.choice import Feed
from elasticd.worker.data.loading import Loader
from elasticd.worker.data.sampling import OwnOrder, SerialSampler
from elasticd.worker.driver import LocalControl
from elasticd.worker.gradients.update import Update
from elasticd.worker.gradients.updates import Updates
from elasticd.worker.recipe import Recipe
from elasticd.worker.run import Run
from elasticd.worker.state.training_state import TrainingState
from elasticd.worker.trainer import Shared, Trainer
from tests.worker.ranks import also

from ..forked import Scripts

SCRIPT = """
import os, signal, sys
import torch
import elasticd
from elasticd.protocol.model import Determinism, GpuAddress, GpuKind, JobId, Member, Roster, ServerId, WorkerId
from elasticd.worker import events as e
from elasticd.worker.driver import LocalControl
from elasticd.worker.environment import ClusterEnvironment
from elasticd.worker.machine import WorkerMachine
from elasticd.worker.run import Run

class Watched(LocalControl):
    def tell(self, fact):
        if isinstance(fact, e.LoopEnded | e.ScriptEnded):
            print(fact, flush=True)
        super().tell(fact)

control = Watched.alone(2)
run = Run(control, None, 2, seed=1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(16, 2), torch.randn(16, 1)
hooked = []

def hook():
    for error in hooked:
        raise error

model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=2, before_update=hook)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

class Enough(Exception): pass

def step(x, y):
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

def loop():
    for epoch in run.epochs(2):
        for x, y in batches:
            if TOP:
                break
            try:
                raise KeyError
            except KeyError as error:
                kept.append(error)  # and with it a traceback of this function
            step(x, y)
            MIDDLE
        END

kept = []
loop()
"""


def script(**places: str) -> str:
    text = SCRIPT
    for place, code in {"TOP": "False", "MIDDLE": "pass", "END": "pass", **places}.items():
        text = text.replace(place, code)
    return text


@pytest.mark.parametrize(
    ("middle", "end", "told"),
    [
        ("pass", "pass", "LoopEnded(epochs=2)"),
        ("pass", "break", "LoopEnded(epochs=2)"),
        ("sys.exit(0)", "pass", "ScriptEnded"),
        ("pass", "sys.exit(0)", "ScriptEnded"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "pass", "ScriptEnded"),
        ("raise Enough('now')", "pass", "ScriptEnded(reason='Enough: now')"),
        ("pass", "return", "LoopEnded(epochs=2)"),
        ("raise KeyboardInterrupt", "pass", "ScriptEnded(reason='KeyboardInterrupt')"),
        ("hooked.append(Enough('in a hook'))", "pass", "ScriptEnded(reason='Enough: in a hook')"),
    ],
)
def test_only_a_loop_that_ended_or_was_left_by_break_has_finished(
    scripts: Scripts, middle: str, end: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(MIDDLE=middle, END=end))
    done = scripts.run(path)
    (line,) = done.stdout.splitlines()
    assert line.startswith(told), done.stderr
    assert done.returncode == (1 if "Enough" in middle else -signal.SIGINT if "Keyboard" in middle else 0)


@pytest.mark.parametrize(
    ("end", "code"),
    [("break", 0), *also(("sys.exit(3)", 3), ("raise Enough", 1), ("run.save(model, 'model.pt'); break", 0))],
)
def test_a_loop_whose_epochs_the_script_holds_until_python_ends_is_closed_without_a_word(
    end: str, code: int, tmp_path: Path
) -> None:
    """By then Python has cleared the modules that the loop needs."""
    path = tmp_path / "train.py"
    held = script(END=end).replace("in run.epochs(2)", "in held").replace("kept = []", "kept, held = [], run.epochs(2)")
    path.write_text(held)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert "ignored" not in done.stderr


@pytest.mark.parametrize("end", ["return", "break", "run.save(model, 'model.pt'); return"])
def test_a_loop_that_is_left_at_the_top_of_its_body_ends_with_the_step_before(
    scripts: Scripts, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(TOP="run.steps_done == 3", END=end) + "print(run.steps_done)")
    done = scripts.run(path, cwd=tmp_path)
    assert sorted(done.stdout.split()) == ["3", "LoopEnded(epochs=2)"], done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("leave", "end"),
    [
        ("break", "return"),
        ("break", "break"),
        ("break", "run.save(model, 'model.pt'); return"),
        ("break", "pass"),
        ("return", ""),
    ],
)
def test_a_loop_that_is_left_in_the_middle_of_a_step_is_refused(
    scripts: Scripts, leave: str, end: str, tmp_path: Path
) -> None:
    """With one virtual worker per worker the step would have been made, with two it would not."""
    path = tmp_path / "train.py"
    path.write_text(script(MIDDLE=f"if run.steps_done == 3: {leave}", END=end))
    done = scripts.run(path, cwd=tmp_path)
    told = "the loop over batches was left in the middle of step 3, after 1 of the 2 loop bodies that this worker runs for it"
    assert f"UserError: {told}" in done.stderr
    assert "`if run.steps_done == 3: break`" in done.stderr
    assert "LoopEnded" not in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("middle", "after", "told"),
    [
        ("break", "", "the loop over batches was left in the middle of step 1"),
        ("pass", "for x, y in batches: pass", "batches are there in the loop over run.epochs()"),
        ("pass", "for epoch in run.epochs(2): pass", "epochs() was called twice"),
    ],
)
def test_a_loop_that_cannot_be_followed_is_refused_and_not_waited_for(
    scripts: Scripts, middle: str, after: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(MIDDLE=middle) + after)
    done = scripts.run(path)
    assert f"UserError: {told}" in done.stderr
    assert done.returncode == 1


def test_a_script_that_ends_does_nothing_more_of_what_it_was_instructed_to() -> None:
    """A signal handler may raise SystemExit before an instruction is taken."""

    class Control:
        communicator = Communicator.alone()
        told: ClassVar[list[e.Event]] = []
        instructions: ClassVar[list[e.Instruction]] = [
            e.EnterGeneration(Roster(generation=1, members=(), leader=WorkerId("job.1")), 1, 0),
            e.ReceiveState(keep_own=False),
            e.Continue(),
        ]

        def tell(self, fact: e.Event) -> None:
            self.told.append(fact)

        def next(self) -> e.Instruction:
            return self.instructions.pop(0)

    control = Control()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = SerialSampler(OwnOrder(4, 0, shuffle=True), 1, 1)
    loader = Loader(torch.utils.data.TensorDataset(torch.zeros(4, 1)), sampler, 0, torch.device("cpu"))
    recipe = Recipe(
        1, 0, torch.device("cpu"), canonical=True, overlap=False, max_steps=None, updates=Updates.of(None, [optimizer])
    )
    update = Update([optimizer], [], None, None, None, None)
    trainer = Trainer(recipe, control, TrainingState(model, [optimizer]), update, Feed(sampler, loader), Shared())
    trainer.ended("SystemExit: 0")
    assert control.told == [e.ScriptEnded("SystemExit: 0")]
    assert control.instructions == []


def test_a_loop_after_the_end_of_the_training_is_refused_and_not_waited_for(scripts: Scripts, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    loop = next(line for line in SCRIPT.splitlines() if "run.epochs(" in line)
    indent = loop[: len(loop) - len(loop.lstrip())]
    path.write_text(script().replace(loop, f"{indent}run.finish()\n{loop}"))
    done = scripts.run(path)
    assert "UserError: epochs() was called after save() or finish()" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("run.is_leader", "run.is_leader is not known before the loop over run.epochs()"),
        ("run.rank", "run.rank is not known before the loop"),
        ("run.steps_done", "run.steps_done is not known before the loop"),
        ("run.world_size", "What a result depends on is run.virtual_workers, which never changes"),
        ("run.log('ready')", "Use print() before it"),
        ("run.report(x=1)", "Call it in the loop, or after it"),
        ("run.save(model, 'x.pt')", "run.save() is not known before the loop"),
    ],
)
def test_what_nobody_knows_before_the_loop_is_refused_with_what_to_write(asked: str, said: str) -> None:
    run, model = alone()
    with pytest.raises(UserError, match=re.escape(said)):
        exec(asked, {"run": run, "model": model})
    for _ in run.epochs(1):
        assert (run.is_leader, run.rank, run.world_size, run.steps_done) == (True, 0, 1, 0)
        break
    assert run.is_leader


def test_the_number_of_workers_is_refused_in_the_loop_body_where_a_loss_could_depend_on_it() -> None:
    run, model = alone()
    trainer = run._trainer
    assert trainer is not None
    for batch in (batch for _ in run.epochs(1) for batch in trainer.batches()):
        with pytest.raises(UserError, match=r"What a loss .* depends on is run\.virtual_workers"):
            _ = run.world_size
        model(batch[0]).sum().backward()
        trainer.optimizer_stepped(0)
        assert run.world_size == 1


def alone() -> tuple[Run, torch.nn.Module]:
    """A script outside a cluster, just before its loop."""
    run = Run(LocalControl.alone(2), None, 2, seed=1)
    model = torch.nn.Linear(1, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.zeros(4, 1),), batch_size=1)
    return run, model
