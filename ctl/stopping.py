"""Commands that make jobs stop, wait and go on: cancel, pause, resume, hold, release, requeue, checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

import typer

from ..protocol.errors import ClusterUnreachable, ElasticError
from ..protocol.messages import (
    Answer,
    Cancel,
    Cancelled,
    Checkpoint,
    Checkpointed,
    JobView,
    Pause,
    Paused,
    Request,
    Requeue,
    Requeued,
    Resume,
    Resumed,
    Withholding,
)
from ..protocol.model import JobPhase
from . import completion, render
from .chosen import ALL, STATE, YES, chosen
from .context import JSON, Context, of, print_json, say
from .waiting import Waiting, limit_s

_BACK = (Withholding.PAUSE, Withholding.HOLD)  # kinds of withholding that `resume` and `release` end
SAVED_WITHIN = "1h"  # longest time for saving a job's state

A = TypeVar("A", bound=Answer)

JOBS = typer.Argument(help="Which jobs.", show_default=False, autocompletion=completion.jobs)
Named = Annotated[list[str] | None, JOBS]
All = Annotated[bool, ALL]
State = Annotated[str | None, STATE]
Yes = Annotated[bool, YES]
NO_WAIT = typer.Option("--no-wait", help="Return as soon as they have been told to.")
TIMEOUT = typer.Option(help="Wait no longer than this; they stop all the same.")


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    for command in (cancel, pause, resume, hold, requeue, checkpoint):
        app.command()(command)
    app.command("release", help="Let held jobs start: the same as `resume`.")(resume)


def cancel(
    context: typer.Context,
    jobs: Named = None,
    everything: All = False,
    state: State = None,
    yes: Yes = False,
    at_once: Annotated[
        bool, typer.Option("--now", help="Do not save what they have done since the last checkpoint.")
    ] = False,
    no_wait: Annotated[bool, NO_WAIT] = False,
    timeout: Annotated[str, TIMEOUT] = SAVED_WITHIN,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """End jobs. Jobs that have trained save their state first."""
    shared, within_s = of(context), limit_s(timeout)
    names = chosen(
        shared, "cancel", jobs, everything, state, yes, lambda view: _withheld(view) is not Withholding.CANCEL
    )
    told = _Each(shared, names, lambda name: Cancel(job=name, save=not at_once), Cancelled)
    views = [
        shared.job(one.job) if no_wait or not one.saving else until_stopped(shared, one.job, within_s, "cancelled")
        for one in told.answers
    ]
    told.show(as_json, "cancelled", [(_saved(view), _cancelled(view)) for view in views])
    if ends := [job for one in told.answers for job in one.ends if job not in names]:
        say(
            f"elasticctl: jobs that waited for {'it' if len(told.answers) == 1 else 'them'} end, too: {', '.join(ends)}"
        )


def _cancelled(view: JobView) -> str:
    if not view.phase.final:
        return f"{view.job} is being cancelled: its state is saved first"
    if view.phase is not JobPhase.CANCELLED:  # it had finished before
        return render.outcome(view)
    goes_on = f": `elasticctl submit --resume {view.job}` goes on from there" if view.saved_step is not None else ""
    return f"{view.job} cancelled" + (f" {render.kept(view)}{goes_on}" if view.step is not None else "")


def pause(
    context: typer.Context,
    jobs: Named = None,
    everything: All = False,
    state: State = None,
    yes: Yes = False,
    no_wait: Annotated[bool, NO_WAIT] = False,
    timeout: Annotated[str, TIMEOUT] = SAVED_WITHIN,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Stop jobs until `resume`: each saves its state, gives its GPUs back, and keeps its place in the queue."""
    shared, within_s = of(context), limit_s(timeout)
    names = chosen(shared, "pause", jobs, everything, state, yes, lambda view: _withheld(view) is None)
    told = _Each(shared, names, lambda name: Pause(job=name), Paused)
    views = [
        shared.job(one.job) if no_wait else until_stopped(shared, one.job, within_s, "paused") for one in told.answers
    ]
    told.show(as_json, "paused", [(_saved(view), _paused(view)) for view in views])


def _paused(view: JobView) -> str:
    if view.phase.final:  # it had finished before
        return render.outcome(view)
    if view.workers:
        return f"{view.job} is being paused: its state is saved first"
    return f"{view.job} paused {render.kept(view)}"


