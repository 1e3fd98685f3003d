"""Job with a first worker that records when each step was done: train.py FILE STEPS PACE"""

import sys
import time

import torch
from torch import nn

import elasticd as elastic


class Points(torch.utils.data.Dataset):
    """Numbered points."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((8,), float(index % 7)), torch.tensor(index % 2)


def main() -> None:
    path, steps, pace_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    run = elastic.join()
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, Points(steps * 4), batch_size=2)
    with open(path, "a", buffering=1) as noted:
        for _ in run.epochs(1):
            for x, y in batches:
                time.sleep(pace_s)
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                if run.rank == 0:
                    noted.write(f"{time.time():.6f}\n")


if __name__ == "__main__":
    main()
