"""Commands that submit jobs: `submit`, and `run`, which follows the job until its end."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from ..protocol.errors import ClusterUnreachable, ElasticError, RequestRefused, UserError
from ..protocol.messages import Forecast, Forecasted, Submit, Submitted
from ..protocol.model import JobId, JobSpec
from ..protocol.texts import many
from . import completion, render, starting
from .arrays import Array, awaited, unused
from .context import JSON, Context, agreed, of, print_json, say
from .following import end, follow_to_end
from .promises import deadline_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": False}
EPILOG = (
    "Give a job file, or a command after --. Of your environment PATH, VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, "
    "LD_LIBRARY_PATH, HOME, LANG and USER travel with the job, nothing else: use --env or the file."
)
NOTES = "elasticctl.notes"  # key in a command's context of the notes about a batch script
RUN_HELP = (
    "Submit a job, show its output, and exit with its code. Ctrl-C tells how to come back to the job, which goes on; "
    "a second Ctrl-C leaves it."
)


class Submission(TyperCommand):
    """A command that submits. The options in a batch script (`submit job.sh`) are inserted before the typed ones."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = None if ctx.resilient_parsing else self._first_word(args)
        if at is not None and not args[at].endswith((".yaml", ".yml")):
            from .batchscripts import script_of

            if (script := script_of(Path(args[at]))) is not None:
                ctx.meta[NOTES] = script.notes
                args = [*script.options, *args[:at], "--", *script.command, *args[at + 1 :]]
        words: list[str] = super().parse_args(ctx, args)
        return words

    def _first_word(self, args: Sequence[str]) -> int | None:
        """Return the index of the first word before `--` that is neither an option nor the value of one; else None."""
        flags = {name for each in self.params if getattr(each, "is_flag", False) for name in each.opts}
        options = {name for each in self.params for name in each.opts} - flags
        at = 0
        while at < len(args) and args[at] != "--":
            if not args[at].startswith("-"):
                return at
            at += 2 if args[at] in options else 1
        return None


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    app.command(cls=Submission, context_settings=SETTINGS, epilog=EPILOG)(submit)
    app.command("run", cls=Submission, help=RUN_HELP, context_settings=SETTINGS, epilog=EPILOG)(submit)


