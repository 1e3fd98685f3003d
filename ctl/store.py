"""`elasticctl store`: a controller's memory, copied, kept in a file, and restored by a process with the controller's own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

STORE = "sqlite:PATH (a controller's state directory or database), or etcd:FILE (a controller's configuration)."


def add_to(root: typer.Typer) -> None:
    """Register this file's commands."""
    app = typer.Typer(
        name="store",
        help="Copy, back up and restore what a controller remembers.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in (copy, backup, restore):
        app.command()(command)
    root.add_typer(app)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=STORE)],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same; it has to be empty.")],
) -> None:
    """Copy everything into an empty store, such as from SQLite to etcd. The controller is stopped meanwhile; jobs train on."""
    _run("copy", source, target)


def backup(
    source: Annotated[str, typer.Argument(metavar="STORE", help=STORE)],
    file: Annotated[Path, typer.Argument(help="A new file. Only its owner may read it.")],
) -> None:
    """Keep everything in a file. A controller may be using the store."""
    _run("backup", source, str(file))


def restore(
    file: Annotated[Path, typer.Argument(help="From `elasticctl store backup`.")],
    target: Annotated[str, typer.Argument(metavar="STORE", help=f"Has to be empty. {STORE}")],
) -> None:
    """Bring a backup into an empty store, and say what that means for jobs that have gone on since."""
    _run("restore", str(file), target)


def _run(*words: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "elasticd.controller.store", *words], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
