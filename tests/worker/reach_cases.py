"""Scripts, and a worker's view of their values: `python -m tests.worker.reach_cases` runs those that it reads, as JSON.

The loop body of each script runs a few times. The values before the first body and after several are printed, with the messages
for the differences. `watched` is called where the runtime would look.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAMESAKES = "functions whose variables have the same name"
BODIES = 13  # run before the second look

BEGIN = """
import copy, itertools, math, random
import numpy as np, torch
from torch import nn
import elasticd as elastic

torch.manual_seed(0)
data = torch.randn(24, 3), torch.randn(24, 1)
run = elastic.join(virtual_workers=2, seed=1)
model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LOOP = """
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=2)
for epoch in run.epochs(2):
    for x, y in watched(batches, run):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

ORDINARY = {
    "plain": BEGIN + LOOP,
    "main": BEGIN
    + """
def train(model, optimizer, batches, epochs):
    model.train()
    x = y = None
    for epoch in run.epochs(epochs):
        for i, (x, y) in enumerate(watched(batches, run)):
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            if i % 2 == 0:
                text = f"{epoch} {loss.item()}"

def main():
    train(*run.prepare(model, optimizer, data, batch_size=2), 2)

if __name__ == "script":
    main()
""",
    "scheduler": BEGIN.replace("lr=0.01", "lr=0.01, momentum=0.9")
    + "warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1)\n"
    + LOOP
    + "        warm_up.step()\n",
    "dataset of its own": BEGIN
    + """
class Noisy(torch.utils.data.Dataset):
    def __init__(self, rows, transform=None):
        self.rows, self.transform, self.targets = rows, transform, [1.0] * len(rows)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        row = self.rows[index] + 0.1 * torch.randn(3)
        return self.transform(row), torch.tensor([self.targets[index]])
data = Noisy(data[0], transform=lambda row: row * random.random())
"""
    + LOOP,
    "configuration, logs and times": """
import argparse, dataclasses, enum, logging, pathlib, tempfile, threading, time
start = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args([])
log = logging.getLogger(__name__)
lock = threading.Lock()
class Mode(enum.Enum):
    TRAIN = "train"
@dataclasses.dataclass
class Config:
    mode: Mode = Mode.TRAIN
    out: pathlib.Path = pathlib.Path("out")
    names: tuple = ("a", "b")
config = Config()
"""
    + BEGIN
    + LOOP
    + '        log.debug("loss %s after %s s", loss.item(), time.time() - start)\n',
    "batch norm and evaluation": BEGIN.replace("nn.Linear(4, 1)", "nn.BatchNorm1d(4), nn.Linear(4, 1)")
    + """
@torch.no_grad()
def evaluate(model, rows):
    total = 0.0
    for x, y in zip(*rows):
        total += ((model(x[None]) - y) ** 2).item()
    return total
"""
    + LOOP.replace("watched(", "watched(")
    + "    model.eval()\n    score = evaluate(model, data)\n    model.train()\n",
    "mixup": BEGIN
    + LOOP.replace(
        "        loss =",
        "        ratio = np.random.beta(1, 1)\n        x = ratio * x + (1 - ratio) * x.flip(0)\n        loss =",
    ),
    "a loss that is a module": BEGIN
    + """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(1))
    def forward(self, one, other):
        return (self.weight * (one - other) ** 2).mean()
criterion = Loss()
"""
    + LOOP.replace("((model(x) - y) ** 2).mean()", "criterion(model(x), y)"),
    "a trainer class": BEGIN
    + """
class Trainer:
    def __init__(self, model, optimizer, data):
        self.model, self.optimizer, self.data, self.callbacks = model, optimizer, data, [print]
    def fit(self, epochs):
        self.model, self.optimizer, self.batches = run.prepare(self.model, self.optimizer, self.data, batch_size=2)
        for epoch in run.epochs(epochs):
            for batch in watched(self.batches, run):
                loss = self.loss(batch)
                loss.backward()
                self.optimizer.step()
    def loss(self, batch):
        x, y = batch
        return ((self.model(x) - y) ** 2).mean()
Trainer(model, optimizer, data).fit(2)
""",
    "words in sets": """
words = {"a", "quick", "brown", "fox", "jumps"}
number = {word: place for place, word in enumerate(sorted(words))}
tags = frozenset(words)
pairs = {("a", 1), ("b", 2), ("c", None)}
"""
    + BEGIN
    + LOOP,
    "two optimizers": BEGIN.replace(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
        "optimizer = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[1].parameters())]",
    )
    + """
