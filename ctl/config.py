"""`elasticctl config`: check configuration files. Each daemon checks its own file, as at its start."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..protocol.errors import ElasticError, OperatorError, UserError
from .context import JSON, print_json, say

INSTALLED = tuple(Path("/etc/elasticctl") / name for name in ("controller.yaml", "agent.yaml", "cluster.yaml"))
CHECKED_WITHIN_S = 60.0  # a file named in the configuration may lie on a slow file system


class Kind(enum.Enum):
    """Kind of a configuration file, by its reader."""

    CONTROLLER = "controller"
    AGENT = "agent"
    POLICY = "policy"
    CLUSTER = "cluster"


NAMES = {Kind.POLICY: "a policy", Kind.CLUSTER: "users of elasticctl"}  # owners of other kinds: "the controller", ...


def add_to(root: typer.Typer) -> None:
    """Register this file's commands."""
    app = typer.Typer(name="config", help="Check configuration files.", no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)  # without a callback, typer drops the name of a single subcommand
    app.command()(check)
    root.add_typer(app)


def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="By default those in /etc/elasticctl.", show_default=False),
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="Whose files they are, if that cannot be seen.", show_default=False)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check files of a controller, agents, policies, users, without a cluster: each mistake with file, line, option and reason.

    Exit code 2: one is wrong.
    """
    chosen = files or [file for file in INSTALLED if file.exists()]
    if not chosen:
        raise UserError(f"config check: name a file; there is neither {INSTALLED[0]} nor {INSTALLED[1]}")
    found = []
    for file in chosen:
        whose = kind or kind_of(file)
        found.append((file, whose, _mistakes(file, whose)))
    if as_json:
        rows = [
            {"file": str(file), "kind": whose.value, "ok": not wrong, "mistakes": wrong} for file, whose, wrong in found
        ]
        print_json({"files": rows})
    else:
        for file, whose, wrong in found:
            for mistake in wrong:
                say(f"elasticctl: {mistake}")
            if not wrong:
                print(f"{file}: right, for {NAMES.get(whose, f'the {whose.value}')}")
    if any(wrong for _, _, wrong in found):
        raise typer.Exit(2)


def kind_of(file: Path) -> Kind:
    """Return the kind of a file, by its name, else by its options. Raises UserError if both are ambiguous."""
    from ..runtime.config import load_yaml
    from ..scheduler.scheduler import Choice

    for kind in (Kind.CONTROLLER, Kind.AGENT, Kind.CLUSTER):
        if kind.value in file.name:
            return kind
    document = load_yaml(file, UserError)
    if isinstance(document, dict) and "policy" in document and document.keys() <= set(Choice.__struct_fields__):
        return Kind.POLICY
    fewest = sorted((len(_mistakes(file, kind)), kind.value) for kind in (Kind.CONTROLLER, Kind.AGENT))
    if fewest[0][0] == fewest[1][0]:
        raise UserError(
            f"{file}: it cannot be seen whose file this is; say --kind controller, agent, policy or cluster"
        )
    return Kind(fewest[0][1])


def _mistakes(file: Path, kind: Kind) -> list[str]:
    if kind is Kind.POLICY:
        return _mistakes_in(lambda: load_policy(file))
    if kind is Kind.CLUSTER:
        return _mistakes_in(lambda: load_cluster_file(file))
    command = [sys.executable, "-P", "-m", f"elasticd.{kind.value}", "--config", str(file), "--check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECKED_WITHIN_S)
    except subprocess.TimeoutExpired:
        return [f"{file}: the check has not ended within {CHECKED_WITHIN_S:.0f} s"]
    wrong = done.stderr.strip().splitlines()
    return wrong or ([f"{file}: the check has failed with exit code {done.returncode}"] if done.returncode else [])


def load_policy(file: Path) -> object:
    """Load a policy file. Raises UserError if it is wrong."""
    from ..simulator.files import scheduler_in

    return scheduler_in(file)


def load_cluster_file(file: Path) -> object:
    """Load a file with the controller's address and the user's key. Raises UserError if it is wrong."""
    from ..runtime.config import load
    from ..runtime.endpoints import endpoints
    from .context import ClusterFile

    place = load(file, ClusterFile, UserError)
    try:
        endpoints(place.controller)
    except OperatorError as error:
        raise UserError(f"{file}: controller: {error}") from None
    return place


def _mistakes_in(loading: Callable[[], object]) -> list[str]:
    try:
        loading()
    except ElasticError as error:
        return str(error).splitlines()
    return []
