"""Training loops whose losses compare samples of the whole global batch. Each returns its final state."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points

from elasticd.worker.run import Run


class Towers(nn.Module):
    """Two encoders and a temperature, as in CLIP."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.image = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8)
        )
        self.text = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.normalize(self.image(x), dim=-1), functional.normalize(self.text(x.flip(-1)), dim=-1)


def local_loss(
    image: torch.Tensor, text: torch.Tensor, images: torch.Tensor, texts: torch.Tensor, own: Any, scale: Any
) -> Any:
    """Loss of this batch's rows against all rows."""
    labels = torch.arange(len(image)) + own * len(image)
    one = functional.cross_entropy(scale * image @ texts.T, labels)
    return (one + functional.cross_entropy(scale * text @ images.T, labels)) / 2


def clip(run: Run, differentiable: bool = True) -> list[Any]:
    """A training that counts its steps, clips, averages, and steps a scheduler in its loop."""
    model = Towers()
    state = run.state(step=0, mean=torch.zeros(12))
    raw = torch.optim.AdamW(model.parameters(), lr=0.01)
    options: Any = {"batch_size": 5, "drop_last": True, "gathers": True}
    model, optimizer, batches = run.prepare(model, raw, Points(), **options)
    warm_up = torch.optim.lr_scheduler.LinearLR(raw, 0.1, total_iters=7)
    for _ in run.epochs(EPOCHS):
        for x, _ in batches:
            state.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            image, text = model(x - state.mean)
            images, texts = run.gather(image, differentiable), run.gather(text, differentiable)
            loss = local_loss(image, text, images, texts, run.virtual_worker, model.scale.exp())
            run.mean(loss=loss)
            run.clip(0.5)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            warm_up.step()
            state.step += 1
            assert state.step == run.steps_done
    run.finish()
    return [model.state_dict(), raw.state_dict(), [state.step, state.mean, warm_up.last_epoch, run.means["loss"]]]


def others_are_constant(run: Run) -> list[Any]:
    return clip(run, differentiable=False)


def simclr(run: Run) -> list[Any]:
    """Two random views of each sample, and a loss of the whole batch in every body."""
    model = Towers().image
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options: Any = {"batch_size": 5, "drop_last": True, "gathers": True}
    model, optimizer, batches = run.prepare(model, raw, Points(), **options)
    for _ in run.epochs(EPOCHS):
        for x, _ in batches:
            first, second = (
                run.gather(functional.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1)) for _ in range(2)
            )
            both = torch.cat([first, second])
            similar = (both @ both.T / 0.5).masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)
            functional.cross_entropy(similar, torch.arange(len(both)).roll(len(first))).backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), raw.state_dict()]


class ByLoss(torch.utils.data.Sampler[int]):
    """Draws samples by weights from the training."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __len__(self) -> int:
        return len(self._state.weights)

    def __iter__(self) -> Any:
        return iter(torch.multinomial(self._state.weights + 0.01, len(self), replacement=True).tolist())


def sampler_by_losses(run: Run) -> list[Any]:
    """The losses of all samples weight the next epoch's draws."""
    model, data = Towers().image, Points()
    model.append(nn.Linear(8, 3))
    numbers = torch.utils.data.StackDataset(data, range(len(data)))
    state = run.state(losses=torch.ones(len(data)), weights=torch.ones(len(data)))
    raw = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options: Any = {"batch_size": 5, "drop_last": True, "gathers": True, "sampler": ByLoss(state)}
    model, optimizer, batches = run.prepare(model, raw, numbers, **options)
    for _ in run.epochs(EPOCHS):
        state.weights = state.losses.clone()
        for (x, y), index in batches:
            losses = functional.cross_entropy(model(x), y, reduction="none")
            state.losses[run.gather(index)] = run.gather(losses.detach(), differentiable=False)
            losses.mean().backward()
            optimizer.step()
    run.finish()
    return [model.state_dict(), raw.state_dict(), [state.losses]]
