"""Forecasts of starts for screens. Simulations compute for seconds, so they run in a process of their own.

`python -m elasticd.ctl.screens.forecasts JOB` reads an `Outlook` as MessagePack from its standard input, and prints a phrase.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from ...protocol.errors import ClusterUnreachable
from ...protocol.messages import GetJob, JobFound, Outlook
from ...protocol.model import JobId
from .. import starting
from ..context import Context
from ..formatting import printable

FORECAST_S = 60.0  # between two forecasts of a job
NICENESS = 10


def forecast(shared: Context, name: str) -> str:
    """Return when this job starts, in words; "": it does not wait for GPUs alone.

    Raises UserError if there is no such job; ClusterUnreachable.
    """
    found = starting.of_job(shared, shared.ask(GetJob(job=name), JobFound).job, _simulated)
    return "" if found is None else printable(found[0])


def _simulated(outlook: Outlook, job: JobId) -> starting.StartForecast:
    if outlook.obstacle:
        return starting.simulated(outlook, job)
    command = [sys.executable, "-P", "-m", __name__, job]
    ended = subprocess.run(command, input=msgspec.msgpack.encode(outlook), capture_output=True)
    if ended.returncode:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ClusterUnreachable(f"no forecast: {last[0] if last else f'exit code {ended.returncode}'}")
    return ended.stdout.decode(), {}


if __name__ == "__main__":
    os.nice(NICENESS)
    print(
        starting.simulated(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Outlook), JobId(sys.argv[1]))[0], end=""
    )
