"""Is a tumour benign or malignant? A multilayer perceptron on the 569 cases with 30 measurements each that scikit-learn
ships.

    elasticctl submit examples/tabular/job.yaml
    ELASTIC_VIRTUAL_WORKERS=4 python examples/tabular/train.py       # alone, with the same result

The data set is so small that one epoch is a few steps: for such a job a cluster must give and take GPUs quickly.
"""

import argparse

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

import elasticd as elastic


def load_split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training and test measurements (float, n x 30, in standard deviations of the training set) with labels 0
    and 1.
    """
    cases = load_breast_cancer()
    values = torch.tensor(cases.data, dtype=torch.float32)
    labels = torch.tensor(cases.target, dtype=torch.float32)
    train, test = train_test_split(range(len(labels)), test_size=0.25, random_state=0, stratify=cases.target)
    mean, deviation = values[train].mean(dim=0), values[train].std(dim=0)
    values = (values - mean) / deviation
    return (values[train], labels[train]), (values[test], labels[test])


def make_model(width: int = 512) -> nn.Module:
    """Return a network with one logit for each case: positive means benign."""
    return nn.Sequential(
        nn.Linear(30, width), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(width, 1), nn.Flatten(0),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, values: Tensor, labels: Tensor) -> float:
    """Return the fraction of the cases that the model classifies correctly."""
    model.eval()
    right = ((model(values) > 0) == (labels > 0)).float().mean().item()
    model.train()
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a multilayer perceptron on measurements of tumours.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16, help="cases of one virtual worker (default: 16)")
    parser.add_argument("--output", default="out/tabular.pt", help="where the model goes (default: out/tabular.pt)")
    options = parser.parse_args()

    run = elastic.join()
    torch.manual_seed(0)
    train, test = load_split()
    test_values, test_labels = (part.to(run.device) for part in test)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    # A data set may be a tuple of tensors with one row for each sample.
    model, optimizer, batches = run.prepare(model, optimizer, train, batch_size=options.batch_size)

    for epoch in run.epochs(options.epochs):
        for x, y in batches:
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.is_leader:
            right = accuracy(model, test_values, test_labels)
            run.report(test_accuracy=right)
            run.log(f"epoch {epoch + 1}: test accuracy {right:.1%}, {run.world_size} GPUs")
    run.save(model, options.output)


if __name__ == "__main__":
    main()
