"""Commands that lend GPUs to users outside the cluster: lend, reclaim."""

from __future__ import annotations

from typing import Annotated

import typer

from ..protocol.durations import duration_s
from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import EndLoan, GpusLent, LendGpus, LoanEnded
from ..protocol.texts import gpu_count
from . import render
from .context import DECIDED_WITHIN_S, JSON, Context, of, print_json, say
from .promises import moment
from .waiting import Waiting, limit_s


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    for command in (lend, reclaim):
        app.command()(command)


def lend(
    context: typer.Context,
    gpus: Annotated[int, typer.Argument(help="How many GPUs.", show_default=False)],
    lasts: Annotated[str, typer.Option("--for", help="For how long: 30m, 2h.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; it is shown to all.", show_default=False)] = "",
    force: Annotated[bool, typer.Option("--force", help="Even if jobs would miss their deadlines by it.")] = False,
    timeout: Annotated[str | None, typer.Option(help="Wait no longer than this for them.", show_default=False)] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until they are free.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Lend GPUs to others for a while, such as a model-serving team: jobs shrink, and grow again when the loan ends."""
    if no_wait and timeout is not None:
        raise UserError("--no-wait and --timeout exclude each other")
    shared, within_s = of(context), limit_s(timeout)
    request = LendGpus(gpus=gpus, for_s=duration_s(lasts, "--for"), reason=reason, force=force)
    answer = shared.ask(request, GpusLent, DECIDED_WITHIN_S)
    if not no_wait:
        _until_free(shared, answer, within_s)
    if as_json:
        print_json(
            {**{name: render.plain(getattr(answer, name)) for name in ("loan", "gpus", "until_s")}, "free": not no_wait}
        )
        return
    where = ", ".join(map(str, answer.gpus))
    print(f"{answer.loan}: {where} until {moment(answer.until_s, answer.time_s)}{'' if no_wait else ', free now'}")


def reclaim(
    context: typer.Context,
    loan: Annotated[str, typer.Argument(help="Which loan: loan-17.", show_default=False)],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Use the GPUs of a loan again before its time is over."""
    answer = of(context).ask(EndLoan(loan=loan), LoanEnded, DECIDED_WITHIN_S)
    if as_json:
        print_json({"loan": answer.loan, "gpus": render.plain(answer.gpus)})
    else:
        print(f"{answer.loan} is over: {gpu_count(len(answer.gpus))} used again")


def _until_free(shared: Context, lent: GpusLent, within_s: float | None) -> None:
    """Poll until no worker runs on the lent GPUs. Raises RequestRefused when the time is up, or when the loan is over."""
    after = f"; the loan stands. End it: {shared.command(f'reclaim {lent.loan}')}"
    waiting = Waiting(f"{gpu_count(len(lent.gpus))} to be free", within_s, after, always=True)
    wanted = set(lent.gpus)
    try:
        while True:
            cordons = [
                (view.server.server, cordon)
                for view in shared.client.servers().servers
                for cordon in view.cordons
                if cordon.loan == lent.loan
            ]
            if len(cordons) < len(wanted):
                raise RequestRefused(f"{lent.loan} is over already")
            if all(cordon.drained_s is not None for _, cordon in cordons):
                return
            busy = sorted(f"{server}:{cordon.gpu}" for server, cordon in cordons if cordon.drained_s is None)
            waiting.pause(f"still in use: {', '.join(busy)}")
    except KeyboardInterrupt:
        say(f"\nelasticctl: {lent.loan} stands. End it: {shared.command(f'reclaim {lent.loan}')}")
        raise typer.Exit(130) from None
