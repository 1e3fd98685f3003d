"""accelerate, in the script's own training loop: `python -m examples.frameworks.accelerated model.pt`."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch.utils.data import DataLoader

from elasticd.integrations.accelerate import ElasticAccelerator
from examples.frameworks import task


def train() -> tuple[Any, dict[str, Any]]:
    accelerator = ElasticAccelerator(
        cpu=True, mixed_precision=os.environ.get("PRECISION", "no"), step_scheduler_with_optimizer=False
    )
    model = task.build()
    optimizer = task.adamw(model)
    scheduler = task.cosine(optimizer)
    rows = task.train_rows(accelerator.num_processes)
    model, optimizer, loader, test, scheduler = accelerator.prepare(
        model,
        optimizer,
        DataLoader(rows, batch_size=task.BATCH_SIZE, shuffle=True),
        DataLoader(task.test_rows(), batch_size=20),
        scheduler,
    )
    log: list[Any] = []
    accelerator.run.register("log", lambda: list(log), lambda values: log.__setitem__(slice(None), values))
    for epoch in accelerator.epochs(task.EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), task.MAX_NORM)
                optimizer.step()
                scheduler.step()
        log.append([epoch, scheduler.get_last_lr()[0], task.evaluate(model, test)])
        accelerator.print(f"epoch {epoch}: {log[-1]}")
    model = accelerator.unwrap_model(model)
    return accelerator, task.document(model, optimizer, log, task.EPOCHS * len(loader), len(rows))


if __name__ == "__main__":
    accelerator, found = train()
    accelerator.save(found, sys.argv[1])