def submit(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB.yaml | SCRIPT | -- COMMAND...",
            help="A job file, a batch script with #ELASTICCTL or #SBATCH lines, or after -- the command itself.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.", show_default=False)] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs: 4, or a range 1:8.", show_default=False)] = None,
    gpu_type: Annotated[
        list[str] | None,
        typer.Option(help="Only GPUs of this type, such as A100; several: A100,V100.", show_default=False),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Only GPUs with so much memory: 40GiB.", show_default=False)
    ] = None,
    gpus_per_server: Annotated[
        int | None, typer.Option(help="Exactly so many on each of its servers.", show_default=False)
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(help="Processor cores of each worker: kept for it, and no more.", show_default=False),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory of each worker, 16GiB: kept for it, and no more.", show_default=False),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Run each worker in a container of this image, with podman.", show_default=False),
    ] = None,
    virtual_workers: Annotated[
        int | None, typer.Option(help="What the result depends on; default: the most GPUs.", show_default=False)
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="End after so many steps.", show_default=False)] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="The script ends when a figure that it reports is so much, such as 'accuracy >= 0.95': tells how long it is.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="To be over in 2h, or by a date: '2027-01-31 18:00'.", show_default=False),
    ] = None,
    soft: Annotated[
        bool | None,
        typer.Option("--soft", help="With --deadline: run late rather than be refused.", show_default=False),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            help="low, normal, high, or a number.",
            show_default=False,
            autocompletion=completion.words("low", "normal", "high"),
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the job; may be repeated.", show_default=False)
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="A variable with the content of your file, read on the servers; may be repeated.",
            show_default=False,
        ),
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Such as 30s or 10m (the default).", show_default=False)
    ] = None,
    determinism: Annotated[
        str | None,
        typer.Option(
            help="none, static, elastic (the default) or heterogeneous.",
            show_default=False,
            autocompletion=completion.words("none", "static", "elastic", "heterogeneous"),
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="per-gpu|per-server",
            help="How many run the command; default: per-server for torchrun and its like.",
            show_default=False,
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help="May the command be run again if it is killed, how often? (0)", show_default=False),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            help="A job for each index, {index} in the command: 0-99, 1,3,7, or 0-99%8 for eight at a time.",
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(help="A file of lists, `lr: [0.1, 0.01]`: a job for each combination, {lr}.", show_default=False),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time",
            help="End after running so long, such as 2h or 1-12:00:00; waiting is not counted.",
            show_default=False,
        ),
    ] = None,
    warn: Annotated[
        str | None,
        typer.Option(help="With --time: send SIGUSR1 so long before the end, such as 60s.", show_default=False),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="start,end,fail,promise,idle",
            help="Send a notice, by the operator's channels; promise: its deadline is endangered or missed; idle: its GPUs do "
            "nothing.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB[:any]",
            help="Start when that job has finished; with :any, however it ends. May be repeated.",
            show_default=False,
            autocompletion=completion.jobs,
        ),
    ] = None,
    snapshot: Annotated[
        bool | None,
        typer.Option(
            "--snapshot",
            help="Run in a copy of the working directory as it is now (64 MiB, without what .gitignore names).",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="JOB|DIRECTORY",
            help="Go on from the last checkpoint of a job that is over, as it was submitted but for what else is given; or from "
            "one in a directory.",
            show_default=False,
            autocompletion=completion.ended_jobs,
        ),
    ] = None,
    with_new_code: Annotated[
        bool,
        typer.Option("--with-new-code", help="With --resume: though code or data are not those of the checkpoint."),
    ] = False,
    replay_batches: Annotated[
        str | None,
        typer.Option(
            metavar="JOB|FILE",
            help="Change the batch at the steps at which it changed in that job, or as a file says: the same bits.",
            show_default=False,
            autocompletion=completion.ended_jobs,
        ),
    ] = None,
    pty: Annotated[
        bool,
        typer.Option("--pty", help="With `run`: have a shell, or another command, at this terminal: --pty bash."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check, show the job as a file that can be submitted, and whether its deadline would hold; submit nothing.",
        ),
    ] = False,
    wait_for_end: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the job's code.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the logs until the end; exit with the job's code.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Submit a job and print its id."""
    import os

    from .interactive import Shell
    from .jobfile import Overrides, array_of, build
    from .jobgpus import GpuOptions
    from .jobscaling import replayed
    from .resubmit import GoingOn
    from .snapshots import Packed

    shared, act = of(context), context.info_name or "submit"  # or "run"
    goes_on = GoingOn(resume, with_new_code, shared.job)
    file, command = (
        (None, ())
        if goes_on.source is not None and not arguments
        else (None, tuple(arguments or ("bash",)))
        if pty
        else _file_or_command(act, arguments or [])
    )
    if pty and act != "run":
        raise UserError("submit: --pty goes with `elasticctl run`")
    overrides = Overrides(
        name=name,
        gpus=GpuOptions(gpus, tuple(gpu_type or ()), gpu_memory, gpus_per_server),
        cpus=cpus,
        memory=memory,
        image=image,
        virtual_workers=virtual_workers,
        max_steps=max_steps,
        until=until,
        deadline=deadline,
        soft=soft,
        priority=priority,
        env=tuple(env or ()),
        secrets=tuple(secret or ()),
        checkpoint_every=checkpoint_every,
        determinism=determinism,
        processes=processes,
        restarts=restarts,
        notify=notify,
        after=tuple(after or ()),
        array=array,
        sweep=sweep,
        time=time_limit,
        warn=warn,
        snapshot=snapshot,
        replay_batches=replayed(replay_batches, shared.job),
        command=command,
    )
    doubts: list[str] = []
    doubt = None if shared.is_this_machine() else doubts.append
    packed = Packed()
    options, where = goes_on.options(file, overrides), goes_on.where(file, _where_we_are())
    built = build(file, options, where, os.environ, doubt, packed.take)
    spec = goes_on.job(file, overrides, built, packed.take)
    doubts += packed.left_out
    shell = Shell(shared) if pty else None
    if shell is not None:
        spec = shell.job(spec)
    if spec.after and not isinstance(_cluster(shared), ElasticError):
        spec = msgspec.structs.replace(spec, after=awaited(shared, spec.after))
    several = array_of(file, overrides, _where_we_are())
    if several is not None and act == "run":
        raise UserError("run: follows one job: `submit --array`, then `wait` or `logs` with the jobs' names")
    from .commands import copies, ignored_lines, more_processes

    if NOTES in context.meta:
        doubts += context.meta[NOTES]
    elif ignored := ignored_lines(spec.command, Path(spec.workdir)):
        doubts.append(ignored)
    sentence, sure = copies(spec.command, spec.gpus, Path(spec.workdir), spec.env)
    if sure and not dry_run and sys.stdin.isatty() and sys.stderr.isatty():
        agreed(f"{sentence}. Submit it so?", sentence)
    elif sentence:
        doubts.append(sentence)
    doubts.append(more_processes(spec.command, spec.gpus))
    if several is not None and NOTES not in context.meta:
        doubts.append(unused(spec, several))
    doubts = [doubt for doubt in doubts if doubt]
    if dry_run:
        _say_all([*doubts, *goes_on.unwritten(file, spec, os.environ)])
        _forecast(shared, spec, as_json, several)
        return
    packed.send(shared, spec)
    if several is not None:
        jobs = _submit_array(shared, spec, several, as_json)
        _say_all(doubts)
        if follow or wait_for_end:
            codes = [end(shared, job) for job in jobs]
            raise typer.Exit(next(filter(None, codes), 0))
        return
    answer = shared.ask(Submit(spec=spec), Submitted)
    job, runs = answer.job, act == "run"
    if as_json:
        print_json({"job": job, **({"promise": render.plain(answer.promise)} if answer.promise is not None else {})})
    else:
        if not runs:  # the output of the job is the answer of `run`
            print(job, flush=True)
        say(f"elasticctl: {render.submitted(job, spec, joins=not sentence)}")
        if answer.promise is not None:
            say(f"elasticctl: deadline {deadline_line(answer.promise, time.time())}")
    _say_all([*answer.notes, *doubts, *unchecked(spec)])
    if shell is not None:
        raise typer.Exit(shell.attach(job))
    if runs:
        raise typer.Exit(follow_to_end(shared, job, as_json=as_json))
    if follow:
        from .logs import follow_job

        follow_job(shared, job)
    if follow or wait_for_end:
        raise typer.Exit(end(shared, job))


def _submit_array(shared: Context, spec: JobSpec, array: Array, as_json: bool) -> list[JobId]:
    """Submit the jobs of an array one after the other, and print its name.

    If one is refused, print which jobs are submitted, and raise the refusal.
    """
    jobs: list[JobId] = []
    for element in array.elements(spec):
        try:
            jobs.append(shared.ask(Submit(spec=element), Submitted).job)
        except ElasticError:
            if jobs:
                left = ",".join(str(index) for index in array.indices[len(jobs) :])
                say(
                    f"elasticctl: {len(jobs)} of {len(array.indices)} jobs are submitted, {_between(jobs)}; "
                    f"the others are --array {left}"
                )
            raise
    if as_json:
        print_json({"array": spec.name, "jobs": jobs})
    else:
        print(spec.name, flush=True)
        limit = f", {array.most} at a time" if array.most is not None else ""
        say(f"elasticctl: {spec.name}[{array.text}]: {many(len(jobs), 'job')}, {_between(jobs)}{limit}")
    return jobs


def _between(jobs: Sequence[JobId]) -> str:
    return jobs[0] if len(jobs) == 1 else f"{jobs[0]} to {jobs[-1]}"


def unchecked(spec: JobSpec) -> list[str]:
    """Return a hint at `elasticctl check` for an elastic job, if no check of this version of its script is on record."""
    if spec.gpus.min == spec.gpus.max:
        return []
    from . import commands
    from .check import record

    found = commands.look_at(spec.command)
    if not commands.joins(found, Path(spec.workdir), spec.env):
        return []
    digest = record.digest_of(commands.sources(found, Path(spec.workdir), spec.env))
    if digest is None or record.read(digest) is not None:
        return []
    script = shlex.quote(found.script) if found.script else f"-- {found.interpreter} -m {found.module}"
    return [f"`elasticctl check {script}` tries at the desk whether its result depends on how many GPUs train it"]


def _forecast(shared: Context, spec: JobSpec, as_json: bool, array: Array | None) -> None:
    """Show the job or array that would be submitted, and the forecast. Raises RequestRefused if it would be refused.

    Without a cluster only a job with a deadline, or a checkpoint to go on from, is an error.
    """
    more: dict[str, object] = {} if array is None else array.document()
    answer = _forecast_of(shared, spec if array is None else next(array.elements(spec)))
    if isinstance(answer, ElasticError):
        if spec.deadline is not None or spec.resume is not None:
            raise answer
        _show_spec(spec, as_json, more)
        say(f"elasticctl: whether the job would be admitted is not known: {answer}")
        return
    starts = starting.of_spec(shared, spec) if not answer.reason else None
    if as_json:
        forecast = {
            "reason": answer.reason,
            "promise": answer.promise,
            "offer": answer.offer,
            "notes": answer.notes,
            "time_s": answer.time_s,
            "starts": None if starts is None else starts[1],
        }
        filled = msgspec.structs.replace(spec, resume=answer.resume or spec.resume)
        print_json({**render.plain(filled), **more, "forecast": render.plain(forecast)})
    else:
        _show_spec(spec, as_json, more)
        if answer.resume is not None:
            say(f"elasticctl: goes on from {render.goes_on_from(answer.resume)}")
        if answer.promise is not None:
            say(f"elasticctl: deadline {deadline_line(answer.promise, answer.time_s)}")
        _say_all(answer.notes)
        if starts is not None:
            say(f"elasticctl: starts {starts[0]}")
    if answer.reason:
        raise RequestRefused(answer.reason)


def _forecast_of(shared: Context, spec: JobSpec) -> Forecasted | ElasticError:
    """Return the forecast, or why no cluster can be asked: none is known or answers, or there is no key for it."""
    if (absent := _cluster(shared)) is not None:
        return absent
    try:
        return shared.ask(Forecast(spec=spec), Forecasted)
    except ClusterUnreachable as error:
        return error


def _cluster(shared: Context) -> ElasticError | None:
    """Return why no cluster can be asked; None: one can be."""
    try:
        _ = shared.client
    except (ClusterUnreachable, UserError) as error:
        return error
    return None


def _where_we_are() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("submit: the directory where you are does not exist any more; change to another one") from None


def _say_all(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        say(f"elasticctl: {sentence}")


def _file_or_command(act: str, arguments: list[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the job file or the command, distinguished by the first word: a job file ends in .yaml or .yml."""
    if not arguments:
        raise UserError(f"{act}: give a job file, or a command after --")
    if arguments[0].endswith((".yaml", ".yml")):
        if len(arguments) > 1 and "--" not in sys.argv:
            raise UserError(f"{act}: one job file at a time; {arguments[1]!r} is too many")
        return Path(arguments[0]), tuple(arguments[1:])
    if "--" not in sys.argv and len(arguments) == 1:
        raise UserError(
            f"{act}: {arguments[0]!r} is neither a job file (.yaml) nor a batch script (#!); put a command after --, such as "
            "-- python train.py"
        )
    return None, tuple(arguments)


def _show_spec(spec: JobSpec, as_json: bool, more: dict[str, object]) -> None:
    """Show the job: for people as a job file that can be submitted, for programs in the form of the request."""
    if as_json:
        print_json({**render.plain(spec), **more})
        return
    from .jobdocument import text_of

    print(text_of(spec, more), end="")
