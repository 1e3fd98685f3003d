"""The command `elasticctl`: options that all commands share, and what errors look like."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..protocol.errors import ElasticError
from . import cluster, config, events, jobs, keys, logs, policy, simulate
from .context import Context, default_directory

# ClickException, whose module depends on typer's version: newer ones carry click inside.
COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="elasticctl",
    help="Run training jobs that grow, shrink and survive on your own GPU servers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def shared(
    context: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", envvar="ELASTICCTL_DIR", help="Directory of a cluster on this machine.", show_default=False
        ),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            envvar="ELASTICCTL_CONTROLLER",
            help="Address of a controller: tcp://HOST:PORT or ipc:///PATH.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            envvar="ELASTICCTL_KEY", help="Key file, in place of ~/.config/elasticctl/key.", show_default=False
        ),
    ] = None,
) -> None:
    where = (directory or default_directory()).expanduser().absolute()
    context.obj = Context(where, controller, key, directory is not None)


cluster.add_to(app)
jobs.add_to(app)
logs.add_to(app)
events.add_to(app)
policy.add_to(app)
config.add_to(app)
keys.add_to(app)
simulate.add_to(app)


def main() -> None:
    """Run `elasticctl`; every error that the world can cause is one sentence on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a job's output may hold what this terminal cannot show
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except ElasticError as error:
        print(f"elasticctl: {error}", file=sys.stderr)
        code = error.exit_code
    except COMMAND_LINE_ERROR as error:
        print(f"elasticctl: {' '.join(error.format_message().split())}", file=sys.stderr)  # type: ignore[attr-defined]
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        _give_up_stdout()
        code = 0
    except OSError as error:  # a full disk under stdout, a directory that may not be read
        _give_up_stdout()
        print(f"elasticctl: {error}", file=sys.stderr)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _give_up_stdout() -> None:
    """What could not be written never will be; without this the interpreter tries again at its end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
