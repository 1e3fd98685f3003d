"""A job that ends at an accuracy: train_until.py OUTPUT BOUND. It learns which points lie within a circle."""

import sys
import time

import torch
from torch import nn

import elasticd as elastic

EVERY = 10  # steps between two evaluations


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x.norm(dim=1) > 2.7).long()


def main() -> None:
    output, bound = sys.argv[1], float(sys.argv[2])
    run = elastic.join()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, batches = run.prepare(model, optimizer, points(4096, 1), batch_size=16)
    test = torch.utils.data.TensorDataset(*points(1000, 2))

    @run.every(steps=EVERY)
    def check() -> None:
        right = run.evaluate(lambda batch: (model(batch[0]).argmax(1) == batch[1]).sum(), test, batch_size=100)
        run.report(accuracy=right / len(test))
        if right / len(test) >= bound:
            run.stop()

    for _ in run.epochs(10_000):
        for x, y in batches:
            time.sleep(0.02)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    run.save(model, output)


if __name__ == "__main__":
    main()
