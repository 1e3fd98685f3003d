"""A job that evaluates and decides: between epochs, after each few steps, and to stop early.

    train_deciding.py OUTPUT [--epochs E] [--every STEPS] [--patience P] [--stop STEPS] [--pace SECONDS]
                      [--die AT --mark FILE --rank R]

`--die` kills the worker of this rank once, where it says: "evaluate" (in the middle of an evaluation between two epochs),
"every" (in one after a step), "told" (when one of the others knows a decision), "untold" (before any of the others does).
`FILE` is what is left of that, so that it happens once; `--log FILE` collects what each worker has found out, as JSON lines.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elasticd as elastic
from elasticd.worker.communication import exchange


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--patience", type=int, default=1000)
    parser.add_argument("--stop", type=int, default=0, help="end the training after the evaluation behind this step")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds for a batch that is evaluated")
    parser.add_argument("--die", default="")
    parser.add_argument("--mark", default="")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--epoch", type=int, default=1)
    parser.add_argument("--log", default="")
    parser.add_argument("--secrets", default="[]", help="what the workers are to agree upon, as JSON, by epoch")
    options = parser.parse_args()

    run = elastic.join(virtual_workers=4)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(320, 8, generator=generator)
    y = (x.norm(dim=1) > 2.7).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found: list[Any] = []  # all that this job has found out
    best = {"loss": float("inf"), "bad": 0, "decay": 0.0}
    secrets = json.loads(options.secrets)
    run.register("found", lambda: list(found), lambda values: found.__setitem__(slice(None), values))
    run.register("best", lambda: dict(best), best.update)
    data = torch.utils.data.TensorDataset(x[:256], y[:256])

    def decay() -> None:
        """What was agreed upon goes into the weights."""
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1 - best["decay"])

    parameters = list(model.parameters())
    model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=8, after_update=decay)
    test = torch.utils.data.TensorDataset(x[256:], y[256:])

    def dies(at: str) -> None:
        """This worker does, if it is the one, and nobody has."""
        if options.die != at or run.rank != options.rank or not options.mark:
            return
        try:
            os.close(os.open(options.mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def score(batch: Sequence[torch.Tensor]) -> dict[str, Any]:
        dies(where[0])
        if options.pace and not Path(options.mark + ".enough").exists():
            Path(options.mark + ".evaluating").touch()
            time.sleep(options.pace)
        inputs, labels = batch
        scores = model(inputs)
        return {
            "loss": nn.functional.cross_entropy(scores, labels, reduction="sum"),
            "right": (scores.argmax(dim=1) == labels).sum(),
            "count": len(labels),
            "noise": torch.rand(()),
        }

    where = [""]

    def log(what: str, value: Any) -> None:
        found.append([what, run.steps_done, value])
        if options.log:
            with Path(options.log).open("a") as file:
                file.write(json.dumps([os.environ.get("ELASTICD_WORKER", ""), what, run.steps_done, value]) + "\n")

    @run.every(steps=options.every)
    def after_some_steps() -> None:
        where[0] = "every"
        log("every", run.evaluate(score, test, batch_size=4))
        where[0] = ""
        if options.stop and run.steps_done >= options.stop:
            run.stop()

    @run.every(steps=1)
    def mean() -> None:
        found.append(["mean", run.steps_done, dict(run.means)])

    def dying_send(communicator: Any, ranks: Sequence[int], tag: int, message: bytes) -> None:
        """The one who tells all others dies when it has told nobody, or one of them."""
        if where[0] == "agree" and communicator.rank == 0 and options.rank == 0 and len(ranks) > 1:
            if options.die == "told":
                send(communicator, ranks[:1], tag, message)
                time.sleep(0.5)
            dies(options.die)
        send(communicator, ranks, tag, message)

    send = exchange.send_bytes
    if options.die in ("told", "untold"):
        exchange.send_bytes = dying_send

    for epoch in run.epochs(options.epochs):
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            run.mean(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        where[0] = "evaluate" if epoch >= options.epoch else ""
        result = run.evaluate(score, test, batch_size=4)
        log("epoch", result)
        where[0] = "agree" if epoch == options.epoch else ""
        # nobody but the workers of that moment can know it
        secret = run.agree(secrets[epoch] if secrets else os.getpid() % 1000 + 1, min)
        where[0] = ""
        log("agreed", secret)
        best["decay"] = secret * 1e-6
        if result["loss"] < best["loss"]:
            best.update(loss=result["loss"], bad=0)
        else:
            best["bad"] += 1
        if best["bad"] >= options.patience:
            break
    run.save({"model": model.state_dict(), "steps": run.steps_done, "found": found, "best": best}, options.output)


if __name__ == "__main__":
    main()
