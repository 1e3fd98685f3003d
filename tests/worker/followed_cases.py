"""Training loops that change objects beside the model. Each returns its final state, as `training_cases` do.

They are written as for one GPU. Their changes must be equal on all workers, and equal to those of a single worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from training_cases import EPOCHS, SIZE, Points

import elasticd as elastic
from elasticd.protocol.errors import UserError
from elasticd.worker.run import Run

STEPS = 6 * EPOCHS


class Few(Points):
    """In the last step of an epoch only one virtual worker has a sample."""

    def __len__(self) -> int:
        return SIZE - 12


class Running(nn.Module):
    """Subtracts a running mean, whose buffer the forward pass changes; one sample is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.get_buffer("mean")
        if self.training:
            mean.lerp_(x.detach().mean(0), 0.1)
        return x - mean


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 16), Running(), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Linear(16, 3))


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    functional.cross_entropy(model(x), y).backward()


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, **options})


# ------------------------------------------------------------------------------------------------ hyper-parameters by hand


def used_behind_the_loop(run: Run, data: Any = None) -> list[Any]:
    """Variables of the last loop body are used at the epoch's end, as `print(loss.item())` does."""
    model = network()
    model, optimizer, batches = run.prepare(model, sgd(model), Few() if data is None else data, batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        run.report(loss=loss.item(), of=len(x))
    return [model.state_dict(), optimizer.state_dict()]


def used_behind_the_loop_of_shards(run: Run) -> list[Any]:
    """The same with shards, which a joining worker has not read."""

    def samples(shard: int) -> Iterator[tuple[torch.Tensor, int]]:
        data = Points()
        return (data[index] for index in range(shard * 28, shard * 28 + 28))

    return used_behind_the_loop(run, elastic.Shards(range(4), open=samples))


def by_hand(run: Run) -> list[Any]:
    """The rate is a function of the step; the momentum changes after the step, and both between epochs."""
    model = network()
    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5)
    rates: list[float] = []
    for epoch in run.epochs(EPOCHS):
        for group in optimizer.param_groups:
            group["weight_decay"] += 0.001 * epoch
        for x, y in batches:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * math.cos(run.steps_done)
            step(model, x, y)
            optimizer.step()
            for group in optimizer.param_groups:
                group["momentum"] *= 0.97
            optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["dampening"] += 0.01
        rates.append(optimizer.param_groups[0]["lr"])
    run.finish()
    return [model.state_dict(), optimizer.state_dict(), rates[-1]]


def by_hand_from_before(run: Run) -> list[Any]:
    """Each step lowers the rate a little."""
    model = network()
    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            for group in optimizer.param_groups:
                group["lr"] *= 0.95
            step(model, x, y)
            optimizer.step()
    run.finish()
    return [model.state_dict(), optimizer.state_dict()]


