"""Commands about the cluster: up, down, servers, servers adopt, servers forget, version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..protocol.errors import ClusterUnreachable
from ..protocol.messages import (
    PROTOCOL_VERSION,
    AdoptServer,
    ForgetServer,
    Ping,
    Pong,
    ServerAdopted,
    ServerForgotten,
)
from ..protocol.model import ServerId
from . import render
from .context import DECIDED_WITHIN_S, JSON, console, of, print_json, say


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    for command in (up, down, version):
        app.command()(command)
    group = typer.Typer(invoke_without_command=True)
    group.callback()(servers)
    group.command()(adopt)
    group.command()(forget)
    app.add_typer(group, name="servers")


def up(
    context: typer.Context,
    servers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Agents to start (default 1).", show_default=False)
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="CPU slots per server, in place of what it has.", show_default=False),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Name of a policy, or a policy file (default max-min).", show_default=False)
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(help="File with a line for each host that an agent is to run on; by ssh.", show_default=False),
    ] = None,
    ssh: Annotated[
        str | None,
        typer.Option(
            help="How to get to the hosts (default: ssh -o BatchMode=yes -o ConnectTimeout=10).", show_default=False
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(help="Python on the hosts that has elasticctl (default: the path of ours).", show_default=False),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Our IP address for the hosts (default: that on the way to them).", show_default=False),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="Directory for checkpoints that all hosts share (default: each its own).", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Start a cluster on this machine, or with agents on other hosts, or what is missing of it."""
    from .local import Wanted
    from .local import up as start

    shared = of(context)
    wanted = Wanted(servers, gpus, policy, hosts, ssh, python, address, checkpoints)
    cluster, started = start(shared.directory, wanted)
    if as_json:
        document = {"directory": str(shared.directory), "controller": cluster.controller, "started": started}
        print_json({**document, "servers": cluster.servers, "policy": cluster.policy})
    elif started:
        print(f"started {', '.join(started)} at {shared.directory}")
    else:
        print(f"the cluster at {shared.directory} runs already")


def down(
    context: typer.Context,
    keep: Annotated[bool, typer.Option("--keep", help="Keep jobs, logs and checkpoints for the next `up`.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Do not mind hosts that do not answer; what runs there goes on.")
    ] = False,
) -> None:
    """Stop the cluster that `up` has started: jobs, agents, controller. Nothing is left behind."""
    from .local import down as stop

    directory = of(context).directory
    if stop(directory, keep, abandon):
        print(f"stopped; {'kept' if directory.exists() else 'removed'} {directory}")
    else:
        say(f"no cluster at {directory}")


def servers(context: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Show the servers and what runs on them."""
    if context.invoked_subcommand is not None:
        return
    answer = of(context).client.servers()
    if as_json:
        print_json({"servers": render.plain(answer.servers), "time_s": answer.time_s})
    else:
        console().print(render.server_table(answer.servers, answer.time_s))


def adopt(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="Name of the server.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take over a server on which workers run that belong to no job of this cluster: they save their state and end."""
    answer = of(context).ask(AdoptServer(server=ServerId(server)), ServerAdopted)
    if as_json:
        print_json(render.plain(answer))
    elif answer.workers:
        print(f"{server} is taken over: {answer.workers} workers there save their state and end")
    else:
        print(f"{server} is taken over")


def forget(
    context: typer.Context,
    server: Annotated[str, typer.Argument(help="Name of the server.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Do not know a lost server any more, which will not come back. Should it, it joins as a new one."""
    answer = of(context).ask(ForgetServer(server=ServerId(server)), ServerForgotten, DECIDED_WITHIN_S)
    if as_json:
        print_json(render.plain(answer))
    else:
        print(f"{server} is forgotten")


def version(context: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Show the versions of elasticctl and, if it answers, of the cluster."""
    shared = of(context)
    found: Pong | None = None
    try:
        if shared.is_known():
            found = shared.client.ask(Ping(), timeout_s=1.0)  # type: ignore[assignment]
    except ClusterUnreachable:
        pass
    if as_json:
        cluster = render.plain(found) if found is not None else None
        print_json({"elasticctl": __version__, "protocol": PROTOCOL_VERSION, "cluster": cluster})
    else:
        print(f"elasticctl {__version__}" + (f", controller {found.version}" if found is not None else ""))
