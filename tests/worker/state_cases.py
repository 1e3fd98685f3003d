"""Training loops whose loss depends on the script's own values. Each returns its final state."""

from __future__ import annotations

import copy
import math
import random
from collections import deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points

from elasticd.worker.run import Run

Transition = namedtuple("Transition", "x y")


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def curriculum(run: Run) -> list[Any]:
    """A counter of global steps, updated after the step; the best loss, before it; a scalar tensor that the first step sets."""
    model = network()
    state = run.state(step=0, best=math.inf, scale=None)
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done == 0:
                state.scale = x.abs().max()
            loss = functional.cross_entropy(model(x / state.scale * min(1.0, 0.3 + 0.05 * state.step)), y)
            state.best = min(state.best, loss.item())
            (loss * (1 + 0.1 * state.best)).backward()
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            assert state.step == run.steps_done
        state.best += 0.01 * epoch
    run.finish()
    return [model.state_dict(), raw.state_dict(), [state.step, state.best]]


def averages(run: Run) -> list[Any]:
    """An average of the weights in a list, updated after the step through `data` as in older scripts; and one of inputs in a
    tensor, in place before the step.
    """
    model = network()
    shadow = [parameter.clone() for parameter in model.parameters()]
    state = run.state(shadow=shadow)
    run.state(mean=torch.zeros(12), seen=numpy.zeros(3), weight=numpy.float32(0.3))
    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            state.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            state.seen += numpy.bincount(y.numpy(), minlength=3)
            state.weight *= numpy.float32(0.99)
            near = sum((p - s).square().sum() for p, s in zip(model.parameters(), state.shadow, strict=True))
            loss = functional.cross_entropy(model(x - state.mean), y) + float(state.weight) * near
            (loss + 1e-3 * float(state.seen[0]) * model[0].weight.sum()).backward()
            optimizer.step()
            for old, new in zip(state.shadow, model.parameters(), strict=True):
                old.data.mul_(0.95).add_(new.data, alpha=0.05)
            assert state.shadow is shadow
    run.finish()
    return [model.state_dict(), state.shadow, [state.mean, state.seen.tolist(), float(state.weight)]]


@dataclass
class Counts:
    bodies: int = 0
    last: list[float] = field(default_factory=list)


def replay(run: Run) -> list[Any]:
    """A buffer of past inputs that grows, is sampled with the script's own generator, and forgets."""
    model = network()
    state = run.state(memory=deque(maxlen=9), rng=torch.Generator().manual_seed(4), numbers=numpy.random.default_rng(1))
    run.state(counts=Counts(), kinds={"seen"}, by_name={"a": [(1, 2.0)]})
    raw = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            state.memory.append(
                Transition(x[: 1 + len(state.memory) % 3].clone(), y[: 1 + len(state.memory) % 3].clone())
            )
            chosen = state.memory[int(torch.randint(len(state.memory), (), generator=state.rng))]
            state.counts.bodies += 1
            state.counts.last = [float(x[0, 0])]
            loss = functional.cross_entropy(model(x), y) + functional.cross_entropy(model(chosen.x), chosen.y)
            (loss * (1 + state.numbers.random()) + 0.01 * state.counts.last[0] * model[0].bias.sum()).backward()
            optimizer.step()
            state.kinds.add(f"epoch {epoch}")
        state.memory.popleft()
        state.by_name[f"epoch {epoch}"] = [(state.counts.bodies, 0.5)]
    run.finish()
    return [
        model.state_dict(),
        raw.state_dict(),
        [[*state.memory], state.counts.bodies, sorted(state.kinds), state.by_name],
    ]


def large(run: Run) -> list[Any]:
    """A tensor that is too large for a control message, changed before the step."""
    model = network()
    state = run.state(bank=torch.zeros(5000, 12), at=0)
    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            state.bank[state.at : state.at + len(x)] = x
            state.at += len(x)
            functional.cross_entropy(model(x - state.bank.sum(0) / state.at), y).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), state.bank, state.at]