def by_hand_as_tensor(run: Run) -> list[Any]:
    """A rate that is a tensor, changed in place and replaced."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    model, optimizer, batches = run.prepare(model, optimizer, Few(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            for group in optimizer.param_groups:
                if epoch % 2:
                    group["lr"].fill_(0.02 / (1 + run.steps_done))
                else:
                    group["lr"] = torch.tensor(0.02 * math.exp(-run.steps_done))
            step(model, x, y)
            optimizer.step()
            optimizer.param_groups[0]["lr"].mul_(0.5)
    run.finish()
    return [model.state_dict(), optimizer.state_dict()]


# ---------------------------------------------------------------------------------------------------------- schedulers


def scheduled(
    run: Run,
    make: Callable[[torch.optim.Optimizer], Any],
    per_step: bool,
    before: bool = True,
    dataset: Any = None,
    optimizer: Any = None,
) -> list[Any]:
    """A scheduler that is made before or after `prepare`, and stepped in the loop over batches or over epochs."""
    model = network()
    optimizer = optimizer(model) if optimizer is not None else sgd(model)
    scheduler = make(optimizer) if before else None
    model, optimizer, batches = run.prepare(model, optimizer, dataset or Few(), batch_size=5)
    scheduler = scheduler or make(optimizer)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
            if per_step:
                scheduler.step()
            optimizer.zero_grad()
        if not per_step:
            scheduler.step()
    run.finish()
    state = {key: value for key, value in scheduler.state_dict().items() if key != "lr_lambdas"}
    return [model.state_dict(), optimizer.state_dict(), state, scheduler.get_last_lr()]


def per_step(run: Run) -> list[Any]:
    return scheduled(run, lambda optimizer: CosineAnnealingLR(optimizer, STEPS), True)


def per_step_made_late(run: Run) -> list[Any]:
    return scheduled(run, lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)), True, before=False)


def per_epoch(run: Run) -> list[Any]:
    return scheduled(run, lambda optimizer: ExponentialLR(optimizer, 0.7), False)


def one_cycle(run: Run) -> list[Any]:
    """Its scheduler changes the momentum, too."""
    return scheduled(run, lambda optimizer: OneCycleLR(optimizer, 0.1, STEPS + 1), True)


def tensor_rate(run: Run) -> list[Any]:
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)

    return scheduled(run, lambda optimizer: CosineAnnealingLR(optimizer, STEPS), True, optimizer=adam)


def one_after_another(run: Run) -> list[Any]:
    def make(optimizer: torch.optim.Optimizer) -> SequentialLR:
        warm_up, rest = LinearLR(optimizer, 0.1, total_iters=7), ExponentialLR(optimizer, 0.9)
        return SequentialLR(optimizer, [warm_up, rest], milestones=[7])

    return scheduled(run, make, True)


def chained(run: Run) -> list[Any]:
    def make(optimizer: torch.optim.Optimizer) -> ChainedScheduler:
        return ChainedScheduler([LinearLR(optimizer, 0.1, total_iters=7), ExponentialLR(optimizer, 0.9)], optimizer)

    return scheduled(run, make, True, before=False)


def two_schedulers(run: Run) -> list[Any]:
    """Two optimizers with one scheduler each, one stepped right after its optimizer, one in some steps only."""
    model = network()
    first = torch.optim.SGD(model[:2].parameters(), lr=0.05)
    second = torch.optim.Adam(model[4:].parameters(), lr=0.01)
    one, other = ExponentialLR(first, 0.9), ExponentialLR(second, 0.8)
    model, (first, second), batches = run.prepare(model, [first, second], Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            first.step()
            one.step()
            second.step()
            if run.steps_done % 5 == 0:
                other.step()
    run.finish()
    return [model.state_dict(), first.state_dict(), second.state_dict(), one.state_dict(), other.state_dict()]


def plateau(run: Run) -> list[Any]:
    """The metric is equal on all workers, here a norm of the model."""
    model = network()
    optimizer = sgd(model)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    model, optimizer, batches = run.prepare(model, optimizer, Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
        with torch.no_grad():
            scheduler.step(sum(parameter.square().sum() for parameter in model.parameters()))
    run.finish()
    return [model.state_dict(), optimizer.state_dict(), scheduler.state_dict()]


def warnings_are_right(run: Run) -> list[Any]:
    """torch must not warn that a scheduler is stepped before its optimizer."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        return scheduled(run, lambda optimizer: ExponentialLR(optimizer, 0.9), True, before=False)


# ------------------------------------------------------------------------------------------------------------ averages


def averaged(run: Run) -> list[Any]:
    """An exponential average for each step, and one for every second epoch, with buffers."""
    model = network()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa = AveragedModel(model, use_buffers=True)
    optimizer = sgd(model)
    swa_scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    model, optimizer, batches = run.prepare(model, optimizer, Few(), batch_size=5)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
            ema.update_parameters(model)
        if epoch % 2:
            swa.update_parameters(model)
            swa_scheduler.step()
    run.finish()
    return [model.state_dict(), ema.state_dict(), swa.state_dict(), swa_scheduler.state_dict()]


