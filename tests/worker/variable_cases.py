"""Training loops that keep values in variables, which only code between epochs changes. Each returns its final state."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points

from elasticd.worker.run import Run

best_ever = math.inf  # of the module
scores: list[float] = []


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


@torch.no_grad()
def validate(model: nn.Module) -> float:
    model.eval()
    inputs, targets = zip(*(Points()[number] for number in range(40)), strict=True)
    loss = functional.cross_entropy(model(torch.stack(inputs)), torch.tensor([int(each) for each in targets])).item()
    model.train()
    return loss


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, scale: float = 1.0) -> float:
    total = 0.0
    for x, y in batches:
        loss = functional.cross_entropy(model(x), y)
        (scale * loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total


def early_stopping(run: Run) -> list[Any]:
    """The best loss, a patience counter that lowers the rate, and a history, in variables of the function; a bound copy of the
    best weights, to which the model is reset.
    """
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    best, patience, factor = math.inf, 0, 1.0
    history: dict[str, list[float]] = {"loss": []}
    losses: list[float] = []
    same = losses
    best_state: dict[str, torch.Tensor] | None = None
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        factor *= 1 + 0.1 * epoch + 0.01 * len(losses)  # before the batches
        train_epoch(model, optimizer, batches, factor)
        loss = validate(model)
        losses.append(loss)
        history["loss"].append(loss)
        if loss < best:
            best, patience = loss, 0
            best_state = copy.deepcopy(model.state_dict())
        else:
            patience += 1
            if patience >= 1 and best_state is not None:
                model.load_state_dict(best_state)
                patience = 0
    run.finish()
    assert losses is same
    return [model.state_dict(), best_state, [best, patience, factor, history]]


def used_up(run: Run) -> list[Any]:
    """Values that code at an epoch's beginning takes out of a list, and a deque that is changed there and behind the batches."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    scales = [1.0, 0.8, 0.6, 0.4]
    window, latest = deque([1.0, 2.0], 2), [0.0]
    first = latest
    rows = [[1.0], [1.0]]
    oldest = rows[0]  # never changes, although it leaves the list
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        assert len(scales) == EPOCHS - epoch
        scale = scales.pop(0) * window.popleft()
        train_epoch(model, optimizer, batches, scale + first[0] + oldest[0])
        rows.pop(0)
        rows.append([validate(model)])
        window.append(validate(model))
        window.append(1 + 0.1 * epoch)
        latest[0] = validate(model)
    run.finish()
    assert first is latest
    return [model.state_dict(), [scales, list(window), latest, rows, oldest]]


def registered(run: Run) -> list[Any]:
    """A list that is registered by functions, and that a function of `run.every` changes as well as code between epochs."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    found: list[float] = []
    run.register("found", lambda: list(found), lambda values: found.__setitem__(slice(None), values))

    @run.every(steps=3)
    def after_some_steps() -> None:
        found.append(float(run.steps_done))

    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            ((1 + 0.1 * len(found)) * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(validate(model))
    run.finish()
    return [model.state_dict(), found]


def epochs_of(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> Iterator[float]:
    for _ in run.epochs(EPOCHS):
        train_epoch(model, optimizer, batches)
        yield validate(model)


def iterated(run: Run) -> list[Any]:
    """A loop over epochs in a generator, whose consumer keeps values and lowers the rate."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.5)
    best, bad, history = math.inf, 0, []
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for loss in epochs_of(run, model, optimizer, batches):
        history.append(loss)
        if loss < best - 0.05:
            best, bad = loss, 0
        else:
            bad += 1
            for group in optimizer.param_groups:
                group["lr"] = 0.5 / (1 + bad)
    run.finish()
    return [model.state_dict(), [best, bad, history]]


class EarlyStopping:
    __slots__ = ("best", "counter", "limit")

    def __init__(self, limit: int) -> None:
        self.limit, self.best, self.counter = limit, None, 0

    def __call__(self, loss: float) -> bool:
        if self.best is None or loss < self.best - 0.01:
            self.best, self.counter = numpy.float64(loss), 0
        else:
            self.counter += 1
        return self.counter >= self.limit


