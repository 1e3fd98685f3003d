"""What every command shares: where the cluster is, and how answers are shown."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from ..protocol.errors import ClusterUnreachable, PeerError, UserError
from ..protocol.messages import Answer, GetJob, JobFound, JobView, Request

if TYPE_CHECKING:
    from rich.console import Console

    from ..runtime.keys import KeyFile
    from .client import Client

A = TypeVar("A")

DECIDED_WITHIN_S = 60.0  # a controller that has just started waits for its servers before it decides anything
PIPE_COLUMNS = 10_000  # programs read lines: nothing is wrapped for them

JSON = typer.Option("--json", help="One JSON document instead of text.", show_default=False)


SYSTEM = Path("/etc/elasticctl")  # of all users of this machine; before it goes a user's own


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``cluster.yaml``: which cluster somebody uses."""

    controller: str
    key: str | None = None  # file; a relative path starts at the directory of this one


@dataclass
class Context:
    """Options given before the command."""

    directory: Path
    controller: str | None
    key: Path | None = None
    is_given: bool = True  # the directory, by whoever calls
    _client: Client | None = None

    @property
    def client(self) -> Client:
        """The connection to the controller. Raises ClusterUnreachable where no cluster is known."""
        if self._client is None:
            from .client import Client

            address, key = self.reached_by()
            self._client = Client(address, key)
        return self._client

    def reached_by(self) -> tuple[str, KeyFile | None]:
        """Address and key: as given, else the local cluster in `directory`, else as the user's own or the machine's
        configuration says. Raises ClusterUnreachable, UserError."""
        if self.controller is not None:
            return self.controller, self._key_for(self.controller, None)
        if self.key is not None and not self.is_given:
            key = self._read_key(self.key)
            if key.controller is not None:
                return key.controller, key
        from .local import read_address

        address = read_address(self.directory)
        if address is not None:
            return address, None
        if not self.is_given:
            from ..runtime import config

            for home in (configuration(), SYSTEM):
                path = home / "cluster.yaml"
                if path.exists():
                    place = config.load(path, Place, UserError)
                    named = home / Path(place.key).expanduser() if place.key is not None else None
                    return place.controller, self._key_for(place.controller, named)
        raise ClusterUnreachable(
            f"no cluster at {self.directory}: start one with `elasticctl up`, or name one with --controller or `elasticctl login`"
        )

    def is_known(self) -> bool:
        """Is there a cluster to ask?"""
        try:
            self.reached_by()
        except ClusterUnreachable:
            return False
        return True

    def _key_for(self, address: str, named: Path | None) -> KeyFile | None:
        """Sockets of the file system need none."""
        if not address.startswith("tcp://"):
            return None
        path = self.key or named or configuration() / "key"
        return self._read_key(path) if self.key or named or path.exists() else None

    def _read_key(self, path: Path) -> KeyFile:
        from ..runtime.keys import KeyFile

        return KeyFile.read(path.expanduser().absolute(), UserError)

    def ask(self, request: Request, answer: type[A], timeout_s: float = 10.0) -> A:
        """The answer of type `answer`. Raises what `Client.ask` raises."""
        found: Answer = self.client.ask(request, timeout_s)
        if not isinstance(found, answer):
            raise PeerError(f"the controller answered a {type(request).__name__} with a {type(found).__name__}")
        return found

    def job(self, name: str) -> JobView:
        return self.ask(GetJob(job=name), JobFound).job


def of(context: typer.Context) -> Context:
    """The shared options of this call."""
    found = context.find_root().obj
    assert isinstance(found, Context)
    return found


def console() -> Console:
    """Where tables go: colour and the terminal's width on a terminal, plain wide text elsewhere."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PIPE_COLUMNS, no_color=True, force_terminal=False)


def print_json(document: Any) -> None:
    """One document on stdout."""
    print(json.dumps(document, indent=2))


def say(text: str) -> None:
    """Something for people that is not the answer."""
    print(text, file=sys.stderr, flush=True)


def configuration() -> Path:
    """Of this user."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "elasticctl"


def default_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "elasticctl" / "local"
