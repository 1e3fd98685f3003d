"""`elasticctl store`: copy, back up and restore a controller's store, in a process with the controller's own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import etcdcerts

STORE = "sqlite:PATH (a controller's state directory or database), or etcd:FILE (a controller's configuration)."


def add_to(root: typer.Typer) -> None:
    """Register this file's commands."""
    app = typer.Typer(
        name="store",
        help="Copy, back up and restore what a controller remembers; certificates for etcd.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in (copy, backup, restore, certs):
        app.command()(command)
    root.add_typer(app)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=STORE)],
    target: Annotated[str, typer.Argument(metavar="TO", help="The same; it has to be empty.")],
) -> None:
    """Copy everything into an empty store, such as from SQLite to etcd. The controller is stopped meanwhile; jobs train
    on.
    """
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
    """Bring a backup into an empty store, and list the consequences for jobs that have gone on since."""
    _run("restore", str(file), target)


def certs(
    directory: Annotated[Path, typer.Argument(help="Where they go. What is there is kept.")],
    member: Annotated[list[str], typer.Option(help="A machine with etcd: NAME=ADDRESS[,ADDRESS...]. May be repeated.")],
    controller: Annotated[
        list[str] | None, typer.Option(help="A controller's name. May be repeated; default: those of the members.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="The name in controller.yaml.")] = "local",
) -> None:
    """Make certificates for etcd and its controllers, and say where they go and which rights they are given."""
    members = [etcdcerts.Member.parsed(text) for text in member]
    controllers = controller or [one.name for one in members]
    made = etcdcerts.make(directory.absolute(), members, controllers)
    print(f"{directory}: made {', '.join(path.name for path in made) or 'nothing: all of it is there'}\n")
    print(etcdcerts.advice(directory.absolute(), members, controllers, f"/elasticctl/{cluster}"))


def _run(*words: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "elasticd.controller.store_commands", *words], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