def hold(
    context: typer.Context,
    jobs: Named = None,
    everything: All = False,
    state: State = None,
    yes: Yes = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Keep waiting jobs from starting, until `release`. A running job goes on: `pause` stops it."""
    shared = of(context)
    names = chosen(shared, "hold", jobs, everything, state, yes, lambda view: _withheld(view) is None)
    told = _Each(shared, names, lambda name: Pause(job=name, hold=True), Paused)
    told.show(as_json, "held", [({"job": one.job, "runs": one.runs}, _held(one)) for one in told.answers])


def _held(one: Paused) -> str:
    if one.before is not None:
        return f"{one.job} is {one.before.how.past} already"
    if one.runs:
        return f"{one.job} held: it runs on, and does not start again once it has lost its GPUs (`pause` stops it now)"
    return f"{one.job} held"


def resume(
    context: typer.Context,
    jobs: Named = None,
    everything: All = False,
    state: State = None,
    yes: Yes = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let jobs run again that were paused or held."""
    shared, act = of(context), context.info_name or "resume"  # or "release"
    names = chosen(shared, act, jobs, everything, state, yes, lambda view: _withheld(view) in _BACK)
    told = _Each(shared, names, lambda name: Resume(job=name), Resumed)
    told.show(as_json, "resumed", [({"job": one.job}, _resumed(one)) for one in told.answers])


def _resumed(one: Resumed) -> str:
    if one.before is None:
        return f"{one.job} was neither paused nor held"
    return f"{one.job} {one.before.how.back}d"


def requeue(
    context: typer.Context,
    jobs: Named = None,
    everything: All = False,
    state: State = None,
    yes: Yes = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Have jobs save their state, give their GPUs back, and wait for their turn, by their submission."""
    shared = of(context)
    names = chosen(shared, "requeue", jobs, everything, state, yes, lambda view: bool(view.workers))
    told = _Each(shared, names, lambda name: Requeue(job=name), Requeued)
    told.show(as_json, "requeued", [({"job": one.job}, f"{one.job} requeued") for one in told.answers])


def checkpoint(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False, autocompletion=completion.jobs)],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as it has been told to.")] = False,
    timeout: Annotated[str, typer.Option(help="Wait no longer than this.")] = SAVED_WITHIN,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Have a running job save its state at its next step boundary, and print the checkpoint's path."""
    shared, within_s = of(context), limit_s(timeout)
    found = shared.ask(Checkpoint(job=job), Checkpointed)
    if not no_wait:
        found = until_saved(shared, found, within_s)
    if as_json:
        print_json({"job": found.job, "step": found.step, "saved_step": found.saved, "file": found.file})
        return
    if found.file:
        print(render.printable(found.file))
    steps = f"after {found.saved + 1:,} steps" if found.saved is not None and found.saved >= found.step else ""
    say(f"elasticctl: {found.job}: {f'its state {steps} is saved' if steps else 'a checkpoint is being written'}")


def until_saved(shared: Context, found: Checkpointed, within_s: float | None) -> Checkpointed:
    """Poll until the checkpoint that `found` announces is written."""
    waiting = Waiting(f"{found.job} to save its state", within_s)
    while found.saved is None or found.saved < found.step:
        waiting.pause()
        found = shared.ask(Checkpoint(job=found.job, step=found.step), Checkpointed)
    return found


def until_stopped(shared: Context, job: str, within_s: float | None, what: str) -> JobView:
    """Poll until no process of `job` is left, so that its state is saved, or could not be. `what`: "paused"."""
    waiting = Waiting(f"{job} to save its state", within_s, f"; it is {what} all the same")
    while (view := shared.job(job)).withheld is not None and (view.workers or view.withheld.how is Withholding.CANCEL):
        waiting.pause(view.reason)
    return view


def _withheld(view: JobView) -> Withholding | None:
    return view.withheld.how if view.withheld is not None else None


def _saved(view: JobView) -> dict[str, object]:
    return {"job": view.job, "step": view.step, "saved_step": view.saved_step}


class _Each(Generic[A]):
    """Answers about several jobs, one for each. Refusals are reported last, and set the exit code."""

    def __init__(
        self, shared: Context, jobs: Sequence[str], request: Callable[[str], Request], answer: type[A]
    ) -> None:
        self.answers: list[A] = []
        self._refused: list[tuple[str, ElasticError]] = []
        for name in dict.fromkeys(jobs):
            try:
                self.answers.append(shared.ask(request(name), answer))
            except ClusterUnreachable:
                raise
            except ElasticError as error:
                self._refused.append((name, error))

    def show(self, as_json: bool, what: str, outcomes: Sequence[tuple[dict[str, object], str]]) -> None:
        """Show the outcome for each accepted job, as documents or in words. Raises Exit if any was refused."""
        if as_json:
            refused = [{"job": name, "reason": str(error)} for name, error in self._refused]
            documents = [document for document, _ in outcomes]
            print_json({what: [document["job"] for document in documents], "jobs": documents, "refused": refused})
        else:
            for _, text in outcomes:
                print(text)
        for _, error in self._refused:
            say(f"elasticctl: {error}")
        if self._refused:
            raise typer.Exit(max(error.exit_code for _, error in self._refused))
