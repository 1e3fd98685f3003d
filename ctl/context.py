"""Shared parts of all commands: finding the cluster, and displaying answers."""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from ..protocol.errors import ClusterUnreachable, PeerError, RequestRefused, UserError
from ..protocol.messages import Answer, GetJob, JobFound, JobView, Request
from . import record

if TYPE_CHECKING:
    from rich.console import Console

    from ..runtime.keys import KeyFile
    from .client import Client
    from .tables import Table

A = TypeVar("A")

DECIDED_WITHIN_S = 60.0  # a controller that has just started waits for its servers before it decides
RESTARTED_WITHIN_S = 120.0  # a controller, by systemd or `up`, or another one takes over
PIPE_COLUMNS = 10_000  # output to programs is not wrapped: they read lines
COMMAND = re.compile(r"`[^`\n]*`")
NO_BREAK = "\N{NO-BREAK SPACE}"

JSON = typer.Option("--json", help="One JSON document instead of text.", show_default=False)


SYSTEM = Path("/etc/elasticctl")  # configuration for all users of this machine; a user's own file takes precedence


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``cluster.yaml``: the cluster that a user works with."""

    controller: str | tuple[str, ...]  # one address, or several: in a list, or with commas between them
    key: str | None = None  # file; a relative path starts at the directory of this one


@dataclass
class Context:
    """Options given before the command."""

    directory: Path
    controller: str | None
    key: Path | None = None
    is_given: bool = True  # the directory was given by an option
    _client: Client | None = None

    @property
    def client(self) -> Client:
        """Connection to the controller. Raises ClusterUnreachable where no cluster is known."""
        if self._client is None:
            from .client import Client
            from .endpoints import cache

            address, key = self.reached_by()
            self._client = Client(address, key, self._diagnosis, cache())
        return self._client

    def another(self) -> Context:
        """Return a context of the same options without a connection, for another thread."""
        return replace(self, _client=None)

    def viewer(self) -> tuple[str, str]:
        """Return the caller's name for `--mine`, and in words the caller's identity towards the controller."""
        _, key = self.reached_by()
        if key is None:
            name = getpass.getuser()
            return name, f"the account {name}"
        return key.name, f"{key.role.value}:{key.name}"

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def command(self, what: str) -> str:
        """Return the command line for `what` that addresses the same cluster."""
        if self.directory in (default_directory(), _absolute(os.environ.get("ELASTICCTL_DIR"))):
            return f"elasticctl {what}"
        return f"elasticctl --dir {shlex.quote(str(self.directory))} {what}"

    def _diagnosis(self, address: str, late: bool) -> str | None:
        """Return why no controller answers at `address`, as far as this machine can tell; `late`: after a long wait."""
        found = record.read(self.directory)
        if found is not None and found.controller == address:
            if found.stopped:
                return record.stopped(self.directory, self.command("up"))
            return record.dead(self.directory, found, self.command("up")) or (
                record.silent(self.directory, found) if late else None
            )
        if late and address.startswith("ipc:///run/elasticctl/"):
            return (
                f"no controller answers at {address}: `systemctl status elasticctl-controller` tells its process, "
                "`journalctl -u elasticctl-controller` shows its log, `systemctl restart elasticctl-controller` starts it"
            )
        if late and address.startswith("tcp://"):
            from . import reach

            return reach.why_not(address)
        return None

    def reached_by(self) -> tuple[str, KeyFile | None]:
        """Return address and key of the cluster.

        The options come first, then the local cluster in `directory`, then the configuration of the user or of the
        machine. Several controllers' addresses are joined by commas. Raises ClusterUnreachable,
        UserError.
        """
        address, path = self.named()
        return address, None if path is None else self._read_key(path)

    def named(self) -> tuple[str, Path | None]:
        """Return the address, and the key's path; the file need not exist. Raises ClusterUnreachable, UserError."""
        if self.controller is not None:
            return self.controller, self._key_for(self.controller, None)
        if self.key is not None and not self.is_given:
            key = self._read_key(self.key)
            if key.controller is not None:
                return key.controller, self.key
        found = record.read(self.directory)
        if found is not None and not found.stopped:
            return found.controller, None
        if not self.is_given:
            from ..runtime import config
            from ..runtime.endpoints import split

            for home in (configuration(), SYSTEM):
                path = home / "cluster.yaml"
                if path.exists():
                    place = config.load(path, ClusterFile, UserError)
                    named = home / Path(place.key).expanduser() if place.key is not None else None
                    address = ",".join(split(place.controller))
                    return address, self._key_for(address, named)
        if found is not None:
            raise ClusterUnreachable(record.stopped(self.directory, self.command("up")))
        raise ClusterUnreachable(
            f"no cluster at {self.directory}: start one with `elasticctl up`, or name one with --controller or `elasticctl login`"
        )

    def is_known(self) -> bool:
        """Return whether a cluster is configured."""
        try:
            self.reached_by()
        except ClusterUnreachable:
            return False
        return True

    def is_this_machine(self) -> bool:
        """Return whether the cluster was started by `elasticctl up` with all its servers on this machine."""
        found = record.read(self.directory)
        if found is None or not found.controller.startswith("ipc://"):
            return False
        try:
            return self.named()[0] == found.controller
        except ClusterUnreachable:  # the cluster has been stopped
            return True

    def _key_for(self, address: str, named: Path | None) -> Path | None:
        """Return the path of the key for `address`. Sockets of the file system need none."""
        if "tcp://" not in address:
            return None
        path = self.key or named or configuration() / "key"
        return path if self.key or named or path.exists() else None

    def _read_key(self, path: Path) -> KeyFile:
        from ..runtime.keys import KeyFile

        return KeyFile.read(path.expanduser().absolute(), UserError)

    def ask(self, request: Request, answer: type[A], timeout_s: float = 10.0) -> A:
        """Return the answer of type `answer`. Raises the errors of `Client.ask`."""
        found: Answer = self.client.ask(request, timeout_s)
        if not isinstance(found, answer):
            raise PeerError(f"the controller answered a {type(request).__name__} with a {type(found).__name__}")
        return found

    def outlast_a_restart(self, within_s: float | None = None) -> None:
        """Have requests wait for a controller that has answered before: for commands that follow a job for hours.

        within_s: the command's own limit.
        """
        self.client.patience_s = min(RESTARTED_WITHIN_S, within_s if within_s is not None else math.inf)

    def job(self, name: str) -> JobView:
        return self.ask(GetJob(job=name), JobFound).job


