"""Commands about servers: servers (adopt, remove), cordon, uncordon, drain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import (
    AdoptServer,
    CordonServer,
    GetServers,
    RemoveServer,
    ServerAdopted,
    ServerCordoned,
    ServerRemoved,
    Servers,
    ServerState,
    ServerUncordoned,
    ServerView,
    StillThere,
    UncordonServer,
)
from ..protocol.model import CordonKind, ServerId
from ..protocol.texts import many
from . import completion, render
from .context import DECIDED_WITHIN_S, JSON, Context, agreed, of, print_json, say, show
from .waiting import Waiting, limit_s


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    for command in (cordon, uncordon, drain):
        app.command()(command)
    group = typer.Typer(invoke_without_command=True)
    group.callback()(servers)
    group.command()(adopt)
    group.command()(remove)
    # Names of these commands in earlier versions.
    group.command("forget", hidden=True)(remove)
    group.command("exclude", hidden=True)(cordon)
    group.command(hidden=True)(include)
    app.add_typer(group, name="servers")


SERVER = typer.Argument(help="Name of the server.", autocompletion=completion.servers)
PLACE = typer.Argument(
    metavar="SERVER[:GPU]",
    help="Name of a server, or one of its GPUs: s1, s1:3.",
    autocompletion=completion.servers,
)
REASON = typer.Option(help="Why; it is shown to all.", show_default=False)


def servers(context: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Show the servers and what runs on them."""
    if context.invoked_subcommand is not None:
        return
    answer = of(context).client.servers()
    if as_json:
        print_json({"servers": render.plain(answer.servers), "time_s": answer.time_s})
    else:
        show(render.server_table(answer.servers, answer.time_s))


def adopt(context: typer.Context, server: Annotated[str, SERVER], as_json: Annotated[bool, JSON] = False) -> None:
    """Take over a server with workers that belong to no job of this cluster: they save their state and end."""
    answer = of(context).ask(AdoptServer(server=ServerId(server)), ServerAdopted)
    if as_json:
        print_json(render.plain(answer))
    elif answer.workers:
        end = "saves its state and ends" if answer.workers == 1 else "save their state and end"
        print(f"{server} is taken over: {many(answer.workers, 'worker')} there {end}")
    else:
        print(f"{server} is taken over")


