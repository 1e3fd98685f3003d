"""Ranks of a measurement: processes that run one function of this package together, and return rank 0's result.

    python -m benchmarks.runtime.ranks MODULE:FUNCTION RANK SIZE RESULT SETTINGS

Each has torch's own process group (for the compared loops) and may join jobs through the measurement's `Station`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticd.worker.admission import JOINED

from .processes import Family, MeasurementFailed, end_tree, free_port, module
from .station import Station


def run_ranks(family: Family, function: str, size: int, timeout_s: float, **settings: Any) -> Any:
    """Call `function` ("module:name" of this package) with its rank, the size and `settings` in `size` processes."""
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory, Station() as station:
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        log = Path(directory, "log")
        places = [
            {**settings, "directory": directory, "variables": _variables(station, rank, size, directory, settings)}
            for rank in range(size)
        ]
        for job in settings.get("jobs", []):
            station.order(job["name"], 1, range(size), leader=0)
        result = Path(directory, "result")
        started = [
            family.start(
                module("ranks", function, str(rank), str(size), str(result), json.dumps(place)), variables, log
            )
            for rank, place in enumerate(places)
        ]
        try:
            codes = [process.wait(timeout_s) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    end_tree(process.pid)
        if any(codes):
            raise MeasurementFailed(f"{function} failed with {codes}:\n{log.read_text(errors='replace')[-3000:]}")
        return json.loads(result.read_text())


def _variables(station: Station, rank: int, size: int, directory: str, settings: Any) -> dict[str, dict[str, str]]:
    return {
        job["name"]: station.variables(
            job["name"], rank, job["virtual_workers"], job["determinism"], f"{directory}/{job['name']}"
        )
        for job in settings.get("jobs", [])
    }


@contextmanager
def place_in(variables: dict[str, str]) -> Iterator[None]:
    """This process's environment says meanwhile that it is a worker of a job; afterwards not even that it has been one."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)  # `join` itself takes the job's key out
        os.environ.pop(JOINED, None)  # a rival of another determinism joins in the same process


def share_with_rivals() -> None:
    """Let this process join jobs although it has a process group, which the compared loops use."""
    for where in ("api", "run"):  # when it joins, and when its loop begins
        importlib.import_module(f"elasticd.worker.{where}").__dict__["check_group"] = lambda: None


def main() -> None:
    import torch
    import torch.distributed as dist

    target, rank, size, result, settings = sys.argv[1:]
    name, _, function = target.partition(":")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(size))
    share_with_rivals()
    value = getattr(importlib.import_module(f"benchmarks.runtime.{name}"), function)(
        int(rank), int(size), **json.loads(settings)
    )
    if int(rank) == 0:
        Path(result).write_text(json.dumps(value))
    dist.barrier()


if __name__ == "__main__":
    code = 0
    try:
        main()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # jobs are joined but not finished, so none of their exit handlers may run