def teacher(run: Run) -> list[Any]:
    """The average computes in the loop body, and has its own buffers; it is updated in some steps only."""
    model = network()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model, optimizer, batches = run.prepare(model, sgd(model), Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            with torch.no_grad():
                target = ema(x)
            (functional.cross_entropy(model(x), y) + functional.mse_loss(model(x), target)).backward()
            optimizer.step()
            if run.steps_done % 3 == 0:
                ema.update_parameters(model)
    run.finish()
    return [model.state_dict(), ema.state_dict()]


def average_in_a_function(run: Run) -> list[Any]:
    """A function called after every third step sees the average of all bodies; it draws and changes values itself."""
    model = network()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    slow = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    found: list[float] = []
    run.register("found", lambda: list(found), lambda values: found.__setitem__(slice(None), values))
    data = Points()
    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5)

    @run.every(steps=3)
    def look() -> None:
        total = run.evaluate(lambda batch: ema(batch[0]).square().sum(), (data.x, data.y), batch_size=10, model=ema)
        found.append(float(total) + float(torch.rand(())))
        optimizer.param_groups[0]["lr"] *= 0.9
        slow.update_parameters(model)

    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
            ema.update_parameters(model)
    run.finish()
    return [model.state_dict(), ema.state_dict(), slow.state_dict(), optimizer.state_dict(), found]


def average_by_hand(run: Run) -> list[Any]:
    """A copy of the model, registered unchanged, and a tensor beside it."""
    model, copy = network(), network()
    norms = torch.zeros(3)
    run.register("ema", copy)
    run.register("norms", lambda: {"norms": norms}, lambda values: norms.copy_(values["norms"]))

    @torch.no_grad()
    def average() -> None:
        for own, other in zip(copy.parameters(), model.parameters(), strict=True):
            own.lerp_(other, 0.1)
        norms[run.steps_done % 3] += sum(float(own.square().sum()) for own in copy.parameters())

    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5, after_update=average)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
        with torch.no_grad():
            norms.mul_(0.5)
    run.finish()
    return [model.state_dict(), copy.state_dict(), norms]


def registered_behind_the_step(run: Run) -> list[Any]:
    """Each body would set the same; a function after the step replaces a tensor twice."""
    model = network()
    kept: dict[str, Any] = {"steps": 0, "decayed": torch.ones(3), "grown": torch.ones(3)}
    run.register("kept", lambda: dict(kept), kept.update)
    model, optimizer, batches = run.prepare(model, sgd(model), Points(), batch_size=5)

    @run.every(steps=1)
    def grow() -> None:
        kept["grown"] = kept["grown"] * 0.9
        kept["grown"] = kept["grown"] + run.steps_done

    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
            if kept["steps"] != run.steps_done:
                kept["steps"], kept["decayed"] = run.steps_done, torch.full((3,), 0.9**run.steps_done)
    run.finish()
    return [model.state_dict(), kept]


# ----------------------------------------------------------------------------- parameters of the optimizer only; buffers


