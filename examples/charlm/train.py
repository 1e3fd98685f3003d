"""A character-level transformer on the reference texts of the Python language, which ship with every Python.

    elasticctl submit examples/charlm/job.yaml
    ELASTIC_VIRTUAL_WORKERS=4 python examples/charlm/train.py       # alone, with the same result

Reports bits per character on held-out text: the length of an ideal code based on this model's predictions. If all
characters were equally likely it would be 6.6 bits; their plain frequencies give 4.7.
"""

import argparse
import math
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import elasticd as elastic

CONTEXT = 64  # characters of context for a prediction
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # all other characters count as a space
HELD_OUT = 10  # one paragraph of this many is for validation


def load_text() -> tuple[str, str]:
    """Return the texts for training and for validation: the same for the same version of Python.

    Paragraphs that several topics share count once, so that no validation text is also a training text.
    """
    parted = (part.strip("\n") for name in sorted(topics) for part in topics[name].split("\n\n"))
    paragraphs = dict.fromkeys(part for part in parted if part)
    parts: tuple[list[str], list[str]] = ([], [])
    for number, paragraph in enumerate(paragraphs):
        parts[number % HELD_OUT == 0].append(paragraph)
    return "\n\n".join(parts[0]), "\n\n".join(parts[1])


def encode(text: str) -> Tensor:
    """Return `text` as numbers of characters in ALPHABET."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    return torch.tensor([numbers.get(character, numbers[" "]) for character in text], dtype=torch.int64)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """One window of each `stride` characters of a text, with the characters that follow.

    jitter: draw the window's begin within its stride, differently in each epoch (torch's global generator, which the
    runtime seeds).
    """

    def __init__(self, text: Tensor, stride: int, jitter: bool) -> None:
        self._text = text
        self._stride = stride
        self._jitter = jitter

    def __len__(self) -> int:
        return (len(self._text) - CONTEXT - 1) // self._stride

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * self._stride + (int(torch.randint(self._stride, ())) if self._jitter else 0)
        window = self._text[begin : begin + CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """Causal attention, then two linear layers, each around a normalised residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.after_attention = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(
            batch, length, 3, self.heads, width // self.heads
        )
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.after_attention(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


class Transformer(nn.Module):
    """Predictor of the next character at every position of a window (batch x length -> batch x length x alphabet)."""

    def __init__(self, width: int = 96, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(ALPHABET)))

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.output(self.blocks(self.characters(text) + self.places(places)))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy, in nats, as the mean over all positions."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def bits_per_character(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the loss on held-out windows, in bits."""
    model.eval()
    bits = loss_of(model, x, y).item() / math.log(2)
    model.train()
    return bits


def warm_up(steps: int, warm_up_steps: int, floor: float = 0.05) -> Callable[[int], float]:
    """Return a factor for the learning rate by step: up linearly, then down along a cosine to `floor`."""

    def factor(step: int) -> float:
        if step < warm_up_steps:
            return (step + 1) / warm_up_steps
        done = min(1.0, (step - warm_up_steps) / max(1, steps - warm_up_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2

    return factor


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level transformer on Python's reference texts.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=8, help="windows of one virtual worker (default: 8)")
    parser.add_argument("--output", default="out/charlm.pt", help="where the model goes (default: out/charlm.pt)")
    options = parser.parse_args()

    run = elastic.join()
    torch.manual_seed(0)
    train, held_out = (encode(text) for text in load_text())
    dataset = Windows(train, stride=2 * CONTEXT, jitter=True)
    validation = Windows(held_out, stride=2 * CONTEXT, jitter=False)
    pairs = [validation[index] for index in range(len(validation))]
    held_out_x, held_out_y = (torch.stack(part).to(run.device) for part in zip(*pairs, strict=True))

    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    steps = options.epochs * -(-len(dataset) // (run.virtual_workers * options.batch_size))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up(steps, warm_up_steps=max(1, steps // 20)))
    model, optimizer, batches = run.prepare(
        model, optimizer, dataset, batch_size=options.batch_size, scheduler=schedule, max_grad_norm=1.0
    )

    for epoch in run.epochs(options.epochs):
        for x, y in batches:
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.is_leader:
            bits = bits_per_character(model, held_out_x, held_out_y)
            run.report(bits_per_character=bits)
            run.log(f"epoch {epoch + 1}: {bits:.3f} bits per character, {run.world_size} GPUs")
    run.save(model, options.output)


if __name__ == "__main__":
    main()