model, optimizers, batches = run.prepare(model, optimizer, data, batch_size=2)
for epoch in run.epochs(2):
    for x, y in watched(batches, run):
        ((model(x) - y) ** 2).mean().backward()
        for each in optimizers:
            each.step()
""",
    "averaged model": BEGIN
    + "averaged = torch.optim.swa_utils.AveragedModel(model)\n"
    + LOOP
    + "        averaged.update_parameters(model)\n",
    "registered": BEGIN
    + """
best = {"loss": math.inf}
run.register("best", lambda: dict(best), best.update)
class Meter:
    def __init__(self):
        self.seen = 0
    def state_dict(self):
        return {"seen": self.seen}
    def load_state_dict(self, state):
        self.seen = state["seen"]
meter = Meter()
run.register("meter", meter)
"""
    + LOOP
    + "        meter.seen += 1\n",
    "functions of functions": """
import functools, collections
@functools.lru_cache(maxsize=None)
def mask(size):
    return size * 2
def scaled(factor):
    def scale(value):
        mask(value.numel())
        return factor * value
    return scale
double = scaled(2.0)
half = functools.partial(scaled(0.5))
Point = collections.namedtuple("Point", "x y")
origin = Point(0, 0)
"""
    + BEGIN
    + LOOP.replace("model(x)", "double(model(x))"),
    "a loader": BEGIN
    + """
def collate(rows):
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(*data), batch_size=2, shuffle=True, collate_fn=collate
)
"""
    + LOOP.replace(", batch_size=2", ""),
    "adversarial": BEGIN
    + """
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=2)
for epoch in run.epochs(2):
    for x, y in watched(batches, run):
        delta = torch.zeros_like(x, requires_grad=True)
        ((model(x + delta) - y) ** 2).mean().backward()
        x = x + 0.1 * delta.grad.sign()
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
""",
    "bound before and bound anew": BEGIN
    + "loss, prediction, grads = None, torch.zeros(1), []\n"
    + LOOP.replace(
        "        loss =",
        "        prediction = model(x)\n"
        "        if epoch == 0:\n            grads = [1]\n        else:\n            grads = [x]\n        loss =",
    ),
    "odd objects": """
class Odd:
    def __init__(self):
        self.value = 1
    def __getattr__(self, name):
        raise RuntimeError("do not look")
    def __eq__(self, other):
        raise RuntimeError("do not compare")
    def __hash__(self):
        raise RuntimeError("do not hash")
    def __repr__(self):
        raise RuntimeError("do not print")
    def __len__(self):
        raise RuntimeError("do not count")
    @property
    def lazy(self):
        raise RuntimeError("do not load")
class Meta(type):
    def __getattribute__(cls, name):
        raise RuntimeError(f"do not ask for {name}")
class Liar:
    @property
    def __class__(self):
        raise RuntimeError("do not ask")
    @property
    def __dict__(self):
        raise RuntimeError("do not ask")
odd, liar, itself = Odd(), Liar(), []
itself.append(itself)
odds = [Odd(), {"a": Odd(), "b": Odd}]
"""
    + BEGIN
    + LOOP,
}

# Values that differ after some bodies from those at the beginning: the names, and words of the message.
KEPT: dict[str, tuple[str, dict[str, str]]] = {
    "counter": (
        BEGIN + "global_step = 0\n" + LOOP + "        global_step += 1\n",
        {"global_step": "is 13 on old and 0 on new (script.py:21); register it: run.state(global_step=0)"},
    ),
    "moving baseline": (
        BEGIN + "baseline = 0.0\n" + LOOP + "        baseline = 0.9 * baseline + 0.1 * loss.item()\n",
        {"baseline": "(script.py:21); register it: run.state(baseline=0.0)"},
    ),
    "an average in a list": (
        BEGIN
        + """
class EMA:
    def __init__(self, parameters):
        self.num_updates = 0
        self.shadow_params = [each.detach().clone() for each in parameters]
    def update(self, parameters):
        self.num_updates += 1
        for shadow, each in zip(self.shadow_params, parameters):
            shadow.lerp_(each.detach(), 0.1)
