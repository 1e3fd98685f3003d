"""Training loops, each with state that is easily lost or applied twice. Each returns its final state."""

from __future__ import annotations

import os
import tempfile
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import elasticd as elastic
from elasticd.worker.run import Run

SIZE = 6 * 4 * 5 - 7  # six steps of four virtual workers with five samples, the last one short
EPOCHS = 4


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random points with random augmentation; `set_epoch` shifts them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SIZE, 12, generator=generator)
        self.y = torch.randint(0, 3, (SIZE,), generator=generator)
        self.epoch = 0

    def __len__(self) -> int:
        return SIZE

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] * (1 + 0.01 * self.epoch) + 0.1 * torch.randn(12), self.y[index]


def network(width: int = 16) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(12, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(width, width),
        nn.Linear(width, 3),
    )


def prepared(run: Run, **options: Any) -> tuple[nn.Module, Any, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), 5, **options)
    return model, optimizer, batches


def ended(run: Run, model: nn.Module) -> list[Any]:
    run.finish()
    return [model.state_dict()]


def train(
    run: Run,
    model: nn.Module,
    optimizers: Any,
    before_epoch: Any = lambda epoch: None,
    data: torch.utils.data.DataLoader[Any] | None = None,
    states: bool = True,
    **options: Any,
) -> list[Any]:
    """The ordinary loop. states: return those of the optimizers, too."""
    single = isinstance(optimizers, torch.optim.Optimizer)
    source: Any = (Points(), 5) if data is None else (data,)
    model, prepared, batches = run.prepare(model, optimizers, *source, **options)
    for epoch in run.epochs(EPOCHS):
        before_epoch(epoch)
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            for optimizer in [prepared] if single else prepared:
                optimizer.step()
                optimizer.zero_grad()
    run.finish()
    kept = [] if not states else [optimizers] if single else optimizers
    return [model.state_dict(), *(each.state_dict() for each in kept)]


def plain(run: Run) -> list[Any]:
    model = network()
    return train(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


def data_workers(run: Run) -> list[Any]:
    """The result must be that of `plain`."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return train(run, model, optimizer, num_workers=2, prefetch_factor=3)


def own_sampler(run: Run) -> list[Any]:
    """A sampler with its own generator, more samples per epoch than exist, data loader processes."""
    model = network()
    sampler = torch.utils.data.WeightedRandomSampler(
        torch.linspace(0.1, 1, SIZE).tolist(), SIZE + 20, generator=torch.Generator()
    )
    loader = torch.utils.data.DataLoader(Points(), batch_size=5, sampler=sampler, num_workers=1)
    return train(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data=loader)


class Lengths(torch.utils.data.Sampler[list[int]]):
    """Batches of two to five samples, in another order in each epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        order, begin = torch.randperm(SIZE).tolist(), 0
        for _ in range(len(self)):
            size = 2 + begin % 4
            yield order[begin : begin + size]
            begin += size

    def __len__(self) -> int:
        return 26


class Encoding(UserDict[str, Any]):
    """Like Hugging Face's `BatchEncoding`: a mapping with a method `to`."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({key: value.to(device) for key, value in self.items()})


def encode(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> Encoding:
    x, y = torch.utils.data.default_collate(samples)
    return Encoding({"inputs": x, "labels": y})


def own_batches(run: Run) -> list[Any]:
    """Batches of different sizes, in a mapping of the script's own; the last step has two of them."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(
        model, optimizer, Points(), batch_sampler=Lengths(), collate_fn=encode, num_workers=1
    )
    assert len(batches) == run.steps_per_epoch == 7
    for _ in run.epochs(EPOCHS):
        for batch in batches:
            assert type(batch) is Encoding
            functional.cross_entropy(model(batch["inputs"]), batch["labels"]).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), optimizer.state_dict()]


