"""Shell completion after Tab: jobs, servers and policies, as the running cluster knows them.

A user at a prompt must not wait: completion asks the controller once, with little time for the answer. On any obstacle
(no cluster, no key, a slow answer) it offers nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import typer

from ..protocol.errors import ElasticError
from ..protocol.messages import Answer, GetEnded, GetJobs, GetServers, Jobs, Request, Servers
from .context import Context, given

A = TypeVar("A", bound=Answer)

ANSWERED_WITHIN_S = 0.3
MOST_JOBS = 500
MOST_ENDED = 50


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return ids of unfinished jobs."""
    return of_kind(incomplete, _unfinished(_asked(context)))


def any_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return ids of unfinished jobs and of those that ended last."""
    shared = _asked(context)
    return of_kind(incomplete, [*_unfinished(shared), *_ended(shared)])


def ended_jobs(context: typer.Context, incomplete: str) -> list[str]:
    return of_kind(incomplete, _ended(_asked(context)))


def servers(context: typer.Context, incomplete: str) -> list[str]:
    found = _answer(_asked(context), GetServers(), Servers)
    return of_kind(incomplete, [view.server.server for view in found.servers] if found is not None else [])


def policies(incomplete: str) -> list[str]:
    """Return names of policies. Policy files are offered by the shell itself."""
    return of_kind(incomplete, sorted(_policy_names()))


def words(*known: str) -> Callable[[str], list[str]]:
    """Return a completion function that offers the given words."""

    def offered(incomplete: str) -> list[str]:
        return of_kind(incomplete, known)

    return offered


def _policy_names() -> Iterator[str]:
    """Yield the names of the shipped policies. Each has a file, so the policies themselves need not be loaded."""
    for file in (files("elasticd") / "configs" / "policies").iterdir():
        if file.name.endswith(".yaml"):
            yield file.name.removesuffix(".yaml")


def of_kind(incomplete: str, names: Iterator[str] | list[str] | tuple[str, ...]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _asked(context: typer.Context) -> Context:
    """Return the context of the options before the command, which has not begun."""
    options = context.find_root().params  # options before the command, as typed
    directory, key = (Path(path) if (path := options.get(name)) else None for name in ("directory", "key"))
    return given(directory, options.get("controller"), key)


def _unfinished(shared: Context) -> list[str]:
    found = _answer(shared, GetJobs(limit=MOST_JOBS), Jobs)
    return [view.job for view in found.jobs] if found is not None else []


def _ended(shared: Context) -> list[str]:
    found = _answer(shared, GetEnded(limit=MOST_ENDED), Jobs)
    return [view.job for view in found.jobs] if found is not None else []


def _answer(shared: Context, request: Request, kind: type[A]) -> A | None:
    try:
        return shared.ask(request, kind, ANSWERED_WITHIN_S)
    except (ElasticError, OSError):
        return None
