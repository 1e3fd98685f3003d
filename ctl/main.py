"""The command `elasticctl`: options that all commands share, and the display of errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..protocol.errors import ElasticError, UserError
from .context import given, say
from .overview import ONE_WORD_MORE, other_option, other_word, screen

# ClickException, whose module depends on typer's version: newer ones carry click inside.
COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


class Commands(TyperGroup):
    """Group of all commands, which suggests the command that matches a word of another tool."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and (text := other_word(args[0])):
            raise UserError(text)
        return super().resolve_command(ctx, args)


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
            help="Address of a controller: tcp://HOST:PORT or ipc:///PATH; of several all, with commas.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            envvar="ELASTICCTL_KEY", help="Key file, in place of ~/.config/elasticctl/key.", show_default=False
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
) -> None:
    if version:
        print(f"elasticctl {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(screen([command for commands in ROOMS.values() for command in commands]))
        raise typer.Exit
    context.obj = given(directory, controller, key)


# The commands of each file, in the order of display. Only the file of the called command is loaded, so that commands
# answer sooner. A command missing here is still found, more slowly.
ROOMS = {
    "cluster": ("up", "down", "version", "controllers"),
    "servers": ("servers", "cordon", "uncordon", "drain"),
    "lending": ("lend", "reclaim"),
    "topology": ("topology",),
    "submitting": ("submit", "run"),
    "following": ("attach",),
    "jobs": ("status", "scale", "profile", "wait"),
    "stopping": ("cancel", "pause", "resume", "hold", "release", "requeue", "checkpoint"),
    "export": ("export",),
    "history": ("history",),
    "explain": ("explain",),
    "logs": ("logs",),
    "exec": ("exec",),
    "events": ("events",),
    "report": ("report",),
    "web.command": ("web",),
    "top.command": ("top",),
    "policy": ("policy",),
    "quota": ("quota",),
    "config": ("config",),
    "store": ("store",),
    "keys": ("keys", "login"),
    "simulate": ("simulate",),
    "doctor.command": ("doctor",),
    "check.command": ("check",),
}


def wanted_rooms(words: Sequence[str], completes: bool = False) -> list[str]:
    """Return the modules with a command among the `words` of a command line.

    Without such a word, and for help and completion, return all modules.
    """
    found = [room for room, commands in ROOMS.items() if any(word in commands for word in words)]
    return list(ROOMS) if completes or not found or {"-h", "--help"} & set(words) else found


def application(words: Sequence[str]) -> typer.Typer:
    """Return `elasticctl` with the commands that a command line of these words may mean."""
    app = typer.Typer(
        name="elasticctl",
        cls=Commands,
        help="Run training jobs that grow, shrink and survive on your own GPU servers.",
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(shared)
    completes = any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)
    for room in wanted_rooms(words, completes):
        import_module(f".{room}", __package__).add_to(app)
    return app


def main() -> None:
    """Run `elasticctl`. Every error that the world can cause is one sentence on stderr and an exit code."""
    _open_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a job's output may hold characters that this terminal cannot show
    app = application(sys.argv[1:])
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except ElasticError as error:
        say(f"elasticctl: {error}")
        code = error.exit_code
    except COMMAND_LINE_ERROR as error:
        code = _explained(error)
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question, whose line has no end yet
        print(file=sys.stderr)
        code = 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        _give_up_stdout()
        code = 0
    except OSError as error:  # a full disk under stdout, a directory without read permission
        _give_up_stdout()
        say(f"elasticctl: {error.filename or 'the output'}: {error.strerror or error}")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Give this process an input without content and outputs that discard, where a caller has closed them (`<&-`).

    Otherwise Python has None in their place, and the next opened file their number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 (until the process ends)


def _explained(error: Exception) -> int:
    """Print the error of a command line; or the help, where a group of commands stands alone (`elasticctl policy`)."""
    text = error.format_message()  # type: ignore[attr-defined]
    if type(error).__name__ != "NoArgsIsHelpError":
        context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
        command = context.info_name if context else ""
        text = other_option(command, option or "") or text
        if "unexpected extra argument" in text and command in ONE_WORD_MORE:
            text = ONE_WORD_MORE[command]
        say(f"elasticctl: {' '.join(text.split())}")
        return 2
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _give_up_stdout()
    return 0


def _give_up_stdout() -> None:
    """Discard unwritten output, which the interpreter would otherwise try to write again at its end, with an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
