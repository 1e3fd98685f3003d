"""Handwritten digits: a small convolutional network on the 1797 images of 8x8 pixels that scikit-learn ships.

    elasticctl submit examples/digits/job.yaml
    ELASTIC_VIRTUAL_WORKERS=4 python examples/digits/train.py       # alone, with the same result

BatchNorm, dropout and random shifts of the images are in here on purpose: all three depend on state or chance, and the
result is still the same, bit for bit, for any number of GPUs and any history of resizes.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import elasticd as elastic


class ShiftedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Images that are shifted by up to one pixel each time they are read.

    The shift is drawn from torch's global generator, which the runtime seeds for each micro-batch.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._padded = F.pad(images, (1, 1, 1, 1))
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = torch.randint(0, 3, (2,)).tolist()
        return self._padded[index, :, down : down + 8, right : right + 8], self._labels[index]


def load_split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training and test images (float, n x 1 x 8 x 8, 0 to 1) with labels. A fixed fifth of the images is for
    the test.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=digits.target)
    return (images[train], labels[train]), (images[test], labels[test])


def make_model() -> nn.Module:
    """Return three convolutions and a linear layer: 78 thousand parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(96 * 2 * 2, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the fraction of `images` that the model classifies correctly."""
    model.eval()
    right = (model(images).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32, help="images of one virtual worker (default: 32)")
    parser.add_argument("--output", default="out/digits.pt", help="where the model goes (default: out/digits.pt)")
    options = parser.parse_args()

    run = elastic.join()
    torch.manual_seed(0)
    (images, labels), test = load_split()
    test_images, test_labels = (part.to(run.device) for part in test)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    steps = options.epochs * -(-len(labels) // (run.virtual_workers * options.batch_size))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    model, optimizer, batches = run.prepare(
        model, optimizer, ShiftedDigits(images, labels), batch_size=options.batch_size, scheduler=scheduler
    )

    for epoch in run.epochs(options.epochs):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.is_leader:
            right = accuracy(model, test_images, test_labels)
            run.report(test_accuracy=right)
            run.log(f"epoch {epoch + 1}: test accuracy {right:.1%}, {run.world_size} GPUs")
    run.save(model, options.output)


if __name__ == "__main__":
    main()