def remove(
    context: typer.Context,
    server: Annotated[str, SERVER],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Also if it is there; do not ask.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Remove a server that is lost or has no workers. When its agent is started again, it joins as a new server."""
    if not yes and _is_there(of(context), ServerId(server)):
        agreed(
            f"{server} is there, and its GPUs can be used; it comes back when its agent is started again. Remove it?",
            f"{server} is there: drain it or switch it off first, or say --yes",
        )
    answer = of(context).ask(RemoveServer(server=ServerId(server)), ServerRemoved, DECIDED_WITHIN_S)
    if as_json:
        print_json(render.plain(answer))
    else:
        print(f"{server} is removed")


def cordon(
    context: typer.Context,
    place: Annotated[str, PLACE],
    reason: Annotated[str, REASON] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Start nothing new on a server, or on one of its GPUs, until `uncordon`. What runs there goes on."""
    server, gpu = _place(place)
    answer = of(context).ask(CordonServer(server=server, gpu=gpu, reason=reason), ServerCordoned)
    if as_json:
        print_json(render.plain(answer))
    else:
        print(f"{place} takes no new work; what runs there goes on")


def uncordon(
    context: typer.Context,
    place: Annotated[str, PLACE],
    trust: Annotated[
        bool, typer.Option("--trust", help="Also in spite of the troubles that it has now, until one comes anew.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Use a server, or one of its GPUs, again. It ends a drain, too."""
    _uncordon(context, place, trust, as_json)


def include(context: typer.Context, place: Annotated[str, PLACE], as_json: Annotated[bool, JSON] = False) -> None:
    """Run `uncordon --trust` under its name in earlier versions."""
    _uncordon(context, place, True, as_json)


def _uncordon(context: typer.Context, place: str, trust: bool, as_json: bool) -> None:
    server, gpu = _place(place)
    answer = of(context).ask(UncordonServer(server=server, gpu=gpu, trust=trust), ServerUncordoned)
    if as_json:
        print_json(render.plain(answer))
        return
    print(f"{place} is not cordoned any more, but:" if answer.still else f"{place} may be used")
    for trouble in answer.trusted:
        print(f"  in spite of {render.printable(trouble)}")
    for still in answer.still:
        print(f"  {render.printable(still)}")


def drain(
    context: typer.Context,
    place: Annotated[str, PLACE],
    reason: Annotated[str, REASON] = "",
    timeout: Annotated[
        str | None, typer.Option(help="Wait no longer than this (10m, 2h); the drain goes on.", show_default=False)
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is empty.")] = False,
    preempt: Annotated[
        bool,
        typer.Option("--preempt", help="Jobs that get no GPU elsewhere save their state, end, and wait for one."),
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Move the work on a server, or on one of its GPUs, to others without stopping it, and start nothing new there.

    Ends when the server or GPU is empty, or with exit code 1 when the remaining work cannot be moved. The server stays
    cordoned, and the remaining work is moved as soon as there is room, until `uncordon`.
    """
    if no_wait and timeout is not None:
        raise UserError("--no-wait and --timeout exclude each other")
    shared, within_s, (server, gpu) = of(context), limit_s(timeout), _place(place)
    kind = CordonKind.DRAIN_BY_PREEMPTING if preempt else CordonKind.DRAIN
    answer = shared.ask(CordonServer(server=server, gpu=gpu, reason=reason, kind=kind), ServerCordoned)
    if answer.kind is not kind:
        raise RequestRefused(f"the controller is of an older version: it has cordoned {place}, and cannot drain")
    left: tuple[StillThere, ...] = ()
    if not no_wait:
        try:
            left = _left_in_the_end(shared, place, within_s)
        except KeyboardInterrupt:
            say(f"\nelasticctl: the drain of {place} goes on. End it: {shared.command(f'uncordon {place}')}")
            raise typer.Exit(130) from None
    if as_json:
        drained = None if no_wait else not left
        print_json({"server": server, "gpu": gpu, "drained": drained, "still_there": render.plain(left)})
    elif no_wait:
        print(f"{place} is being drained")
    elif not left:
        print(f"{place} is empty, and takes no new work")
    if left:
        _tell_who_stays(shared, place, left, preempt)


def _left_in_the_end(shared: Context, place: str, within_s: float | None) -> tuple[StillThere, ...]:
    """Poll until no work is left, or only work that cannot be moved. Raises RequestRefused when the time is up, when
    the server is lost, or when the drain has been ended.
    """
    server, gpu = _place(place)
    after = f"; the drain goes on. End it: {shared.command(f'uncordon {place}')}"
    waiting = Waiting(f"{place} to be empty", within_s, after, always=True)
    while True:
        view = _view(shared, server)
        if not view.alive:
            raise RequestRefused(f"{server} is lost: nobody knows what runs there; it stays cordoned")
        if not any(one.kind.drains and one.gpu in (None, gpu) for one in view.cordons):
            raise RequestRefused(f"somebody has ended the drain of {place}")
        left = tuple(one for one in view.still_there if gpu is None or not one.gpus or gpu in one.gpus)
        if all(one.stays for one in left):
            return left
        waiting.pause("; ".join(f"{one.job} {one.why}" for one in left))


def _view(shared: Context, server: ServerId) -> ServerView:
    found = shared.ask(GetServers(server=server), Servers).servers
    view = next((view for view in found if view.server.server == server), None)
    if view is None:
        raise RequestRefused(f"server {server} has been removed")
    return view


def _is_there(shared: Context, server: ServerId) -> bool:
    """Return whether the server is idle, alive, of this cluster, and not cordoned."""
    found = shared.ask(GetServers(server=server), Servers).servers
    return any(
        view.server.server == server
        and not view.used
        and view.state in (ServerState.ALIVE, ServerState.UNFIT)
        and all(cordon.gpu is not None for cordon in view.cordons)
        for view in found
    )


def _tell_who_stays(shared: Context, place: str, left: Sequence[StillThere], preempts: bool) -> NoReturn:
    say(f"elasticctl: {place} is not empty: this cannot be moved now")
    for line in render.staying_lines(left):
        say(f"  {line}")
    say("The drain goes on: what stays is moved as soon as there is room.")
    say(f"End it: {shared.command(f'uncordon {place}')}")
    if not preempts:
        say(f"Or have jobs save their state and wait: {shared.command(f'drain {place} --preempt')}")
    raise typer.Exit(1)


def _place(given: str) -> tuple[ServerId, int | None]:
    """Return a server, and the index of one of its GPUs or None. Raises UserError."""
    server, colon, gpu = given.partition(":")
    if colon and not (gpu.isascii() and gpu.isdigit() and len(gpu) <= 4):
        raise UserError(f"{given[:80]!r} is no SERVER:GPU, such as s1:3")
    return ServerId(server), int(gpu) if colon else None
