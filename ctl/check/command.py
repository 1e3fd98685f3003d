"""`elasticctl check`: runs the parts of a check one after the other, and shows the finding of each."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...protocol.errors import UserError
from ..context import JSON, print_json, say

if TYPE_CHECKING:
    from .driver import Script

WIDTH_IN_PIPES = 100
COULD_NOT_RUN = 2
SHOWN_LINES = 25  # shown lines of a script's output


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": False, "allow_interspersed_args": False},
        epilog="Exit code 0: the same bits. 1: they differ, and the difference is shown. 2: the script could not be tried, with "
        "its own error. Nothing that run.save() would write is written; whatever else the script writes it writes, each time "
        "that it runs.",
    )(check)


def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="train.py ARGS | JOB.yaml | -- COMMAND...",
            help="The script with its arguments, a job file, or after -- a command.",
            show_default=False,
        ),
    ] = None,
    virtual_workers: Annotated[
        int | None,
        typer.Option(min=1, help="Default: the job file's, else the script's, else 4.", show_default=False),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=2, help="How many to run; default: into the third epoch, if that takes 15 s.", show_default=False
        ),
    ] = None,
    limit: Annotated[str, typer.Option(help="No part may take longer.")] = "2m",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Test locally whether a script gives the same bits on any number of GPUs; no cluster is needed.

    Its first steps run again and again in processes of this machine, on the CPU: alone, with another hash seed, with a
    step's loop bodies in reverse, with two workers, with workers that join, die and leave in the middle of an epoch
    and at its edges, from checkpoints.
    """
    from . import record
    from .driver import Driver
    from .screen import Screen
    from .trial import Trial

    script, sources = _script(arguments or [], virtual_workers, steps, limit)
    begun = time.monotonic()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_IN_PIPES
    screen = Screen(width, _is_coloured(), quiet=as_json)
    with _waiting(as_json) as (label, turned), Driver(script, turned) as driver:
        trial = Trial(driver, script, label)
        for part, outcome, finding in trial.run():
            screen.part(part, outcome, finding)
    took_s = time.monotonic() - begun
    if trial.error:
        if as_json:
            print_json(
                {"verdict": "could not run", "error": trial.error, "output": list(trial.output), "took_s": took_s}
            )
        else:
            for line in trial.output[-SHOWN_LINES:]:
                print(f"  {line}")
            say(f"elasticctl: check: {trial.error}")
        raise typer.Exit(COULD_NOT_RUN)
    digest = record.digest_of(sources)
    if digest is not None:
        record.write(digest, script.command, not trial.findings)
    if as_json:
        print_json(screen.document(trial, took_s))
    else:
        for line in screen.summary(trial, took_s):
            print(line)
    if trial.findings:
        raise typer.Exit(1)


def _script(
    arguments: list[str], virtual_workers: int | None, steps: int | None, limit: str
) -> tuple[Script, tuple[Path, ...]]:
    """Return the script to check, and its files. Raises UserError."""
    from ...protocol.durations import duration_s
    from .. import commands
    from .driver import Script

    if not arguments:
        raise UserError("check: give a script (train.py), a job file, or a command after --")
    try:
        directory = Path.cwd()
    except FileNotFoundError:
        raise UserError("check: the directory where you are does not exist any more; change to another one") from None
    environment = dict(os.environ)
    command = tuple(arguments)
    if command[0].endswith((".yaml", ".yml")):
        from ..jobfile import Overrides, build

        spec = build(
            Path(command[0]),
            Overrides(command=command[1:]),
            directory,
            os.environ,
        )
        command, directory = spec.command, Path(spec.workdir)
        environment |= dict(spec.env)
        virtual_workers = virtual_workers or spec.virtual_workers
    elif command[0].endswith(".py"):
        command = (sys.executable, *command)
    found = commands.look_at(command)
    if found.launcher:
        raise UserError(
            f"check: {found.launcher} starts processes of its own: give the script itself, `elasticctl check train.py`"
        )
    if found.script and not (directory / found.script).is_file():
        raise UserError(f"check: there is no file {found.script}")
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise UserError(f"check: there is no program {command[0]!r}{commands.unknown_program(command[0])}")
    within_s = duration_s(limit, "--limit")
    script = Script(command, directory, environment, virtual_workers, steps, within_s)
    return script, commands.sources(found, directory, environment)


def _is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def _waiting(quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Show the running part and its time in a line, if stderr is a terminal."""
    if quiet or not sys.stdout.isatty():
        yield (lambda text: None), (lambda: None)
        return
    from rich.console import Console

    console = Console(highlight=False)
    since = time.monotonic()
    shown = ""
    last_s = -1
    with console.status("") as status:

        def label(text: str) -> None:
            nonlocal since, shown, last_s
            since, shown, last_s = time.monotonic(), text, -1

        def turned() -> None:
            nonlocal last_s
            passed_s = int(time.monotonic() - since)
            if passed_s != last_s:
                last_s = passed_s
                room = max(20, console.width - 14)
                text = shown if len(shown) <= room else shown[: room - 1] + "…"
                status.update(f"{text} [dim]{passed_s} s[/dim]")

        yield label, turned