class Prototypes(nn.Module):
    """A loss with weights, and with a buffer that each forward pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.centres = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen = 0.9 * self.seen + torch.bincount(y, minlength=3)
        return (x - self.centres[y]).square().mean() + 0.01 * (self.seen.std() * self.centres.square().mean())


def loss_with_weights(run: Run) -> list[Any]:
    """Its parameters, and a bare one, are known to the optimizer only."""
    model, loss = network(), Prototypes()
    temperature = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters(), temperature], lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, max_grad_norm=1.0)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            found = model(x)
            (functional.cross_entropy(found * temperature, y) + loss(found, y)).backward()
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [model.state_dict(), loss.state_dict(), temperature, optimizer.state_dict()]


def buffers_between_epochs(run: Run) -> list[Any]:
    """Buffers change at the beginning and at the end of each epoch."""
    model = network()
    model.register_buffer("epochs", torch.zeros(2))
    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        model.get_buffer("epochs")[0] += 1
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
        model.get_buffer("epochs")[1] += 1
    run.finish()
    return [model.state_dict(), optimizer.state_dict()]


def parameters_between_epochs(run: Run) -> list[Any]:
    """Weights and momentum shrink at the beginning of each epoch, weights are clamped at its end."""
    model = network()
    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for state in optimizer.state.values():
            state["momentum_buffer"].mul_(0.5)
        model[0].weight.data.mul_(0.9)  # type: ignore[operator, union-attr]
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.3, 0.3).add_(0.001)
    run.finish()
    return [model.state_dict(), optimizer.state_dict()]


class Scaled(nn.Linear):
    """Has state beyond tensors, which the forward pass changes, and a buffer that each forward pass replaces."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.history: list[float] = []
        self.scale = torch.ones(1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.history = [*self.history[-4:], float(x.detach().abs().max())]
        self.scale = torch.tensor([1 / max(1.0, *self.history)])
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x * self.scale + self.mean)

    def get_extra_state(self) -> dict[str, Any]:
        return {"history": self.history, "scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.history, self.scale = list(state["history"]), state["scale"]


def extra_state(run: Run) -> list[Any]:
    model = nn.Sequential(network(), Scaled())
    model, optimizer, batches = run.prepare(model, sgd(model), Few(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
    run.finish()
    state = model.state_dict()
    return [{key: value for key, value in state.items() if "extra" not in key}, state, optimizer.state_dict()]


# ------------------------------------------------------------------------------------------------------- random draws


class Langevin(torch.optim.SGD):
    """SGLD: noise in the update."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.001)


def noise(run: Run) -> list[Any]:
    """In the update, in a hook of the optimizer, before and after it; and at the beginning of each epoch."""
    model = network()
    optimizer = Langevin(model.parameters(), lr=0.05)

    def perturb(*_: Any) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(torch.rand(12), alpha=0.001)

    optimizer.register_step_post_hook(perturb)
    model, optimizer, batches = run.prepare(
        model, optimizer, Few(), batch_size=5, before_update=perturb, after_update=perturb
    )
    optimizer.register_step_pre_hook(perturb)
    for _ in run.epochs(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.05 + 0.01 * float(torch.rand(()))
        for x, y in batches:
            step(model, x, y)
            optimizer.step()
        optimizer.param_groups[0]["weight_decay"] = 0.01 * float(torch.rand(()))
    run.finish()
    return [model.state_dict(), optimizer.state_dict()]


# ----------------------------------------------------------------------------------------------------------- refusals


def refusal(run: Run, body: Callable[[Any, int], None], between: Callable[[Any, int], None]) -> list[Any]:
    """Returns the message of the refusal. `body` and `between` get a scheduler and this worker's rank."""
    model = network()
    optimizer = sgd(model)
    scheduler = ReduceLROnPlateau(optimizer) if between is not nothing else ExponentialLR(optimizer, 0.9)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5)
    try:
        for _ in run.epochs(EPOCHS):
            for x, y in batches:
                step(model, x, y)
                if body is set_by_rank and run.steps_done > 1:  # before, it is a newcomer that differs
                    body(scheduler, run.rank)
                optimizer.step()
                if body is step_by_rank:
                    body(scheduler, run.rank)
            between(scheduler, run.rank)
    except UserError as error:
        return [{}, str(error)]
    return [{}, "nothing"]


def nothing(scheduler: Any, rank: int) -> None:
    pass


def set_by_rank(scheduler: Any, rank: int) -> None:
    scheduler.optimizer.param_groups[0]["weight_decay"] = 0.01 * rank


def step_by_rank(scheduler: Any, rank: int) -> None:
    if rank == 0:
        scheduler.step()


def metric_by_rank(scheduler: Any, rank: int) -> None:
    scheduler.step(float(rank))


def rates_that_differ(run: Run) -> list[Any]:
    return refusal(run, set_by_rank, nothing)


def calls_that_differ(run: Run) -> list[Any]:
    return refusal(run, step_by_rank, nothing)


def metrics_that_differ(run: Run) -> list[Any]:
    return refusal(run, nothing, metric_by_rank)
