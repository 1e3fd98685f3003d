"""Commands about the cluster: up, down, version, controllers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from .. import __version__
from ..protocol.errors import ClusterUnreachable, RequestRefused, UserError
from ..protocol.messages import PROTOCOL_VERSION, Controllers, GetControllers, Ping, Pong
from . import completion, render
from .context import JSON, of, print_json, say, show
from .record import FILE


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    for command in (up, down, version, controllers):
        app.command()(command)


def up(
    context: typer.Context,
    servers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Agents to start (default 1).", show_default=False)
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="CPU slots per server, in place of what it has.", show_default=False),
    ] = None,
    gpu_model: Annotated[
        str | None,
        typer.Option(
            help="Stand-ins for GPUs, to try things out: a100, v100, gtx1080, mixed, a100-mig; one for each server, or a list "
            "(a100,v100). Workers compute on the CPU.",
            show_default=False,
            autocompletion=completion.words("a100", "a100-mig", "gtx1080", "mixed", "v100"),
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Name of a policy, or a policy file (default max-min).",
            show_default=False,
            autocompletion=completion.policies,
        ),
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
    """Start a cluster on this machine, or with agents on other hosts; or start its missing parts."""
    from .local import Wanted
    from .local import up as start

    shared = of(context)
    wanted = Wanted(servers, gpus, policy, hosts, ssh, python, address, checkpoints, gpu_model)
    cluster, started = start(shared.directory, wanted)
    if as_json:
        document = {"directory": str(shared.directory), "controller": cluster.controller, "started": started}
        print_json({**document, "servers": cluster.servers, "policy": cluster.policy, "offers": cluster.offers})
        return
    if started:
        print(f"started {', '.join(started)} at {shared.directory}")
    else:
        print(f"the cluster at {shared.directory} runs already")
    if cluster.offers:
        print(cluster.offers)


def down(
    context: typer.Context,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove everything, too: jobs, checkpoints, logs. Asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --purge: do not ask.")] = False,
    keep: Annotated[bool, typer.Option("--keep", hidden=True)] = False,  # required by older versions
    at_once: Annotated[bool, typer.Option("--now", help="Do not let jobs save their state first.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Do not mind hosts that do not answer; what runs there goes on.")
    ] = False,
) -> None:
    """Stop the cluster that `up` has started. Jobs save their state first; jobs, checkpoints and logs are kept."""
    from .local import down as stop
    from .local import made, read, runs
    from .windingdown import save_jobs

    if purge and keep:
        raise UserError("--purge and --keep exclude each other")
    shared = of(context)
    directory = shared.directory
    if purge and read(directory) is not None and not yes and not _agreed(f"Remove {directory} with {made(directory)}?"):
        raise RequestRefused("nothing is stopped, and nothing is removed")
    saved = save_jobs(address) if not (purge or at_once) and (address := runs(directory)) is not None else []
    stopped = stop(directory, purge, abandon)
    if (directory / FILE).exists():
        print(f"stopped; kept {directory}" if stopped else f"nothing runs; {directory} has been kept")
        for line in saved:
            say(line)
        say(f"It holds {made(directory)}.")
        say(f"`{shared.command('up')}` goes on with them, `{shared.command('down --purge')}` removes them.")
    elif stopped:
        print(f"stopped; removed {directory}")
    else:
        say(f"no cluster at {directory}")


def _agreed(question: str) -> bool:
    """Return the user's answer to a yes-or-no question at the terminal. Raises UserError if there is no terminal."""
    if not sys.stdin.isatty():
        raise UserError("down --purge asks first, and there is no terminal to ask at: say --yes")
    return typer.confirm(question, err=True)


def controllers(context: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Show the controllers: which one leads, and which stand by."""
    answer = of(context).ask(GetControllers(), Controllers)
    if as_json:
        print_json(render.plain(answer))
        return
    show(render.controller_table(answer))
    if answer.trouble:
        say(f"{answer.asked} does not know better: {answer.trouble}")


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
        cluster = msgspec.structs.asdict(found) if found is not None else None
        print_json({"elasticctl": __version__, "protocol": PROTOCOL_VERSION, "cluster": cluster})
    else:
        print(f"elasticctl {__version__}" + (f", controller {found.version}" if found is not None else ""))
