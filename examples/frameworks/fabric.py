"""lightning.fabric: `python -m examples.frameworks.fabric model.pt`."""

from __future__ import annotations

import os
import sys
from typing import Any

from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from elasticd.integrations.fabric import ElasticStrategy
from examples.frameworks import task


def train() -> tuple[Any, dict[str, Any]]:
    fabric = Fabric(accelerator="cpu", strategy=ElasticStrategy(), precision=os.environ.get("PRECISION", "32-true"))
    fabric.launch()
    model = task.build()
    optimizer = task.adamw(model)
    scheduler = task.cosine(optimizer)
    model, optimizer = fabric.setup(model, optimizer)
    rows = task.train_rows(fabric.strategy.run.virtual_workers)
    loader, test = fabric.setup_dataloaders(
        DataLoader(rows, batch_size=task.BATCH_SIZE, shuffle=True), DataLoader(task.test_rows(), batch_size=20)
    )
    log: list[Any] = []
    fabric.strategy.run.register("log", lambda: list(log), lambda values: log.__setitem__(slice(None), values))
    for epoch in fabric.strategy.epochs(task.EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch)["loss"]
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=task.MAX_NORM)
            optimizer.step()
            scheduler.step()
        log.append([epoch, scheduler.get_last_lr()[0], task.evaluate(model, test)])
        fabric.print(f"epoch {epoch}: {log[-1]}")
    return fabric, task.document(model.module, optimizer, log, task.EPOCHS * len(loader), len(rows))


if __name__ == "__main__":
    fabric, found = train()
    fabric.save(sys.argv[1], found)