def saved_in_the_loop(run: Run) -> list[Any]:
    """`run.save` in each body, within a step, and between epochs. The result must be that of `plain`."""
    model = network()
    path = Path(tempfile.mkdtemp()) / "model.pt"
    applied: list[tuple[str, torch.Tensor]] = []

    def keep() -> None:
        applied[:] = [(name, value.clone()) for name, value in model.state_dict().items()]

    def check() -> None:
        if run.is_leader:  # writes it at once, since nothing is compared
            run.save(model, path)
            found = torch.load(path)
            assert all(torch.equal(found[name], value) for name, value in applied), "not what was applied last"
            path.unlink()

    keep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, after_update=keep)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            check()
            loss.backward()
            optimizer.step()
            check()
        check()
    run.save(model, path)
    assert path.exists() == run.is_leader
    return [model.state_dict(), optimizer.state_dict()]


def no_overlap(run: Run) -> list[Any]:
    """The result must be that of `plain`."""
    model = network()
    return train(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), overlap=False)


def many_segments(run: Run) -> list[Any]:
    """More than one segment and bucket, so that communication can overlap."""
    model = nn.Sequential(network(600), nn.Linear(3, 900), nn.ReLU(), nn.Linear(900, 900), nn.Linear(900, 3))
    return train(run, model, torch.optim.AdamW(model.parameters(), lr=0.001), max_grad_norm=0.5)


def several_optimizers_and_schedulers(run: Run) -> list[Any]:
    model = network()
    first = torch.optim.AdamW(model[0].parameters(), lr=0.01)
    second = torch.optim.SGD([*model[1].parameters(), *model[4:].parameters()], lr=0.1, momentum=0.9, nesterov=True)
    schedulers = [
        torch.optim.lr_scheduler.LinearLR(first, 0.1, total_iters=8),
        torch.optim.lr_scheduler.CosineAnnealingLR(second, 20),
    ]
    return train(run, model, [first, second], scheduler=schedulers)


def mixed_precision(run: Run) -> list[Any]:
    """autocast, and a scaler whose scale overflows at first: skipped steps."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    raw = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=5)
    scaler = run.scaler(raw)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, max_grad_norm=1.0)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = 64 * functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    run.finish()
    assert raw.get_scale() < 2.0**127, "no step was skipped"
    return [model.state_dict(), optimizer.state_dict(), raw.state_dict()]


def several_types(run: Run) -> list[Any]:
    """Parameters of three types, one of them without a gradient, one tied."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.first = nn.Linear(12, 12)
            self.tied = nn.Linear(12, 12)
            self.tied.weight = self.first.weight
            self.middle = nn.Linear(12, 8).to(torch.bfloat16)
            self.last = nn.Linear(8, 3).to(torch.float64)
            self.unused = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.tied(self.first(x).relu())
            return torch.as_tensor(self.last(self.middle(x.bfloat16()).relu().double()))

    model = Model()
    return train(run, model, torch.optim.AdamW(model.parameters(), lr=0.01))


def unfreezing(run: Run) -> list[Any]:
    """Parameters that are trained from the second epoch on, in a separate group."""
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.05, momentum=0.9)

    def before_epoch(epoch: int) -> None:
        if epoch >= 1 and len(optimizer.param_groups) == 1:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})

    return train(run, model, optimizer, before_epoch)


def frozen_in_a_body(run: Run) -> list[Any]:
    """A parameter that a loop body freezes, before the step's first gradient."""
    model = network()
    model, optimizer, batches = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), Points(), batch_size=5
    )
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done >= 8:
                model[-1].bias.requires_grad_(False)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict()]


