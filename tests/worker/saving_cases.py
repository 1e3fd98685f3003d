"""Training loops that save files: what each worker has written there, or not. Each returns its last state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_cases import EPOCHS, Points, ended, network, prepared

from elasticd.worker.run import Run


def write(run: Run, path: str, *values: Any) -> None:
    """The source does not show which variables a caller passes."""
    run.save(values[0], path)


def saves_a_history(run: Run) -> list[Any]:
    """Of losses, on which no gradient depends."""
    model, optimizer, batches = prepared(run)
    history: list[float] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
    run.save({"model": model.state_dict(), "history": history}, "last.pt")
    return ended(run, model)


def saves_a_history_in_a_function(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    record: list[float] = []
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.append(loss.item())
        write(run, "each.pt", {"epoch": epoch, "history": record})
    return ended(run, model)


def saves_a_history_behind_the_loop(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    record: list[float] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.append(loss.item())
    write(run, "last.pt", {"history": record})
    return ended(run, model)


def saves_the_best_by_its_own_loss(run: Run) -> list[Any]:
    """An epoch may be better than the one before on one worker, and not on another."""
    model, optimizer, batches = prepared(run)
    best = float("inf")
    for epoch in run.epochs(EPOCHS):
        loss = torch.zeros(())
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        mine = loss.item() - 10 * epoch if run.rank == 0 else loss.item() + 10 * epoch
        if mine < best:
            best = mine
            run.save(model, "best.pt")
    return ended(run, model)


def saves_a_record_in_each_step(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    record: list[int] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            write(run, "each.pt", {"history": record})
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if run.steps_done not in record:
                record.append(run.steps_done)
    return ended(run, model)


def saves_at_the_end_on_one_worker(run: Run) -> list[Any]:
    model = saves_nothing_of_its_own(run, "each.pt")
    enough = run._env is None or run._env.worker == "w.0"
    if enough:
        run.save(model, "last.pt")
    return ended(run, model)


def saves_at_the_end_on_another_worker(run: Run) -> list[Any]:
    model = saves_nothing_of_its_own(run, "each.pt")
    enough = run._env is not None and run._env.worker == "w.1"
    if enough:
        run.save(model, "last.pt")
    return ended(run, model)


def saves_nothing_of_its_own(run: Run, path: str) -> nn.Module:
    model, optimizer, batches = prepared(run)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if run.steps_done % 3 == 0:
                run.save(model, "third.pt")
        run.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
    return model


def saves_what_all_have(run: Run) -> list[Any]:
    model = saves_nothing_of_its_own(run, "each.pt")
    run.save(model, "last.pt")
    return ended(run, model)


def saves_on_the_leader(run: Run) -> list[Any]:
    """The leader's saved values are its own: nothing is compared."""
    model, optimizer, batches = prepared(run)
    total = 0.0
    run.local("total")
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if run.is_leader:
            write(run, "each.pt", {"total": total, "rank": run.rank})
    if not run.is_leader:
        return ended(run, model)
    run.save({"total": total}, "last.pt")
    return ended(run, model)


def saves_in_some_bodies(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    bodies = [0]
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            bodies[0] += 1
            if bodies[0] == 25:  # 16 of them are one worker's before another joins
                write(run, "some.pt", model)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def saves_after_a_break(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        run.save(model, "each.pt")
        if epoch == 1:
            break
    run.save(model, "last.pt")
    return ended(run, model)


def saves_a_model_that_counts(run: Run) -> list[Any]:
    """A module's values beside its state, and a data set's cache, are in no saved file."""
    model = network()
    data = Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, data, 5)
    cache: dict[int, float] = {}
    data.cache = cache  # type: ignore[attr-defined]
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.calls = getattr(model, "calls", 0) + 1
            cache[len(cache)] = y[0].item()
        run.save({"model": model.state_dict(), "epoch": epoch}, "each.pt")
    return ended(run, model)
