"""Workers of which one diverges: `python divergence_ranks.py`, with tasks on its standard input, each a line of JSON:

    {"fault": FAULT, "victim": WORKER, "after": STEP, "workers": COUNT, "every": STEPS, "on_divergence": WHAT,
     "determinism": LEVEL, "address": ADDRESS, "directory": DIRECTORY, "told": FILE}

One worker begins alone, the others join before step 4. After step `after`, one bit of the victim's memory is flipped; FAULT
selects the object. When a worker ends, the others continue. Each writes its final state to DIRECTORY and its stderr to FILE; the
answer is a line with the exit codes.

Files that scripts save are written to DIRECTORY.saved.

With "case": CASE the script is that function of `unlike_cases`, or MODULE.FUNCTION, and when one joined worker ends, all
do. "joins" is the step before which they join. "loses" is a step: the victim is killed in it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import training_cases
from torch import nn
from training_ranks import VIRTUAL_WORKERS, Rehearsal, Timetable, digest, environment, fork, prepare

from elasticd.protocol.model import Determinism, OnDivergence
from elasticd.worker.membership import machine as m
from elasticd.worker.run import Run
from elasticd.worker.stepping import Stepping


class Survivors(Timetable):
    """After the loss of one worker, the others continue."""

    def failed(self, reason: str) -> list[m.Action]:
        print(f"gives a step up: {reason}", file=sys.stderr)
        return self._switch_to(self._position + 1)


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of its last element: not the lowest, which the next update may round away."""
    tensor.detach().reshape(-1)[-1:].view(torch.int32).bitwise_xor_(1 << 20)


def script(run: Run, fault: str, after: int | None) -> list[Any]:
    model = training_cases.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    seen: list[int] = []
    run.register("seen", lambda: list(seen), lambda values: seen.__setitem__(slice(None), values))

    def after_update() -> None:
        seen.append(run.steps_done)
        if run.steps_done != after:
            return
        with torch.no_grad():
            match fault:
                case "parameter":
                    flip(model[5].weight)
                case "moment":
                    flip(optimizer.state[model[0].weight]["exp_avg"])
                case "buffer":
                    flip(nn.Module.get_buffer(model, "1.running_var"))
                case "rate":
                    optimizer.param_groups[0]["lr"] *= 0.5
                case "scheduler":
                    scheduler.last_epoch += 1
                case "registered":
                    seen[-1] = 99
                case _:
                    assert fault == "none"

    return [*training_cases.train(run, model, optimizer, scheduler=scheduler, after_update=after_update), seen]


def lose(step: int) -> None:
    """Kill this process when it has computed its part of a step."""
    complete = Stepping.complete_own_part

    def killed(stepping: Stepping) -> None:
        if stepping._step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        complete(stepping)

    setattr(Stepping, "complete_own_part", killed)  # noqa: B010


def train(me: int, errand: dict[str, Any], entries: list[tuple[int, list[int]]]) -> None:
    terms = {"compare_every": errand["every"], "on_divergence": OnDivergence(errand["on_divergence"])}
    place = replace(
        environment(me, Determinism(errand["determinism"])), **terms, results=f"{errand['directory']}.saved"
    )
    table = Survivors(me, entries, meeting=Path(errand["meeting"]))
    table.extends_proofs = errand.get("extends_proofs", False)
    run = Run(Rehearsal(table, errand["address"], place), place, VIRTUAL_WORKERS, seed=3)
    if "case" in errand:
        if me == errand["victim"] and "loses" in errand:
            lose(errand["loses"])
        module, _, name = errand["case"].rpartition(".")
        state = getattr(importlib.import_module(module or "unlike_cases"), name)(run)
    else:
        state = script(run, errand["fault"], errand["after"] if me == errand["victim"] else None)
    atexit._run_exitfuncs()  # a forked rank ends without running them
    Path(errand["directory"], f"{me}.json").write_text(json.dumps(digest(state), sort_keys=True))


def main() -> None:
    prepare("unlike_cases.py", "saving_cases.py")
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line))), flush=True)


def carry_out(errand: dict[str, Any]) -> list[int]:
    """Run one task. Returns the exit codes."""

    def told(me: int) -> None:
        os.dup2(os.open(errand["told"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        train(me, errand, entries)

    workers = list(range(errand["workers"]))
    stays = "case" in errand and "loses" not in errand
    left = [0] if stays else [worker for worker in workers if worker != errand["victim"]]
    joins = errand.get("joins", 4)
    entries = [(0, [0])] if len(workers) == 1 else [(0, [0]), (joins, workers), (10**9, left)]
    with tempfile.TemporaryDirectory() as errand["meeting"]:
        children = [fork(partial(told, me)) for me in workers]
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    main()