ema = EMA(model.parameters())
run.local("ema.shadow_params")
"""
        + LOOP
        + "        ema.update(model.parameters())\n",
        {
            "ema.num_updates": "is 13 on old and 0 on new (script.py:18); register it: run.state(num_updates=0)",
            "ema.shadow_params": "(a list of 4, script.py:20) differs between old and new; register it: "
            "run.state(shadow_params=ema.shadow_params)",
        },
    ),
    "replay buffer": (
        BEGIN
        + """
class Buffer:
    def __init__(self):
        self.items = []
buffer = Buffer()
"""
        + LOOP
        + "        buffer.items.append((x, y, 1.0))\n",
        {"buffer.items": "is a list of 13 on old and [] on new (script.py:25); register it: run.state(items=[])"},
    ),
    "teacher": (
        BEGIN
        + LOOP.replace("    for x, y", "    teacher = copy.deepcopy(model)\n    for x, y").replace(
            "loss = ((", "loss = 0.1 * teacher(x).mean() + (("
        ),
        {
            "teacher": "(a Sequential, script.py:15) differs between old and new; compute it once for all workers: teacher = "
            "run.epoch_begin(lambda: copy.deepcopy(model))"
        },
    ),
    "hidden state": (
        BEGIN.replace("nn.Linear(4, 1))", "nn.Linear(4, 1))\ncell = nn.Linear(3, 3)").replace(
            "model.parameters()", "[*model.parameters()]"
        )
        + LOOP.replace("    for x, y", "    hidden = None\n    for x, y").replace(
            "        loss =",
            "        hidden = torch.tanh(cell(x)) if hidden is None else torch.tanh(cell(x) + hidden).detach()\n"
            "        x = x + hidden\n        loss =",
        ),
        {
            "hidden": "and None on new (script.py:18); each virtual worker has its own: run.per_virtual_worker(hidden=None)"
        },
    ),
    "generators of its own": (
        BEGIN
        + """
rng = torch.Generator().manual_seed(1)
dice = random.Random(2)
noise = np.random.default_rng(3)
old = np.random.RandomState(4)
"""
        + LOOP
        + "        torch.rand(1, generator=rng), dice.random(), noise.random(), old.rand()\n",
        {
            "rng": "draw from torch's global generator, which the runtime seeds for each virtual worker, or run.state(rng=rng)",
            "dice": "(a random.Random, script.py:14) differs between old and new; draw from Python's global generator",
            "noise": "draw from NumPy's global generator",
            "old": "draw from NumPy's global generator",
        },
    ),
    "difficulty": (
        BEGIN
        + """
class Rows(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.difficulty = x, y, 0
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index] * (1 + self.difficulty), self.y[index]
data = Rows(*data)
"""
        + LOOP
        + "        data.difficulty += 1\n",
        {
            "data.difficulty": "is 13 on old and 0 on new (script.py:29); derive it from the epoch in the data set's set_epoch"
        },
    ),
    "class attribute": (
        BEGIN
        + """
class Counter:
    total = 0
def count():
    Counter.total += 1
"""
        + LOOP
        + "        count()\n",
        {"Counter.total": "is 13 on old and 0 on new (script.py:16); register it: run.state(total=0)"},
    ),
    "nonlocal counter": (
        BEGIN
        + """
def counter():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step
step = counter()
"""
        + LOOP
        + "        step()\n",
        {"step.count": "is 13 on old and 0 on new (script.py:17); register it: run.state(count=0)"},
    ),
    NAMESAKES: (
        BEGIN
        + """
def counted():
    count = 0
    def step():
        nonlocal count
        count += 1
    return step
def delayed():
    count = 0
    def gate():
        nonlocal count
        count += 1
        return float(count > 1000)
    return gate
step, gate = counted(), delayed()
sampled = (lambda seen: lambda: seen.append(0))([])
class Meter:
    def __init__(self):
        self.number = 0
class Schedule:
    number = 0  # an instance has the attribute from the first loop body on
meter, schedule = Meter(), Schedule()
"""
        + LOOP.replace("loss.backward()", "(loss * gate() / (1 + schedule.number)).backward()")
        + "        step(), sampled()\n        meter.number += 1\n        schedule.number += 1\n",
        {
            "gate.count": "is 13 on old and 0 on new (script.py:23); register it: run.state(count=0)",
            "step.count": "is 13 on old and 0 on new (script.py:17); register it: run.state(count=0)",
            "sampled.seen": "",
            "meter.number": "(script.py:43)",
            "schedule.number": "(script.py:44)",
        },
    ),
    "a function's own": (
        BEGIN
        + """
def remember(value, seen=[]):
    seen.append(value)