def agreed(question: str, otherwise: str) -> None:
    """Ask the user at the terminal. Raises RequestRefused without a yes; `otherwise`: its text without a terminal."""
    if not sys.stdin.isatty():
        raise RequestRefused(otherwise)
    if not typer.confirm(question, err=True):
        raise RequestRefused("nothing is done")


def given(directory: Path | None, controller: str | None, key: Path | None) -> Context:
    """Return the context of the options before a command; None: not given."""
    where = (directory or default_directory()).expanduser().absolute()
    return Context(where, controller, key, directory is not None)


def of(context: typer.Context) -> Context:
    """Return the shared options of this call."""
    found = context.find_root().obj
    assert isinstance(found, Context)
    return found


def console() -> Console:
    """Return the console for tables: with colour and the terminal's width on a terminal, plain wide text elsewhere."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PIPE_COLUMNS, no_color=True, force_terminal=False)


def show(table: Table) -> None:
    """Print a table: on a terminal in its width and with colour, elsewhere one line for each row."""
    for line in table_lines(table):
        print(line)


def table_lines(table: Table) -> Iterator[str]:
    from .tables import lines

    if not sys.stdout.isatty():
        return lines(table, None, False)
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lines(table, shutil.get_terminal_size().columns, colour)


def print_lines(lines: Iterable[str]) -> None:
    """Print text in columns; on a terminal without breaking its words."""
    for line in fitted(lines):
        print(line)


def fitted(lines: Iterable[str]) -> Iterator[str]:
    """Yield `lines` fitted to the terminal's width; unchanged where there is no terminal."""
    from .tables import hung

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        if width is None:
            yield line
        else:
            yield from hung(line, width)


def print_json(document: Any) -> None:
    """Print one document on stdout."""
    print(json.dumps(document, indent=2))


def say(text: str) -> None:
    """Print a remark for people on stderr, so that stdout has the answer alone. On a terminal neither words nor commands
    between backquotes are broken, which can then be copied.
    """
    if sys.stderr.isatty():
        from .tables import hung

        width = shutil.get_terminal_size().columns
        whole = COMMAND.sub(lambda found: found[0].replace(" ", NO_BREAK), text)
        text = "\n".join(part for line in whole.split("\n") for part in hung(line, width)).replace(NO_BREAK, " ")
    print(text, file=sys.stderr, flush=True)


def configuration() -> Path:
    """Return this user's directory of configuration."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "elasticctl"


def _absolute(path: str | None) -> Path | None:
    return Path(path).expanduser().absolute() if path else None


def default_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "elasticctl" / "local"


def check_output(option: str, path: Path) -> None:
    """Raise UserError, naming the option, if no file can be written at this path."""
    if path.is_dir():
        raise UserError(f"{option}: {path} is a directory, not a file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"{option}: {path.parent} is not a directory that can be written to")
