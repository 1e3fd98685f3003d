"""`elasticctl export`: a job's checkpoint in a format that other programs read."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..protocol.errors import OperatorError, UserError
from . import completion
from .context import Context, of

MODULE = "elasticd.worker.state.exporting"


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    app.command()(export)


def export(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Which job, or a checkpoint, or a directory of checkpoints.",
            show_default=False,
            autocompletion=completion.jobs,
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(
            help="FILE.safetensors (the model), FILE.pt (for torch.load) or DIRECTORY/ (torch.distributed.checkpoint).",
            show_default=False,
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a job's newest checkpoint in a format that other programs read."""
    if importlib.util.find_spec("torch") is None:
        raise OperatorError(f"elasticctl export needs PyTorch, which {sys.executable} does not have")
    path = Path(source) if Path(source).exists() else _file_of(of(context), source)
    words = [sys.executable, "-m", MODULE, str(path), out, *(["--force"] if force else [])]
    raise typer.Exit(subprocess.run(words, check=False).returncode)


def _file_of(shared: Context, job: str) -> Path:
    """Return the newest checkpoint of `job`. Raises UserError if there is none on this machine."""
    view = shared.job(job)
    if view.saved_step is None:
        raise UserError(f"{view.job} has no checkpoint: `elasticctl checkpoint {view.job}` saves its state")
    if not view.saved_file or not Path(view.saved_file).exists():
        where = view.saved_file or "a directory that its worker has not told"
        raise UserError(f"the checkpoint of {view.job} is not on this machine: on its server it is {where}")
    return Path(view.saved_file)