@dataclass
class Records:
    epochs: list[tuple[int, float]] = field(default_factory=list)
    means: Any = None


class Trainer:
    passes = 0  # of all trainers

    def __init__(self, run: Run) -> None:
        self.model = network()
        self.records = Records()
        self.stopping = EarlyStopping(2)
        self.weights = numpy.zeros(3)
        self.best_model: nn.Module | None = None
        self.latest: dict[str, torch.Tensor] = {}
        self.raw = torch.optim.SGD(self.model.parameters(), lr=0.2)
        _, self.optimizer, self.batches = run.prepare(self.model, self.raw, Points(), batch_size=5)

    def after_epoch(self, epoch: int) -> None:
        loss = validate(self.model)
        self.records.epochs.append((epoch, loss))
        self.records.means = numpy.mean([each for _, each in self.records.epochs])
        self.weights[epoch % 3] += loss
        self.latest = self.model.state_dict().copy()  # the model's own tensors
        if self.best_model is None or loss < min(each for _, each in self.records.epochs[:-1]):
            self.best_model = copy.deepcopy(self.model)
        Trainer.passes += 1
        if self.stopping(loss):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.5


def objects(run: Run) -> list[Any]:
    """Attributes of objects, of a class, in slots; an array changed in place, a copied model, and the model's own tensors."""
    Trainer.passes = 0
    trainer = Trainer(run)
    for epoch in run.epochs(EPOCHS):
        scale = 1 + 0.1 * Trainer.passes + float(trainer.weights.sum()) + 0.1 * len(trainer.records.epochs)
        train_epoch(trainer.model, trainer.optimizer, trainer.batches, scale)
        trainer.after_epoch(epoch)
    run.finish()
    own = {name: tensor.data_ptr() for name, tensor in trainer.model.state_dict().items()}
    assert {name: tensor.data_ptr() for name, tensor in trainer.latest.items()} == own
    assert trainer.best_model is not None
    assert trainer.best_model is not trainer.model
    stopping = [float(trainer.stopping.best or 0), trainer.stopping.counter, Trainer.passes]
    kept = [trainer.records.epochs, float(trainer.records.means), trainer.weights.tolist(), stopping]
    return [trainer.model.state_dict(), trainer.best_model.state_dict(), kept]


def of_a_module(run: Run) -> list[Any]:
    """Variables of the module, which functions change by `global`."""
    global best_ever
    best_ever = math.inf
    scores.clear()
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        train_epoch(model, optimizer, batches, 1.0 + 0.1 * len(scores) + (0.0 if math.isinf(best_ever) else best_ever))
        remember(validate(model))
    run.finish()
    return [model.state_dict(), [best_ever, scores]]


def remember(loss: float) -> None:
    global best_ever
    best_ever = min(best_ever, loss)
    scores.append(loss)


def closures(run: Run) -> list[Any]:
    """A variable that an inner function changes by `nonlocal`; a random generator that only code between epochs draws from, also
    at an epoch's beginning.
    """
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    noise = torch.Generator().manual_seed(3)
    weight = 1.0

    def lower(loss: float) -> None:
        nonlocal weight
        weight *= 0.9 if loss > 0.5 else 1.1

    for _ in run.epochs(EPOCHS):
        shift = torch.rand(3, generator=noise)
        for x, y in batches:
            (weight * functional.cross_entropy(model(x) + shift, y)).backward()
            optimizer.step()
            optimizer.zero_grad()
        lower(validate(model) + float(torch.rand((), generator=noise)))
    run.finish()
    return [model.state_dict(), [weight, noise.get_state().tolist()[:40]]]


