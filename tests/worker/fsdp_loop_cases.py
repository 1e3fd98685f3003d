"""Scripts under `fully_shard` that evaluate, save and sample in their loops, as published ones do. NAME_whole: without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fsdp_cases import Transformer, plain_tensors
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from training_cases import EPOCHS, Points

from elasticd.protocol.errors import UserError
from elasticd.worker.run import Run


def divide(run: Run, model: Transformer, **options: Any) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=run.mesh(), **options)
    fully_shard(model, mesh=run.mesh(), **options)


@torch.no_grad()
def estimate_loss(model: nn.Module, data: Points, batches: int = 2) -> float:
    """nanoGPT's: the mean over some batches that are drawn at random."""
    model.eval()
    losses = torch.zeros(batches)
    for number in range(batches):
        chosen = torch.randint(len(data), (4,))
        losses[number] = functional.cross_entropy(model(data.x[chosen]), data.y[chosen])
    model.train()
    return losses.mean().item()


def whole_state(model: nn.Module) -> dict[str, Any]:
    return {key: getattr(value, "full_tensor", lambda v=value: v)() for key, value in model.state_dict().items()}


def files(run: Run) -> Path:
    """A directory of this run, the same for all of its workers."""
    control: Any = run._control
    found: Path = control.timetable._meeting
    return found


def loop_whole(run: Run, divided: bool = False) -> list[Any]:
    """Evaluate in the body before and behind the step, in a function and between epochs; save in the body."""
    model = Transformer()
    if divided:
        divide(run, model)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.02)
    data = Points()
    held_out = torch.utils.data.TensorDataset(data.x, data.y)
    state = run.state(found=[])
    path = files(run) / ("divided.pt" if divided else "whole.pt")

    @run.every(steps=7)
    def look() -> None:
        state.found += [run.evaluate(lambda batch: model(batch[0]).square().sum(), held_out, 5)]
        state.found += [float(model.head.weight.detach().norm()), estimate_loss(model, data)]

    model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=5, max_grad_norm=0.5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done % 3 == 0:
                estimate_loss(model, data)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.steps_done % 4 == 0:
                estimate_loss(model, data, 1)
                run.save({"model": model.state_dict(), "step": run.steps_done}, path)
        state.found += [estimate_loss(model, data)]
        state.found += [float(whole_state(model)["embed.weight"].sum())]
        if run.is_leader:
            with torch.no_grad():
                assert model(data.x[:1]).shape == (1, 3), "a sample on the leader alone"
        run.save(model, files(run) / "epoch.pt")
    run.finish()
    deadline = time.monotonic() + 60
    while (saved := torch.load(path, weights_only=True))["step"] < run.steps_done:  # the leader is still writing
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [plain_tensors(model.state_dict()), state.found, saved]


loop = partial(loop_whole, divided=True)


# ------------------------------------------------------------------------------------------------------------- mistakes


def mistake(run: Run, behind: Callable[[Run, Transformer, Points], None], before: bool = False) -> list[Any]:
    """Return the message with which the runtime refuses what the script does in the body of the second step.

    before: before `optimizer.step()`, in place of behind it."""
    model, data = Transformer(), Points()
    divide(run, model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=5)
    try:
        for _ in run.epochs(1):
            for x, y in batches:
                at = run.steps_done == 1
                if at and before:
                    behind(run, model, data)
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                if at and not before:
                    behind(run, model, data)
        run.finish()
        if kept:
            run.save(kept, files(run) / "kept.pt")
    except (UserError, checkpoint.CheckpointException) as error:
        return [{}, str(error)]
    return [{}, "nothing was refused"]


kept: list[Any] = []


def sample(run: Run, model: Transformer, data: Points) -> None:
    if run.is_leader:
        with torch.no_grad():
            model(data.x[:1])


def save_one(run: Run, model: Transformer, data: Points) -> None:
    if run.is_leader:
        run.save(model, files(run) / "never.pt")


def train_again(run: Run, model: Transformer, data: Points) -> None:
    model(data.x[:1]).sum().backward()


def keep(run: Run, model: Transformer, data: Points) -> None:
    kept[:] = [each.detach().clone() for each in model.parameters()]


def save_parts(run: Run, model: Transformer, data: Points) -> None:
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=files(run) / "never")


saved_in_parts = partial(mistake, behind=save_parts)
sampled = partial(mistake, behind=sample)
sampled_before = partial(mistake, behind=sample, before=True)
saved_by_one = partial(mistake, behind=save_one)
trained_again = partial(mistake, behind=train_again)
kept_copies = partial(mistake, behind=keep)
