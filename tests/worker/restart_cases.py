"""Training loops with values that a restart from a checkpoint in the middle of an epoch loses. Each returns its last state."""

from __future__ import annotations

import array
import copy
import enum
import functools
import math
import os
import random
import sqlite3
import tempfile
from fractions import Fraction
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points
from unlike_cases import ended, prepared

from elasticd.worker.run import Run


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def halved(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x


def forward_from_an_epoch_on(run: Run) -> list[Any]:
    """A model of torch's own class gets another `forward`."""
    model, optimizer, batches = prepared(run)
    linear = model.forward
    for epoch in run.epochs(EPOCHS):
        if epoch == 1:
            model.forward = lambda x: 0.5 * linear(x)  # type: ignore[method-assign]
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def method_from_an_epoch_on(run: Run) -> list[Any]:
    """A class of the script's gets another method."""
    model, optimizer, batches = prepared(run)
    scaled = Scaled()
    for epoch in run.epochs(EPOCHS):
        if epoch == 1:
            Scaled.forward = Scaled.halved  # type: ignore[method-assign]
        for x, y in batches:
            functional.cross_entropy(scaled(model(x)), y).backward()
            optimizer.step()
    return ended(run, model)


class Meter:
    losses: list[float]

    def __init__(self) -> None:
        self.total, self.number = 0.0, 0

    def update(self, value: float) -> None:
        self.total += value
        self.number += 1


def numbers_within_an_epoch(run: Run) -> list[Any]:
    """What each epoch begins anew, and bodies leave to later ones: a number, an object, a list; and one of the whole loop."""
    model, optimizer, batches = prepared(run)
    reward = 1.0
    for _ in run.epochs(EPOCHS):
        baseline, meter, seen = 0.0, Meter(), [0.5]
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            (loss * reward / (1.0 + baseline + meter.total + seen[-1])).backward()
            optimizer.step()
            baseline = 0.9 * baseline + 0.1 * float(x.abs().mean())
            reward = 0.9 * reward + 0.1 * baseline
            meter.update(float(x.mean()))
            seen.append(abs(float(x[0, 0])))
    return ended(run, model)


def list_in_a_history(run: Run) -> list[Any]:
    """A list that an epoch begins anew is also an item of a history, which is returned."""
    model, optimizer, batches = prepared(run)
    history: list[list[float]] = []
    for _ in run.epochs(EPOCHS):
        losses: list[float] = []
        history.append(losses)
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            losses.append(float(x.mean()))
    run.finish()
    return [{"sums": torch.tensor([sum(each) for each in history])}]


def trained_pass(batches: Any, model: nn.Module, optimizer: Any, losses: list[float]) -> None:
    for x, y in batches:
        (functional.cross_entropy(model(x), y) / (1.0 + len(losses))).backward()
        optimizer.step()
        losses.append(float(x.mean()))


def list_under_two_names(run: Run) -> list[Any]:
    """An attribute that is bound anew in each epoch, and a parameter of the function that contains the loop over batches."""
    model, optimizer, batches = prepared(run)
    meter = Meter()
    for _ in run.epochs(EPOCHS):
        meter.losses = []
        trained_pass(batches, model, optimizer, meter.losses)
    run.finish()
    return [{**model.state_dict(), "losses": torch.tensor(meter.losses)}]


def last_list_of_a_function(run: Run) -> list[Any]:
    """The last item of a list, and a parameter of the function that contains the loop over batches."""
    model, optimizer, batches = prepared(run)
    history: list[list[float]] = []
    for _ in run.epochs(EPOCHS):
        history.append([])
        trained_pass(batches, model, optimizer, history[-1])
    run.finish()
    return [{**model.state_dict(), "losses": torch.tensor([sum(each) for each in history])}]


def generators_and_views(run: Run) -> list[Any]:
    """A method of a generator, a view of the weights, a tensor and an array of one memory, a tensor given to a function."""
    model, optimizer, batches = prepared(run)
    draws = random.Random(3)
    coin, view = draws.random, model[0].weight.detach().view(-1)
    array = numpy.ones(3, dtype=numpy.float32)
    memory, bank = torch.from_numpy(array), torch.zeros(4)

    def trained(bank: torch.Tensor) -> None:
        for x, y in batches:
            scale = 1.0 + 0.1 * coin() + float(view[0]) + float(array[0]) + float(bank[0])
            (functional.cross_entropy(model(x), y) / scale).backward()
            optimizer.step()
            memory.mul_(0.9)
            bank.add_(0.01)

    for _ in run.epochs(EPOCHS):
        trained(bank)
    return ended(run, model)


@functools.cache
def drawn(label: int) -> torch.Tensor:
    return torch.rand(())


def cache_of_draws(run: Run) -> list[Any]:
    """A function's cache with random numbers: which body draws them depends on where the process has begun."""
    model, optimizer, batches = prepared(run)
    drawn.cache_clear()
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            (drawn(int(y[0])) * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return ended(run, model)


def number_in_the_header(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    for _ in run.epochs(EPOCHS):
        shown = 0.0
        for i, (x, y) in enumerate(batches):
            loss = functional.cross_entropy(model(x), y)
            (loss / (1.0 + i)).backward()
            optimizer.step()
            shown += loss.item()
    return ended(run, model)


def batches_beside_others(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    for _ in run.epochs(EPOCHS):
        for (x, y), scale in zip(batches, torch.linspace(0.5, 1.0, 24), strict=False):
            (functional.cross_entropy(model(x), y) * scale).backward()
            optimizer.step()
    return ended(run, model)


def numbers_of_the_epochs(run: Run) -> list[Any]:
    """A number that counts epochs, and a function with another default in each body."""
    model, optimizer, batches = prepared(run)
    weigh: Any = None
    for number, _ in enumerate(run.epochs(EPOCHS), 1):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            (loss / number if weigh is None else weigh(loss) / number).backward()
            optimizer.step()
            mean = float(x.abs().mean())
            weigh = lambda value, scale=mean: value * scale  # noqa: E731
    return ended(run, model)


def rows_of_a_database(run: Run) -> list[Any]:
    """A connection cannot be read."""
    model, optimizer, batches = prepared(run)
    rows = sqlite3.connect(":memory:")
    rows.execute("create table losses (value real)")
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            rows.execute("insert into losses values (?)", (loss.item(),))
            ((mean,),) = rows.execute("select avg(value) from losses").fetchall()
            (loss / (1.0 + mean)).backward()
            optimizer.step()
    rows.close()
    return ended(run, model)


def seeds_that_are_spawned(run: Run) -> list[Any]:
    """An object of NumPy's compiled code."""
    model, optimizer, batches = prepared(run)
    seeds = numpy.random.SeedSequence(5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            draws = numpy.random.default_rng(seeds.spawn(1)[0])
            (functional.cross_entropy(model(x), y) * draws.random()).backward()
            optimizer.step()
    return ended(run, model)


def best_in_a_file_of_the_process(run: Run) -> list[Any]:
    """Weights in a temporary directory, as PyTorch's tutorial on transfer learning keeps them."""
    model, optimizer, batches = prepared(run)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "best.pt")
        torch.save(model.state_dict(), path)
        for epoch in run.epochs(EPOCHS):
            for x, y in batches:
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            if epoch == 0:
                torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path))
    return ended(run, model)


def mean_of_an_epoch(batches: Any, model: nn.Module, optimizer: Any) -> float:
    meters = {"loss": Meter()}
    for x, y in batches:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        meters["loss"].update(loss.item())
    return meters["loss"].total / meters["loss"].number


def saved_mean_of_an_epoch(run: Run) -> list[Any]:
    """An object that only a function has, and that determines what is saved."""
    model, optimizer, batches = prepared(run)
    history: list[float] = []
    for _ in run.epochs(EPOCHS):
        history += [mean_of_an_epoch(batches, model, optimizer)]
    with tempfile.TemporaryDirectory() as directory:
        run.save({"history": history}, os.path.join(directory, "history.pt"))
    run.finish()
    return [{"history": torch.tensor(history)}]


class Phase(enum.Enum):
    WARM = "warm"
    MAIN = "main"


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cell, self.head = nn.LSTM(12, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
        out, hidden = self.cell(x.unsqueeze(1), hidden)
        return self.head(out[:, 0]), hidden


def hidden_state_that_the_next_body_detaches(run: Run) -> list[Any]:
    """Truncated backpropagation through time: one for the whole loop, and one that each epoch begins anew."""
    model = Recurrent()
    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), 5, drop_last=True)
    kept: Any = None
    for _ in run.epochs(EPOCHS):
        hidden: Any = None
        for x, y in batches:
            if hidden is not None:
                hidden = tuple(each.detach() for each in hidden)
            if kept is not None:
                kept = kept.detach()
            out, hidden = model(x, hidden)
            loss = functional.cross_entropy(out if kept is None else out + 0.1 * kept, y)
            kept = out
            loss.backward()
            optimizer.step()
    return ended(run, model)


def momentum_by_another_name(run: Run) -> list[Any]:
    """A tensor of the optimizer's state, which a restart binds again."""
    model, optimizer, batches = prepared(run)
    momentum: torch.Tensor | None = None
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if momentum is None and optimizer.state:
                momentum = next(iter(optimizer.state.values()))["momentum_buffer"]
            scale = 1.0 if momentum is None else 1.0 + float(momentum.abs().mean())
            (functional.cross_entropy(model(x), y) / scale).backward()
            optimizer.step()
    return ended(run, model)


class Losses(list[float]):
    """A list with the best value as an attribute."""

    best = math.inf


class Shared:
    """All instances have the same attributes."""

    kept: dict[str, float] = {}

    def __init__(self) -> None:
        self.__dict__ = self.kept
        self.kept.setdefault("average", 1.0)


def containers_and_numbers_of_other_classes(run: Run) -> list[Any]:
    """A subclass of list, attributes that all objects share, a fraction, an array, and a large integer."""
    model, optimizer, batches = prepared(run)
    losses, part, counts, product = Losses(), Fraction(1, 3), array.array("d", [0.0]), 3
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            losses.append(loss.item())
            losses.best = min(losses.best, losses[-1])
            shared = Shared()
            shared.average = 0.9 * shared.average + 0.1 * losses[-1]  # type: ignore[attr-defined]
            part = part * Fraction(7, 8) + Fraction(1, 9)
            product *= 3**20
            counts[0] += float(part)
            scale = 1.0 + losses.best + shared.average + counts[0] + product % 7  # type: ignore[attr-defined]
            (loss / scale).backward()
            optimizer.step()
    return ended(run, model)


class Anchor:
    """Earlier weights, from which the loss measures a distance."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = {name: each.detach().clone() for name, each in model.named_parameters()}

    def move(self) -> None:
        for name, each in self.model.named_parameters():
            self.weights[name].copy_(each.detach())


def copies_set_at_epochs(run: Run) -> list[Any]:
    """A target network and earlier weights, which in the first epoch are set to what they are."""
    model, optimizer, batches = prepared(run)
    target, anchor = copy.deepcopy(model).eval(), Anchor(model)
    for _ in run.epochs(EPOCHS):
        target.load_state_dict(model.state_dict())
        anchor.move()
        for x, y in batches:
            with torch.no_grad():
                scale = 1.0 + float(target(x).abs().mean()) + float(anchor.weights["0.weight"].abs().mean())
            (functional.cross_entropy(model(x), y) / scale).backward()
            optimizer.step()
    return ended(run, model)


def tensors_of_bodies_and_of_epochs(run: Run) -> list[Any]:
    """One tensor changes in loop bodies, another one between epochs."""
    model, optimizer, batches = prepared(run)
    average, anchor = torch.zeros(3), {"weight": torch.zeros(())}
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            output = model(x)
            average = 0.9 * average + 0.1 * output.detach().mean(0)
            scale = 1.0 + float(average.abs().sum()) + float(anchor["weight"].abs().sum())
            (functional.cross_entropy(output, y) / scale).backward()
            optimizer.step()
        anchor["weight"] = next(model.parameters()).detach().clone()[:2, :5]
    return ended(run, model)


def additions_to_objects_of_torch(run: Run) -> list[Any]:
    """Attributes of modules, optimizers and classes of torch, and of torch itself."""
    model, optimizer, batches = prepared(run)
    model._average, optimizer.history, torch.steps = torch.zeros(3), [], 0  # type: ignore
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            torch.steps += 1  # type: ignore
            output = model(x)
            model._average = 0.9 * model._average + 0.1 * output.detach().mean(0)
            optimizer.history.append(float(model._average.abs().sum()))
            (functional.cross_entropy(output, y) / (1.0 + optimizer.history[-1] + 0.1 * (torch.steps % 7))).backward()  # type: ignore
            optimizer.step()
    return ended(run, model)


def attribute_of_torch_in_the_first_epoch(run: Run) -> list[Any]:
    """The first epoch's beginning gives torch an attribute that it did not have, and bodies have one for its absence."""
    model, optimizer, batches = prepared(run)
    for epoch in run.epochs(EPOCHS):
        if epoch == 0:
            torch.scale = 0.5  # type: ignore[attr-defined]
        for x, y in batches:
            (getattr(torch, "scale", 1.0) * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return ended(run, model)


class Anchors:
    def begin(self, model: nn.Module) -> None:
        self.first = float(next(model.parameters()).detach().abs().sum())


def put_first(values: dict[str, float], first: float) -> None:
    """Change a variable of the caller, which its lines do not show."""
    values["first"] = first


def made_from_weights_in_place(run: Run) -> list[Any]:
    """An epoch's beginning puts what follows from the weights into a list, a dict, and a new attribute."""
    model, optimizer, batches = prepared(run)
    history: list[float] = []
    stats: dict[str, float] = {}
    anchors = Anchors()
    for _ in run.epochs(EPOCHS):
        anchors.begin(model)
        put_first(stats, 2.0 * anchors.first)
        history.append(stats["first"])
        for x, y in batches:
            scale = 1.0 + anchors.first + stats["first"] + sum(history)
            (functional.cross_entropy(model(x), y) / scale).backward()
            optimizer.step()
    return ended(run, model)


def members_and_masks(run: Run) -> list[Any]:
    """An attribute of an enum's member, and the mask of an array."""
    model, optimizer, batches = prepared(run)
    Phase.WARM.count = 0  # type: ignore[attr-defined]
    seen = numpy.ma.masked_array(numpy.arange(99.0), mask=False)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            seen[Phase.WARM.count] = numpy.ma.masked  # type: ignore[attr-defined]
            Phase.WARM.count += 1  # type: ignore[attr-defined]
            scale = 1.0 + float(seen.mean()) / 99
            (functional.cross_entropy(model(x), y) / scale).backward()
            optimizer.step()
    return ended(run, model)


def losses_in_a_list(run: Run) -> list[Any]:
    """The pass over the batches is within an expression."""
    model, optimizer, batches = prepared(run)

    def train_step(batch: Any) -> float:
        x, y = batch
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in run.epochs(EPOCHS):
        losses = [train_step(batch) for batch in batches]
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1.0 + sum(losses))
    return ended(run, model)
