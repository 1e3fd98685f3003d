"""Choice of the jobs that a command acts on: named jobs, patterns, arrays, or all jobs of the caller (`--all`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from ..protocol.errors import UserError
from ..protocol.messages import GetJobs, JobView
from ..protocol.model import JobPhase
from ..protocol.texts import many
from .arrays import meant
from .completion import words
from .context import Context, agreed, say

STATES = {"pending": (JobPhase.PENDING,), "running": (JobPhase.STARTING, JobPhase.RUNNING)}
SHOWN = 8  # jobs that the question before the command names

ALL = typer.Option("--all", help="All jobs that you have submitted; asks first.", show_default=False)
STATE = typer.Option(
    metavar="pending|running",
    help="With --all: only those that wait, or only those with GPUs.",
    show_default=False,
    autocompletion=words(*STATES),
)
YES = typer.Option("--yes", "-y", help="With --all: do not ask.", show_default=False)


def chosen(
    shared: Context,
    act: str,
    jobs: Sequence[str] | None,
    everything: bool,
    state: str | None,
    yes: bool,
    concerns: Callable[[JobView], bool] = lambda view: True,
) -> list[str]:
    """Return the names of the jobs.

    `act`: the command. `concerns`: whether the command has an effect on a job. Raises UserError where it is not clear
    which jobs are meant, and RequestRefused where the user at the terminal does not agree.
    """
    if state is not None and (not everything or state not in STATES):
        raise UserError(f"--state {state}: goes with --all, and is one of {', '.join(STATES)}")
    if bool(jobs) == everything:
        raise UserError(f"which jobs? `elasticctl {act} JOB ...`, or `{act} --all` for all that you have submitted")
    if not everything:
        return meant(shared, jobs or ())
    phases = [phase for name, phases in STATES.items() if state in (None, name) for phase in phases]
    views = shared.client.jobs(GetJobs(mine=True)).jobs
    found: list[str] = [view.job for view in views if view.phase in phases and concerns(view)]
    which = f"{state} " if state is not None else "unfinished "
    if not found:
        say(f"elasticctl: no {which}job of yours to {act}")
    elif not yes:
        some = ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
        agreed(f"{act} {many(len(found), f'{which}job')}: {some}?", f"{act} --all would {act} {some}: say --yes")
    return found
