"""A small job for tests of clusters: all that is easily lost (BatchNorm, dropout, momentum, a scheduler, own values).

    train_small.py OUTPUT [--epochs E] [--size S] [--pace SECONDS [--enough FILE]] [--useful WORKERS] [--touched FILE]

`--pace` is how long one micro-batch lasts until there is the file `--enough`; more than `--useful` workers make a step a little
slower; `--touched` collects a line ``epoch index step`` for each sample that was read in the loop (`prepare` looks at some, too).
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import elasticd as elastic


class Squares(torch.utils.data.Dataset):
    """Points in the plane, labelled by their distance from the origin."""

    def __init__(self, size: int, touched: str | None, step: Callable[[], int]) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(size, 8, generator=generator)
        self.y = (self.x.norm(dim=1) > 2.7).long()
        self.epoch: int | None = None
        self.step = step
        self.file = os.open(touched, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if touched else None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.file is not None and self.epoch is not None:
            os.write(self.file, f"{self.epoch} {index} {self.step()}\n".encode())
        return self.x[index] + 0.01 * torch.randn(8), self.y[index]


def ends_here(once: str | None) -> bool:
    """Is it this process that ends in the middle of its loop?"""
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--enough", default="/nonexistent")
    parser.add_argument("--useful", type=int, default=1 << 30)
    parser.add_argument("--touched")
    parser.add_argument("--end", choices=["raise", "exit", "break"])
    parser.add_argument("--end-at", type=int, default=-1)
    parser.add_argument("--flip-at", type=int, default=-1, help="flip a bit of the model after this step")
    parser.add_argument("--once", help="only the process that makes this file does so")
    options = parser.parse_args()

    run = elastic.join()
    torch.manual_seed(int(os.environ.get("MODEL_SEED", "0")))
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)
    dataset = Squares(options.size, options.touched, lambda: run.steps_done)
    epochs_seen: list[int] = []
    run.register("epochs_seen", lambda: list(epochs_seen), lambda values: epochs_seen.__setitem__(slice(None), values))
    model, optimizer, batches = run.prepare(
        model, optimizer, dataset, batch_size=options.batch_size, scheduler=scheduler, max_grad_norm=1.0
    )
    latest, workers = 0.0, 1

    @run.every(steps=1)
    def flip() -> None:
        if 0 <= options.flip_at < run.steps_done and run.world_size > 2 and ends_here(options.once):
            with torch.no_grad():
                model[0].weight.view(torch.int32)[0, 0] ^= 1 << 20

    run.local("workers")
    for epoch in run.epochs(options.epochs):
        dataset.epoch = epoch
        for x, y in batches:
            if options.end == "break" and run.steps_done == options.end_at:
                break
            if options.pace and not os.path.exists(options.enough):
                crowd = workers / options.useful
                time.sleep(options.pace * (1.2 * crowd if crowd > 1 else 1.0))
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            latest = float(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            workers = run.world_size
            if options.end != "break" and run.steps_done == options.end_at and ends_here(options.once):
                if options.end == "exit":
                    sys.exit()
                raise ValueError("told to fail here")
        if options.end == "break" and run.steps_done == options.end_at:
            break
        epochs_seen.append(epoch)
        run.log(f"epoch {epoch} done at step {run.steps_done} on {run.world_size}")
        run.report(loss=latest)  # a joiner may have had no batch in this epoch
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs_seen": epochs_seen}
    run.save(state, options.output)


if __name__ == "__main__":
    main()
