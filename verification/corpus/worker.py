"""A worker's process: one script of the corpus, run as `python NAME.py` would, in the environment that an agent creates.

Most workers are forks of a nursery, which has imported torch. A script with a result that depends on the interpreter's start,
such as the order of a set, gets its own interpreter.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from elasticd.agent.firstline import _elasticd_seeds
from elasticd.worker import events as e
from elasticd.worker.comparison import crosscheck
from elasticd.worker.control import ClusterControl

from ..bits.points import wrap
from ..bits.worker import Errand, begin
from ..scripts.worker import Pace
from .digests import digest

CHECK_EVERY = "CORPUS_CHECK_EVERY"  # steps between two compared micro-batches
FRESH = "CORPUS_FRESH_INTERPRETER"  # if set, the script gets its own interpreter


def warm_up() -> None:
    """Import what the scripts import, without starting a second thread."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"


def run(errand: Errand) -> None:
    """Run a forked worker's script to its end."""
    if FRESH in errand.variables:
        environment = {**os.environ, **errand.variables}
        os.execve(sys.executable, [sys.executable, "-m", __name__, json.dumps(asdict(errand))], environment)
    warnings.resetwarnings()
    _elasticd_seeds.begin(errand.variables)
    play(errand)


def play(errand: Errand) -> None:
    """Run the script, and write digests of its final state."""
    begin(errand)
    directory = Path(errand.directory)
    pace = Pace(directory / "pace")

    def instructed(instruction: object) -> None:
        if isinstance(instruction, e.RunStep):
            time.sleep(pace.seconds)

    wrap(ClusterControl, "next", None, instructed)
    crosscheck.EVERY = int(os.environ.get(CHECK_EVERY, crosscheck.EVERY))
    work = directory / "work"
    os.chdir(work)
    sys.path.insert(0, str(work))
    sys.argv = [f"{errand.model}.py"]
    names: dict[str, Any] = runpy.run_path(f"{errand.model}.py", run_name="__main__")
    model = names.get("model")
    found = {"model": digest(model.state_dict())} if isinstance(model, torch.nn.Module) else {}
    Path(errand.path("result")).write_text(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    play(Errand(**json.loads(sys.argv[1])))
