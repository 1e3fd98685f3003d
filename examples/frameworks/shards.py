"""The script's own training loop, on shards that are read in sequence: `python -m examples.frameworks.shards model.pt`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

import elasticd as elastic
from examples.frameworks import task

SIZES = (19, 45, 3, 0, 61, 30, 8, 27, 52, 14, 31)  # samples of each shard
ROWS = task.Rows(sum(SIZES))


def read(shard: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the samples of one shard. A real one would be read from a file."""
    begin = sum(SIZES[:shard])
    for index in range(begin, begin + SIZES[shard]):
        yield ROWS[index]


def train() -> tuple[Any, dict[str, Any]]:
    run = elastic.join(seed=task.SEED)
    model = task.build()
    optimizer = task.adamw(model)
    scheduler = task.cosine(optimizer)
    log: list[Any] = []
    run.register("log", lambda: list(log), lambda values: log.__setitem__(slice(None), values))
    model, elastic_optimizer, batches = run.prepare(
        model,
        optimizer,
        elastic.Shards(range(len(SIZES)), open=read),
        task.BATCH_SIZE,
        scheduler=scheduler,
        max_grad_norm=task.MAX_NORM,
        after_update=lambda: log.append([run.steps_done, scheduler.get_last_lr()[0]]),
    )
    for _ in run.epochs(task.EPOCHS):
        for batch in batches:
            loss = model(**batch)["loss"]
            loss.backward()
            elastic_optimizer.step()
            elastic_optimizer.zero_grad()
    run.finish()
    return run, task.document(model, optimizer, log, run.steps_done, len(ROWS))


if __name__ == "__main__":
    run, found = train()
    run.save(found, sys.argv[1])
