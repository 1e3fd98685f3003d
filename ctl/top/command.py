"""The command `elasticctl top`."""

from __future__ import annotations

import sys

import typer

from ...protocol.errors import UserError
from ..context import of


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(top)


def top(context: typer.Context) -> None:
    """Show the cluster in this terminal, as it changes: GPUs, jobs, logs, reasons. Nothing can be changed there."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("top: needs a terminal; `elasticctl status` and `elasticctl servers` print the same")
    try:
        from .app import Top
    except ImportError:
        raise UserError("top: textual is not installed: pip install 'elasticctl[top]'") from None
    shared = of(context)
    viewer, _ = shared.viewer()
    Top(shared.another, viewer).run()