def two_passes(run: Run, noise: float = 0.0, **options: Any) -> list[Any]:
    """Two backward passes for each batch."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5, **options)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            (0.1 * model(x).square().mean()).backward()
            if noise:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.add_(noise * torch.randn_like(parameter))
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [model.state_dict(), raw.state_dict()]


def gradients_that_are_changed(run: Run) -> list[Any]:
    """Gradients are changed, with noise added: nothing may be sent before `step`."""
    return two_passes(run, noise=0.01, overlap=False)


def closures(run: Run) -> list[Any]:
    """`step(closure)`. The result must be that of `plain`."""
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0
    run.finish()
    return [model.state_dict(), raw.state_dict()]


def adversarial(run: Run) -> list[Any]:
    """A GAN: two updates from each batch, of two optimizers, each with a scheduler."""
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12))
    discriminator = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
    first = torch.optim.Adam(discriminator.parameters(), lr=0.01, betas=(0.5, 0.999))
    second = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.9)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.95) for each in (first, second)]
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    _, (of_discriminator, of_generator), batches = run.prepare(
        both,
        [first, second],
        Points(),
        batch_size=5,
        updates={"discriminator": first, "generator": second},
        scheduler=schedulers,
        max_grad_norm=1.0,
    )
    assert run.steps_per_epoch == len(batches) == 12
    for _ in run.epochs(2):
        for x, _ in batches:
            made = generator(torch.randn(len(x), 4)) if len(x) > 1 else x
            if batches.update == "discriminator":
                score = torch.cat([discriminator(x), discriminator(made.detach())])
                real = torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])
                functional.binary_cross_entropy_with_logits(score, real).backward()
                of_discriminator.step()
            else:
                score = discriminator(made)
                functional.binary_cross_entropy_with_logits(score, torch.ones(len(x), 1)).backward()
                of_generator.step()
    run.finish()
    return [both.state_dict(), first.state_dict(), second.state_dict(), *(each.state_dict() for each in schedulers)]


def global_gradient(run: Run) -> list[Any]:
    """`before_update` sees the global gradient, `after_update` the new parameters, once per step."""
    model = network()
    seen: list[float] = []
    run.register("seen", lambda: list(seen), lambda values: seen.__setitem__(slice(None), values))

    def clip() -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.02)
        seen.append(float(sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None)))

    def clamp() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.5, 0.5)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = train(run, model, optimizer, before_update=clip, after_update=clamp)
    return [*state, seen]


def compiled(run: Run) -> list[Any]:
    """A model compiled by torch.compile."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    model = torch.compile(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)), backend="aot_eager")
    torch.manual_seed(5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return train(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), drop_last=True)


def compiled_by_default(run: Run) -> list[Any]:
    """`torch.compile` with its default backend, which generates C++ code, under autocast."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch.manual_seed(5)
    model = torch.compile(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)), dynamic=True)
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    return [model.state_dict(), raw.state_dict()]


class Blocks(nn.Module):
    """A tied embedding, and blocks with dropout whose activations are recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(7, 12)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.3), nn.Linear(24, 12)) for _ in range(3)
        )
        self.head = nn.Linear(12, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if again else block(x))
        return torch.as_tensor(self.head(x + self.embedding.weight.mean(0)))


def checkpointed(run: Run, again: bool = True) -> list[Any]:
    """Activation checkpointing, which draws the same dropout twice."""
    model = Blocks()
    raw = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, raw, Points(), batch_size=5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x, again), y).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), raw.state_dict()]


def not_checkpointed(run: Run) -> list[Any]:
    """The result must be that of `checkpointed`."""
    return checkpointed(run, again=False)


LENGTHS = (31, 8, 0, 57, 22, 3, 40, 99)  # of the shards


class Shard:
    """Random points with random augmentation, in sequence; `set_epoch` shifts them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(self.number)
        for _ in range(LENGTHS[self.number]):
            x = torch.randn(12, generator=generator) * (1 + 0.01 * self.epoch) + 0.1 * torch.randn(12)
            yield x, torch.randint(0, 3, (), generator=generator)


class Divided(torch.utils.data.IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same as a PyTorch dataset: each data loader process reads some of the shards, in each epoch others."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for number in range(info.id, len(LENGTHS), info.num_workers):
            yield from Shard((number + self.epoch) % len(LENGTHS))


def sequential(run: Run, dataset: Any = None, **options: Any) -> list[Any]:
    """Shards of unequal lengths, in randomly mixed batches."""
    torch.manual_seed(5)
    model: nn.Module = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = dataset or elastic.Shards(range(len(LENGTHS)), open=Shard)
    model, optimizer, batches = run.prepare(model, raw, dataset, batch_size=4, **options)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), raw.state_dict()]


def one_shard(run: Run) -> list[Any]:
    """Fewer shards than virtual workers."""
    return sequential(run, elastic.Shards([7], open=Shard))


def iterable(run: Run) -> list[Any]:
    return sequential(run, Divided())


def read_ahead(run: Run) -> list[Any]:
    """The result must be that of `sequential`."""
    return sequential(run, num_workers=3)
