"""The script's own training loop: `python -m examples.frameworks.own model.pt`."""

from __future__ import annotations

import sys
from typing import Any

import elasticd as elastic
from examples.frameworks import task


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
        task.train_rows(),
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
    return run, task.document(model, optimizer, log, run.steps_done, len(task.train_rows()))


if __name__ == "__main__":
    run, found = train()
    run.save(found, sys.argv[1])
