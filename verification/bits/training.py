"""Models and training loop: a small convolutional network, with SGD or LBFGS, and a small transformer, with every feature of
which bits are easily lost.

    ELASTIC_VIRTUAL_WORKERS=4 python -m verification.bits.training cnn 16 result.pt

The network has batch normalization, dropout, random augmentation, and SGD with momentum or LBFGS with a line search, which
evaluates the loss of each step several times. The transformer has dropout, AdamW, a learning rate that warms up, and gradient
clipping. In the last step of each epoch one virtual worker has no sample. Both register a list that grows with every step, so
that a step that is run twice, or not at all, shows there too. As in other people's scripts, the loops step schedulers and an
exponential average, and set the weight decay by hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import elasticd

SEED = 7  # of the job
BATCH_SIZE = 3  # per virtual worker
STEPS_PER_EPOCH = 12
SIDE = 8  # of an image, in pixels
TOKENS = 12  # of a sentence
WORDS = 16
WIDTH = 24


@dataclass(frozen=True)
class Recipe:
    """A model with its data, optimizer and scheduler."""

    build: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None
    max_grad_norm: float | None
    dataset: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluates_again: bool = False  # the optimizer evaluates the loss several times per step, by a closure


# ---------------------------------------------------------------------------------------------------- the network


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random images, with noise that is drawn at each access."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._images = torch.randn(size, 1, SIDE, SIDE, generator=generator)
        self._labels = torch.randint(0, 4, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images[index] + 0.1 * torch.randn(1, SIDE, SIDE), self._labels[index]


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * (SIDE // 2) ** 2, 4),
    )


def _label_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


# ------------------------------------------------------------------------------------------------- the transformer


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        found: torch.Tensor = self.out(self.layers(self.words(tokens) + self.places, mask=mask, is_causal=True))
        return found


def _sentences(size: int) -> Sequence[torch.Tensor]:
    return (torch.randint(0, WORDS, (size, TOKENS + 1), generator=torch.Generator().manual_seed(2)),)


def _next_word_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    (tokens,) = batch
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


MODELS = {
    "cnn": Recipe(
        build=_network,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
        scheduler=None,
        max_grad_norm=None,
        dataset=Images,
        loss=_label_loss,
    ),
    "transformer": Recipe(
        build=Transformer,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=40),
        max_grad_norm=0.5,
        dataset=_sentences,
        loss=_next_word_loss,
    ),
    "lbfgs": Recipe(
        build=_network,
        optimizer=lambda model: torch.optim.LBFGS(
            model.parameters(), max_iter=3, history_size=4, line_search_fn="strong_wolfe"
        ),
        scheduler=None,
        max_grad_norm=None,
        dataset=Images,
        loss=_label_loss,
        evaluates_again=True,
    ),
}


# ------------------------------------------------------------------------------------------------------- the loop


def build(recipe: Recipe) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
    """Return the model at the beginning of the training, its optimizer and its scheduler."""
    torch.manual_seed(SEED)
    model = recipe.build()
    optimizer = recipe.optimizer(model)
    return model, optimizer, recipe.scheduler(optimizer) if recipe.scheduler is not None else None


def dataset_size(virtual_workers: int) -> int:
    """Return the number of samples with which all virtual workers but one have a sample in an epoch's last step."""
    return (STEPS_PER_EPOCH - 1) * virtual_workers * BATCH_SIZE + virtual_workers - 1


def gradient_size(model: nn.Module) -> float:
    """Return a number that depends on every element of the global gradient."""
    return float(sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None))


def train(name: str, run: elasticd.Run, epochs: int) -> dict[str, Any]:
    """Train `name` of MODELS. Returns the final state."""
    recipe = MODELS[name]
    model, optimizer, scheduler = build(recipe)
    seen: list[float] = []
    run.register("seen", lambda: list(seen), lambda values: seen.__setitem__(slice(None), values))
    _, elastic, batches = run.prepare(
        model,
        optimizer,
        recipe.dataset(dataset_size(run.virtual_workers)),
        BATCH_SIZE,
        max_grad_norm=recipe.max_grad_norm,
        before_update=None if recipe.evaluates_again else lambda: seen.append(gradient_size(model)),
        after_update=(lambda: seen.append(run.means["loss"])) if recipe.evaluates_again else None,
    )
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    for epoch in run.epochs(epochs):
        for batch in batches:
            for group in elastic.param_groups:
                group["weight_decay"] = 1e-4 * (1 + run.steps_done % 5)

            def closure(batch: Any = batch) -> torch.Tensor:
                elastic.zero_grad()
                loss = recipe.loss(model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                run.share(loss=loss)
                return loss

            if recipe.evaluates_again:
                elastic.step(closure)
            else:
                recipe.loss(model, batch).backward()  # type: ignore[no-untyped-call]
                elastic.step()
            if scheduler is not None:
                scheduler.step()
            if run.steps_done % 2:
                averaged.update_parameters(model)
            elastic.zero_grad()
        for group in elastic.param_groups:
            group["lr"] *= 0.99 + 0.001 * epoch
    run.finish()
    kept = {"seen": seen, "steps": run.steps_done, "averaged": averaged.state_dict()}
    return document(model, optimizer, scheduler, kept)


def document(model: nn.Module, optimizer: Any, scheduler: Any, beside: dict[str, Any]) -> dict[str, Any]:
    """Return the state that is compared: parameters, buffers, optimizer, scheduler, and values kept beside them."""
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler is not None else {},
        "beside": beside,
    }


def save(what: dict[str, Any], path: str) -> None:
    """Save atomically: the file is complete as soon as it has its name."""
    torch.save(what, path + ".part")
    os.replace(path + ".part", path)


def main() -> None:
    name, epochs, path = sys.argv[1:]
    save(train(name, elasticd.join(seed=SEED), int(epochs)), path)


if __name__ == "__main__":
    main()
