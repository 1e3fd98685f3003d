"""A script written for torchrun: `python -m examples.frameworks.ddp model.pt`. `torchrun_ddp` is its original."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

from elasticd.integrations.ddp import DistributedSampler, adopt
from examples.frameworks import task


def train() -> tuple[Any, dict[str, Any]]:
    rows = task.Rows(292)
    sampler = DistributedSampler(rows, shuffle=True, seed=7)
    loader = DataLoader(rows, batch_size=task.BATCH_SIZE, sampler=sampler)
    test = DataLoader(task.test_rows(), batch_size=20)
    model = task.build()
    optimizer = task.adamw(model)
    scheduler = task.cosine(optimizer)
    job, model, optimizer, loader = adopt(model, optimizer, loader)
    log: list[Any] = []
    job.run.register("log", lambda: list(log), lambda values: log.__setitem__(slice(None), values))
    for epoch in job.epochs(task.EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(**batch)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        log.append([epoch, scheduler.get_last_lr()[0], task.evaluate(model, test)])
        job.log(f"epoch {epoch}: {log[-1]}")
    return job, task.document(model, optimizer, log, task.EPOCHS * len(loader), len(rows))


if __name__ == "__main__":
    job, found = train()
    job.save(found, sys.argv[1])
