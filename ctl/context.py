"""What every command shares: where the cluster is, and how answers are shown."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ..protocol.errors import ClusterUnreachable, PeerError
from ..protocol.messages import Answer, GetJob, JobFound, JobView, Request

if TYPE_CHECKING:
    from rich.console import Console

    from .client import Client

A = TypeVar("A")

DECIDED_WITHIN_S = 60.0  # a controller that has just started waits for its servers before it decides anything
PIPE_COLUMNS = 10_000  # programs read lines: nothing is wrapped for them

JSON = typer.Option("--json", help="One JSON document instead of text.", show_default=False)


@dataclass
class Context:
    """Options given before the command."""

    directory: Path
    controller: str | None
    _client: Client | None = None

    @property
    def client(self) -> Client:
        """The connection to the controller. Raises ClusterUnreachable where no cluster is known."""
        if self._client is None:
            from .client import Client

            self._client = Client(self.address())
        return self._client

    def address(self) -> str:
        """Where the controller listens: as given, else as the local cluster in `directory` says."""
        if self.controller is not None:
            return self.controller
        from .local import read_address

        address = read_address(self.directory)
        if address is None:
            raise ClusterUnreachable(
                f"no cluster at {self.directory}: start one with `elasticctl up`, or name one with --controller"
            )
        return address

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


def default_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "elasticctl" / "local"