def called():
    called.times += 1
called.times = 0
def use():
    global uses
    uses += 1
uses = 0
"""
        + LOOP
        + "        remember(1), called(), use()\n",
        {
            "remember(seen)": "(script.py:14); register it: run.state(seen=[])",
            "called.times": "is 13 on old and 0 on new (script.py:16); register it: run.state(times=0)",
            "uses": "is 13 on old and 0 on new (script.py:20); register it: run.state(uses=0)",
        },
    ),
    "containers": (
        BEGIN
        + """
import collections
recent = collections.deque(maxlen=3)
seen = set()
words = collections.Counter()
stats = {"best": math.inf, "rest": [1, 2]}
history = []
weights = np.ones(3)
table = torch.zeros(5)
"""
        + LOOP
        + """
        recent.append(loss.item())
        seen.add(round(loss.item(), 6))
        words["a"] += 1
        stats["best"] = min(stats["best"], loss.item())
        history.append(loss.item())
        weights *= 0.9
        table[0] += 1
""",
        {
            "recent": "run.state(recent=collections.deque(maxlen=3))",
            "seen": "run.state(seen=set())",
            "words": "run.state(words=collections.Counter())",
            "stats['best']": "and inf on new (script.py:33); register it: run.state(stats={'best': math.inf, 'rest': [1, 2]})",
            "history": "and [] on new (script.py:34); register it: run.state(history=[])",
            "weights": "run.state(weights=np.ones(3))",
            "table": "run.state(table=torch.zeros(5))",
        },
    ),
    "iterators": (
        BEGIN
        + """
factors = itertools.cycle([1.0, 2.0, 3.0])
numbers = itertools.count()
rest = iter([1] * 100)
def endless():
    place = 0
    while True:
        place += 1
        yield place
source = endless()
"""
        + LOOP
        + "        next(factors), next(numbers), next(rest), next(source)\n",
        {
            "factors": "(a cycle, script.py:30) differs between old and new; keep its place: state = run.state(position=0)",
            "numbers": "(a count, script.py:30)",
            "rest": "(a list_iterator, script.py:30)",
            "source": "(a generator of endless(), script.py:30)",
        },
    ),
    "slots and a dataclass": (
        BEGIN
        + """
import dataclasses
class Slots:
    __slots__ = ("count", "unset")
    def __init__(self):
        self.count = 0
@dataclasses.dataclass
class Stats:
    best: float = math.inf
slots, stats = Slots(), Stats()
"""
        + LOOP
        + "        slots.count += 1\n        stats.best = min(stats.best, loss.item())\n",
        {
            "slots.count": "is 13 on old and 0 on new (script.py:30); register it: run.state(count=0)",
            "stats.best": "and inf on new (script.py:31); register it: run.state(best=math.inf)",
        },
    ),
    "a buffer of a loss": (
        BEGIN
        + """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1))
criterion = Loss()
"""
        + LOOP
        + "        criterion.center = criterion.center * 0.9 + loss.detach()\n",
        {"criterion.center": 'register it before prepare(): run.register("criterion", criterion)'},
    ),
    "an attribute of the model": (
        BEGIN
        + """
class Counting(nn.Sequential):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x)
model = Counting(*model)
"""
        + LOOP,
        {
            "model.calls": "(script.py:16); make it a buffer, which the job carries with the model: self.register_buffer(",
        },
    ),
    "switches": (
        BEGIN.replace("nn.Linear(4, 1))", "nn.Linear(4, 1), nn.Dropout(0.1))")
        + """
from torch.nn import functional
def square(x):
    return x ** 2
error = functional.smooth_l1_loss
activation = torch.tanh
shape = square
"""
        + LOOP.replace(
            "    for x, y",
            "    if epoch == 1:\n"
            "        error, activation, shape = functional.mse_loss, torch.sigmoid, abs\n"
            "        model[2].p = 0.5\n"
            "    for x, y",
        ),
        {
            "error": "is torch.nn.functional.mse_loss on old and torch.nn.functional.smooth_l1_loss on new (script.py:23)",
            "activation": "is sigmoid on old and tanh on new (script.py:23); choose it in every epoch from the epoch: "
            "`if epoch >= 1:` in place of `if epoch == 1:`",
            "shape": "is abs on old and script.square on new (script.py:23)",
            "model.2.p": "is 0.5 on old and 0.1 on new (script.py:24); register it: run.state(p=0.1)",
        },
    ),
    "a running loss": (
        BEGIN + LOOP.replace("    for x, y", "    running = 0.0\n    for x, y") + "        running += loss.item()\n",
        {"running": "run.state(running=0.0)"},
    ),
    "a function that holds the loop": (
        BEGIN
        + """