def in_hooks(run: Run) -> list[Any]:
    """Changed in `after_update` and in functions between steps."""
    model = network()
    state = run.state(norm=0.0, shadow=copy.deepcopy(dict(model.state_dict())), decay=0.5)

    def update() -> None:
        state.norm = float(model[0].weight.norm())
        for name, value in model.state_dict().items():
            state.shadow[name] = torch.lerp(state.shadow[name], value, 1 - state.decay)

    @run.every(steps=3)
    def change() -> None:
        state.decay = min(0.99, state.decay + 0.01 * state.norm)

    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5, after_update=update)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            kept = torch.func.functional_call(model, state.shadow, (x,)).softmax(1)
            functional.cross_entropy(model(x) + state.decay * kept, y).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), state.shadow, state.decay]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cell = nn.GRUCell(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.cell(x, hidden)
        return self.head(hidden), hidden


def recurrent(run: Run) -> list[Any]:
    """Truncated backpropagation through time: each virtual worker continues from its own hidden state. Baselines and buffers."""
    model = Recurrent()
    own = run.per_virtual_worker(hidden=None, baseline=0.0)
    run.per_virtual_worker(past=deque(maxlen=4), rng=torch.Generator().manual_seed(2))
    raw = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    ends = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done % len(batches) == 0 or own.hidden is None:
                own.hidden = torch.zeros(5, 8)
            noise = torch.randn(12, generator=own.rng)
            out, hidden = model(x + 0.1 * noise, own.hidden[: len(x)])
            own.hidden = torch.cat([hidden, own.hidden[len(x) :]])
            loss = functional.cross_entropy(out, y)
            own.past.append(x[0])
            past, _ = model(torch.stack([*own.past]), torch.zeros(len(own.past), 8))
            own.baseline = 0.9 * own.baseline + 0.1 * loss.item()
            ((loss - own.baseline).square() + past.square().mean()).backward()
            optimizer.step()
    ends = [run._registered.virtual.get(name) for name in ("hidden", "baseline", "past")]
    run.finish()
    return [model.state_dict(), raw.state_dict(), [ends[0], ends[1], [[*each] for each in ends[2]]]]


def teachers(run: Run) -> list[Any]:
    """Per epoch: a copy of the model, pseudo-labels, cluster centres that are drawn and moved, a set of numbers."""
    model = network()
    raw = torch.optim.Adam(model.parameters(), lr=0.01)
    points = Points()
    state = run.state(step=0)
    model, optimizer, batches = run.prepare(model, raw, points, batch_size=5)
    kept: list[Any] = []

    def clusters() -> tuple[torch.Tensor, dict[str, float]]:
        chosen = points.x[torch.randperm(len(points))[: 3 + int(model[0].bias[0] > 0)]]
        return chosen.clone(), {"scale": float(model[0].weight.detach().norm()) + state.step}

    for _ in run.epochs(EPOCHS):
        teacher = run.epoch_begin(lambda: copy.deepcopy(model).eval())
        with torch.no_grad():
            labels = run.epoch_begin(lambda: model(points.x).argmax(1))
        centres, numbers = run.epoch_begin(clusters)
        norm = run.epoch_begin(lambda: float(model[0].weight.detach().norm()))
        for x, y in batches:
            with torch.no_grad():
                soft = teacher(x).softmax(1)
            near = torch.cdist(x, centres).min(1).values.mean()
            loss = functional.cross_entropy(model(x), y) + functional.cross_entropy(model(x), soft)
            loss = loss * (1 + 0.01 * numbers["scale"] + 0.1 * near + 0.1 * labels.float().mean() + 0.1 * norm)
            loss.backward()
            optimizer.step()
            state.step += 1
        kept = [teacher.state_dict(), labels, centres, numbers]
    run.finish()
    return [model.state_dict(), raw.state_dict(), kept]


def a_loss_behind_the_step(run: Run) -> list[Any]:
    """Refused: the last body differs between workers."""
    model = network()
    state = run.state(last=0.0)
    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if run.steps_done > 3:
                state.last = loss.item()
    run.finish()
    return [model.state_dict()]


def leaders_draws(run: Run) -> list[Any]:
    """Draws on the leader alone: after the step, in a function between steps, at an epoch's edges and before `agree`. The later
    draws of all workers must be equal.
    """
    model = network()
    state = run.state(scale=torch.ones(12), order=[0])
    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    data = Points()

    def estimate() -> None:
        if run.is_leader:
            random.random()
            numpy.random.rand(3)
            with torch.no_grad():
                model(data.x[torch.randint(0, len(data), (4,))])

    run.every(steps=2)(estimate)

    @run.every(steps=2)
    def draw() -> None:
        state.scale = 1 + 0.1 * torch.rand(12)

    for _ in run.epochs(EPOCHS):
        estimate()
        noise = run.epoch_begin(lambda: torch.rand(12))
        for x, y in batches:
            functional.cross_entropy(model(x * state.scale + noise), y).backward()
            optimizer.step()
            estimate()
        estimate()
        run.agree(0)
        state.order = torch.randperm(9).tolist()
        state.order.append(random.randrange(100))
        estimate()
        run.evaluate(lambda batch: model(batch[0]).sum(), data, 16)
        state.scale = state.scale * float(numpy.random.rand())
        estimate()
    run.finish()
    return [model.state_dict(), [*state.order], state.scale]


def leaves_its_loop(run: Run) -> list[Any]:
    """Each worker leaves another loop body, and draws after it."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done == 23:
                break
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        else:
            continue
        break
    drawn = [torch.rand(3), random.random(), numpy.random.rand(2)]
    run.finish()
    return [model.state_dict(), drawn]