def teachers(run: Run) -> list[Any]:
    """What is computed from the weights at an epoch's beginning: a copy of the model, and labels."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    probes = torch.stack([Points()[number][0] for number in range(40)])
    for _ in run.epochs(EPOCHS):
        teacher = copy.deepcopy(model).eval()
        with torch.no_grad():
            labels = model(probes).argmax(1)
        for x, y in batches:
            near = functional.mse_loss(model(x), teacher(x).detach())
            (functional.cross_entropy(model(x), y) + near + functional.cross_entropy(model(probes), labels)).backward()
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [model.state_dict()]


class Scaled(nn.Module):
    """A network with an attribute that its state_dict() lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.factor = 1.0
        self.offset: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.factor * self.net(inputs)
        return outputs if self.offset is None else outputs + self.offset


@dataclass
class Weight:
    epoch: int


def attributes_of_copies(run: Run) -> list[Any]:
    """Attributes of copies that differ from the model's, and of objects beside their items and fields."""
    model = Scaled()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    teacher: Any = None
    weight: Any = None
    best: Any = None
    mean: Any = None
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y) * (1.0 if weight is None else weight.of_loss)
            if teacher is not None:
                loss = loss + functional.mse_loss(model(x), teacher(x).detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        made: Any = Weight(epoch)
        made.of_loss = 0.9 ** (epoch + 1)
        weight = made
        if epoch == 0:
            teacher = copy.deepcopy(model).eval().requires_grad_(False)
            teacher.net[3].p = 0.4
            teacher.offset = torch.arange(3.0) / 10
            best = copy.deepcopy(model.state_dict())
            mean = (torch.arange(12.0).reshape(3, 4) + epoch).t()
        model.factor *= 0.9
    run.finish()
    rates = [teacher.factor, teacher.net[3].p, teacher.offset, [each.requires_grad for each in teacher.parameters()]]
    return [
        model.state_dict(),
        [weight.epoch, weight.of_loss, rates, best, best._metadata, mean.stride(), model.factor],
    ]


class Counted:
    inherited = 3

    def __init__(self) -> None:
        self.own_bodies = (
            10  # read by no other module of these tests: a function that reads a counter may be called by bodies
        )


def counters(run: Run) -> list[Any]:
    """Counters of bodies: of the function, the module, an object, its class before the first body, and a function within,
    which begins at 0 in each epoch. The loss depends on all of them.
    """
    global calls
    calls = 0
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    counted = Counted()
    global_step = 0

    def train_some(scale: float) -> int:
        global calls
        seen = 0
        for x, y in batches:
            calls += 2
            weight = scale + 0.01 * counted.own_bodies + 0.001 * calls + 0.1 * (seen % 3) + 0.01 * counted.inherited
            (weight * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
            counted.own_bodies = counted.own_bodies + 1
            counted.inherited += 1
            seen += 1
        return seen

    for epoch in run.epochs(EPOCHS):
        if epoch % 2 == 0:
            global_step += train_some(1.0)
            continue
        for x, y in batches:
            (min(1.0, 0.01 * global_step) * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
            global_step += 1
    run.finish()
    return [model.state_dict(), [global_step, calls, counted.own_bodies, counted.inherited]]


calls = 0


def flags(run: Run) -> list[Any]:
    """A flag of the leader, made at each epoch's beginning, beside a variable that changes there."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    weight, verbose = 1.0, False
    for _ in run.epochs(EPOCHS):
        weight *= 1.1
        first = run.rank == 0
        verbose = run.is_leader
        train_epoch(model, optimizer, batches, weight)
        assert first is verbose is run.is_leader, "the timetable has one leader"
    run.finish()
    return [model.state_dict(), [weight]]


class Adapted(nn.Module):
    """A network whose adapter works from some epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 3)
        self.down, self.up = nn.Parameter(0.1 * torch.ones(2, 12)), nn.Parameter(torch.zeros(3, 2))
        self.enabled = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.base(inputs)
        return outputs + inputs @ self.down.T @ self.up.T if self.enabled else outputs


def switched(run: Run) -> list[Any]:
    """An attribute and a flag of parameters, which code at each epoch's beginning sets by the epoch."""
    torch.manual_seed(5)
    model: Any = Adapted()
    raw = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        model.enabled = epoch >= 1
        model.base.requires_grad_(epoch < 1)
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [model.state_dict(), model.enabled]
