"""Models and data of the measurements. Data are random and in memory, so reading them takes almost no time in any loop.

The *throughput* models have few parameters for their work, as models on an accelerator have: a transformer over hundreds of
tokens, a convolutional network with normalization over images. The *stacks* are linear layers with a large state for their work:
the state is what is transferred when workers come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

CLASSES = 10
VOCABULARY = 256


@dataclass(frozen=True)
class Workload:
    """A model with its data. `batch_size`: samples of one micro-batch."""

    model: nn.Module
    data: tuple[torch.Tensor, torch.Tensor]
    batch_size: int
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def build(name: str) -> Workload:
    """Return the workload `name`, equal in every process."""
    torch.manual_seed(0)
    return WORKLOADS[name]()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all measurements."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class _Block(nn.Module):
    """Two convolutions with normalization, around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class _Language(nn.Module):
    """A small causal language model."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.tokens(x) + self.places, mask=self.mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


def _images(channels: int, blocks: int, batch_size: int) -> Workload:
    body = [_Block(channels) for _ in range(blocks)]
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )
    data = torch.randn(512, 3, 32, 32), torch.randint(0, CLASSES, (512,))
    return Workload(model, data, batch_size, nn.functional.cross_entropy)


def _language(width: int, layers: int, length: int, batch_size: int) -> Workload:
    text = torch.randint(0, VOCABULARY, (512, length + 1))
    data = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return Workload(
        _Language(width, layers, length), data, batch_size, lambda out, y: nn.functional.cross_entropy(out, y.flatten())
    )


def _stack(width: int, layers: int, batch_size: int, inputs: int = 64) -> Workload:
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))
    data = torch.randn(4096, inputs), torch.randint(0, CLASSES, (4096,))
    return Workload(model, data, batch_size, nn.functional.cross_entropy)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "convolutions-0.1M": lambda: _images(channels=38, blocks=4, batch_size=16),
    "transformer-10M": lambda: _language(width=320, layers=8, length=64, batch_size=4),
    "transformer-100M": lambda: _language(width=1024, layers=8, length=64, batch_size=4),
    "stack-0.1M": lambda: _stack(width=210, layers=2, batch_size=16),
    "stack-10M": lambda: _stack(width=1024, layers=10, batch_size=8),
    "stack-25M": lambda: _stack(width=2048, layers=6, batch_size=8),
    "stack-100M": lambda: _stack(width=4096, layers=6, batch_size=8),
}