def main():
    step = 0
    def tick():
        nonlocal step
        step += 1
    bound = run.prepare(model, optimizer, data, batch_size=2)
    for epoch in run.epochs(2):
        for x, y in watched(bound[2], run):
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            tick()
main()
""",
        {"step": "is 13 on old and 0 on new (script.py:17); register it: run.state(step=0)"},
    ),
}

CACHES = {
    "cached functions": "import functools\n"
    + BEGIN
    + """
@functools.lru_cache(maxsize=None)
def mask(label):
    return torch.rand(3)

@functools.lru_cache(maxsize=2)
def offset(label):
    return float(torch.rand(()))
"""
    + LOOP.replace("loss = (", "offset(int(y[0] > 0)); loss = mask(int(y[0] > 0)).sum() * ("),
}
PAIRED = "a generator whose variable two workers have with equal values now"
ORDINARY |= CACHES | {
    PAIRED: BEGIN
    + """
def paired(batches):
    first = None
    for x, y in batches:
        yield x if first is None else x + first, y
        first = x if x.max() > 99 else None
"""
    + LOOP.replace("watched(batches, run)", "paired(watched(batches, run))")
}
KEPT |= {
    "options of torch's modules and numbers of an iterator": (
        BEGIN
        + """
import itertools
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.2)
numbers = itertools.count()
"""
        + LOOP
        + """
        setattr(criterion, "label_smoothing", 0.9 * criterion.label_smoothing)
        number = next(numbers)
""",
        {
            "criterion.label_smoothing": "and 0.2 on new (script.py:25); register it: run.state(label_smoothing=0.2)",
            "numbers": "(a count, script.py:26) differs between old and new; take run.steps_done in its place",
        },
    ),
    "attributes of the model": (
        BEGIN.replace(
            "model = nn.Sequential(",
            """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None
        self.mean = torch.zeros(3)
    def forward(self, x):
        self.calls += 1
        self.last = float(x.sum())
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0) * self.last
        return (x - self.mean) / self.calls
