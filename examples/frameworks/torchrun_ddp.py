"""The original of `ddp`, for torchrun: `torchrun --nproc-per-node 4 -m examples.frameworks.torchrun_ddp model.pt`."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from examples.frameworks import task


def train() -> dict[str, Any]:
    dist.init_process_group("gloo")
    rows = task.Rows(292)
    sampler: DistributedSampler[task.Rows] = DistributedSampler(rows, shuffle=True, seed=7)
    loader = DataLoader(rows, batch_size=task.BATCH_SIZE, sampler=sampler)
    test = DataLoader(task.test_rows(), batch_size=20)
    model = DistributedDataParallel(task.build())
    optimizer = task.adamw(model)
    scheduler = task.cosine(optimizer)
    log: list[Any] = []
    for epoch in range(task.EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(**batch)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        log.append([epoch, scheduler.get_last_lr()[0], task.evaluate(model, test)])
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {log[-1]}")
    return task.document(model.module, optimizer, log, task.EPOCHS * len(loader), len(rows))


if __name__ == "__main__":
    found = train()
    if dist.get_rank() == 0:
        torch.save(found, sys.argv[1])
    dist.destroy_process_group()
