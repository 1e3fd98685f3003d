"""Scripts that may apply `fully_shard`: each NAME divides its model, and NAME_whole is the same script without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from training_cases import EPOCHS, Points, network

from elasticd.worker.run import Run


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width + 1), nn.GELU(), nn.Linear(3 * width + 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return torch.as_tensor(x + self.mlp(self.second(x)))


class Transformer(nn.Module):
    """Twelve numbers are a sequence of four vectors."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Linear(3, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.head = nn.Linear(width, 3)
        self.unused = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.view(len(x), 4, 3))
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.frozen(x).mean(1)))


def plain_tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {key: getattr(value, "_local_tensor", value) for key, value in state.items()}


def train(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    body: Callable[[], None] = lambda: None,
    left_at: int | None = None,
    **options: Any,
) -> list[Any]:
    model, optimizer, batches = run.prepare(model, optimizer, Points(), batch_size=5, **options)
    norms: list[float | None] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done == left_at:
                break
            body()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.steps_done == left_at:
            break
        norms.append(run.grad_norm)
    run.finish()
    return [plain_tensors(model.state_dict()), *([] if None in norms else norms[-1:])]


def transformer_whole(run: Run, divided: bool = False) -> list[Any]:
    """AdamW with a schedule, clipped."""
    model = Transformer()
    if divided:
        for block in model.blocks:
            fully_shard(block, mesh=run.mesh())
        fully_shard(model, mesh=run.mesh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    return train(run, model, optimizer, scheduler=schedule, max_grad_norm=0.5)


def clipped_in_bodies_whole(run: Run, divided: bool = False) -> list[Any]:
    """BatchNorm, two groups, momentum; the root is the only layer. The loop is left in its middle."""
    model = network()
    if divided:
        fully_shard(model, mesh=run.mesh(), reshard_after_forward=False)
    groups = [{"params": [*model[0].parameters()], "lr": 0.1}, {"params": [*model[1:].parameters()]}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return train(run, model, optimizer, lambda: run.clip(0.7), left_at=21)


def state_from_before_whole(run: Run, divided: bool = False) -> list[Any]:
    """Adagrad begins with a state."""
    model = network()
    if divided:
        for layer in (model[0], model[4]):
            fully_shard(layer, mesh=run.mesh())
        fully_shard(model, mesh=run.mesh())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.3)
    return train(run, model, optimizer, num_workers=1)


transformer = partial(transformer_whole, divided=True)
clipped_in_bodies = partial(clipped_in_bodies_whole, divided=True)
state_from_before = partial(state_from_before_whole, divided=True)