model = nn.Sequential(Norm(), """,
        )
        + LOOP,
        {
            "model.0.calls": 'carries with the model: self.register_buffer("calls", torch.tensor(0))',
            "model.0.mean": 'carries with the model: self.register_buffer("mean", torch.zeros(3))',
            "model.0.last": "register it: run.state(last=None)",
        },
    ),
    "attributes of a list, and an object that its class makes": (
        BEGIN
        + """
class History(list):
    best = math.inf

class Stats:
    instance = None

    @classmethod
    def get(cls):
        cls.instance = cls.instance or Stats()
        return cls.instance

history = History([0.0] * 40)
"""
        + LOOP.replace(
            "loss.backward()", "history.best = min(history.best, loss.item()); Stats.get().mean = history.best"
        ),
        {
            "history": "register it: run.state(history=History([0.0] * 40))",
            "Stats.instance": 'register it: run.register("instance", Stats.instance)',
        },
    ),
    "attributes of other modules, of a thread, of a namespace, and of a generator around the batches": (
        "import threading, types\n"
        + BEGIN
        + """
nn.Linear.calls = 0
torch.steps = 0
local, options = threading.local(), types.SimpleNamespace(scale=1.0)
local.ema = 1.0

def count(*_):
    nn.Linear.calls += 1

def mixed(batches):
    previous = None
    for x, y in batches:
        yield x if previous is None else x + previous, y
        previous = x

model[0].register_forward_hook(count)
"""
        + LOOP.replace("watched(batches, run)", "mixed(watched(batches, run))")
        + """
        torch.steps += 1
        local.ema *= 0.9
        options.scale *= 0.9
""",
        {
            "nn.Linear.calls": "is 13 on old and 0 on new (script.py:20); register it: run.state(calls=0)",
            "torch.steps": "is 13 on old and 0 on new (script.py:38); register it: run.state(steps=0)",
            "local.ema": "register it: run.state(ema=1.0)",
            "options.scale": "register it: run.state(scale=1.0)",
            "mixed.previous": "each worker's mixed() has its own: what it yields must follow from the batch",
        },
    ),
    "hooks of an epoch": (
        BEGIN
        + LOOP.replace(
            "    for x, y",
            "    if epoch == 1:\n"
            "        handle = model[0].register_forward_hook(lambda module, given, output: output)\n"
            "        optimizer.register_step_post_hook(lambda *_: None)\n"
            "    for x, y",
        ),
        {
            "model.0._forward_hooks[0]": "register the hook before the loop, and let it act from an epoch on",
            "optimizer._optimizer_step_post_hooks[0]": "register the hook before the loop, and let it act from an epoch on",
        },
    ),
    "weak mappings": (
        "import weakref\n"
        + BEGIN
        + """
moving = weakref.WeakKeyDictionary()
model[0].register_forward_hook(lambda module, given, output: moving.update({module: moving.get(module, 0.0) + 1.0}))
"""
        + LOOP,
        {"moving": "register it: run.state(moving="},
    ),
    "attributes of parameters": (
        BEGIN.replace("optimizer =", "model[0].weight.ema = model[0].weight.detach().clone()\noptimizer =")
        + LOOP.replace(
            "optimizer.zero_grad()", "optimizer.zero_grad(); model[0].weight.ema.lerp_(model[0].weight.detach(), 0.1)"
        ),
        {"model.0.weight.ema": "script.py:20"},
    ),
    "hidden by the library": (
        """
import contextvars, multiprocessing, os, threading
"""
        + BEGIN
        + """
temperature = contextvars.ContextVar("temperature", default=1.0)
shared = multiprocessing.Value("i", 0)
os.environ["CURRENT_STEP"] = "0"

class Counter(threading.Thread):
    def __init__(self):
        super().__init__()
        self.count = 0

counter = Counter()

def hook(module, given, output):
    hook.calls += 1

hook.calls = 0
model[0].register_forward_hook(hook)
"""
        + LOOP
        + """
        temperature.set(temperature.get() * 0.9)
        shared.value += 1
        os.environ["CURRENT_STEP"] = str(int(os.environ["CURRENT_STEP"]) + 1)
        counter.count += 1
""",
        {
            "temperature": "and 1.0 on new (script.py:40)",
            "shared": "is 13 on old and 0 on new (script.py:41)",
            "os.environ['CURRENT_STEP']": "is '13' on old and '0' on new (script.py:42)",
            "counter.count": "is 13 on old and 0 on new (script.py:43)",
            "hook.calls": "is 13 on old and 0 on new",
        },
    ),
}


def is_ours(name: str) -> bool:
    return name.startswith("watched")


def main() -> None:
    from elasticd.worker import warm
    from elasticd.worker.source.assigned import Sources
    from elasticd.worker.source.own_code import consumers
    from elasticd.worker.variables import advice
    from elasticd.worker.variables.looking import Looking
    from elasticd.worker.variables.reachable import Limits

    warm.prepare()
    gc.freeze()  # objects of this process are not the script's garbage
    answers: dict[str, Any] = {}
    for name, text in json.load(sys.stdin).items():
        answer: dict[str, Any] = {}
        numbers = iter(range(1_000))

        def watched(batches: Iterable[Any], run: Any, answer: dict[str, Any] = answer, numbers: Any = numbers) -> Any:
            for batch in batches:
                frame, number = sys._getframe(1), next(numbers)
                if number == 0:
                    parts = run._trainer.held.parts
                    looking = answer["looking"] = Looking(parts, is_ours, limits=Limits(seconds=60.0))
                    looking.begin([frame, *consumers(frame)][-1])
                    looking.first_batches(frame)
                    answer["begun"] = looking.now(frame)
                elif number == BODIES:
                    answer["now"] = answer["looking"].now(frame)
                    text, found = answer["looking"].explain(answer["now"], answer["begun"], ("old", "new"))
                    sources = Sources.of(frame)
                    answer["told"] = {each.name: advice.sentence(each, ("old", "new"), sources) for each in found}
                    answer["all"] = text
                    answer["carried"] = [each.name for each in found if answer["looking"].carries(each)]
                yield batch

        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            path = Path(directory, "script.py")
            path.write_text(text)
            with contextlib.redirect_stdout(sys.stderr):
                runpy.run_path(str(path), {"watched": watched}, "script")
        answers[name] = {
            "begun": answer["begun"].plain(),
            "now": answer["now"].plain(),
            "told": answer["told"],
            "all": answer["all"],
            "carried": answer["carried"],
        }
    json.dump(answers, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
