"""`elasticctl quota`: guarantees, limits and present use of users and groups (docs/quotas.md)."""

from __future__ import annotations

from typing import Annotated

import typer

from ..protocol.messages import GetQuotas, QuotasFound, QuotaView, ReservationView
from ..protocol.texts import gpu_count
from . import render
from .context import JSON, of, print_json, print_lines, say, show
from .promises import moment
from .tables import Cell, Column, Row, Table

COLUMNS = (
    Column("WHO"),
    Column("GPUS", right=True),
    Column("MOST", right=True, words="at most {}"),
    Column("IN USE", right=True),
    Column("BORROWED", right=True, words="{} borrowed", wanted=2),
    Column("LENT", right=True, words="{} lent", wanted=1),
    Column("JOBS", right=True),
    Column("PROMISED", right=True, words="{} promised GPU-hours", wanted=3),
)

RESERVATION_COLUMNS = (
    Column("RESERVATION"),
    Column("GPUS", right=True),
    Column("FROM"),
    Column("TO"),
    Column("NOW"),
)


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(quota)


def quota(context: typer.Context, as_json: Annotated[bool, JSON] = False) -> None:
    """Show how many GPUs users and groups are guaranteed, use, and borrow, and how many jobs they have."""
    shared = of(context)
    found = shared.ask(GetQuotas(), QuotasFound)
    if as_json:
        print_json({name: render.plain(getattr(found, name)) for name in QuotasFound.__struct_fields__})
        return
    if found.quotas:
        show(quota_table(found))
    else:
        command = shared.command("policy set FILE")
        print_lines([f"{without_quotas(found)} Set some: {command}"])
    if found.left_out:
        say(f"{found.left_out} users more have jobs, and no quota of their own")
    if found.reservations:
        print()
        show(reservation_table(found))


def without_quotas(found: QuotasFound) -> str:
    """Return the sentence shown instead of a table if there are no quotas."""
    return f"There are no quotas: each user may use all {gpu_count(found.total_gpus)}."


def quota_table(found: QuotasFound) -> Table:
    """Return a table with one row for each user or group with a quota or jobs."""
    return Table(COLUMNS, [_row(view) for view in found.quotas])


def reservation_table(found: QuotasFound) -> Table:
    """Return a table with one row for each reservation that is not over."""
    return Table(RESERVATION_COLUMNS, [_reserved(view, found.time_s) for view in found.reservations])


def _row(view: QuotaView) -> Row:
    name = render.printable(view.name)
    members = ", ".join(map(render.printable, view.members))
    notes = (f"members: {members}",) if members else ()
    if view.group:
        notes = (f"its GPUs count for group {render.printable(view.group)}",)
    cells = (
        Cell(f"group {name}" if members else name),
        Cell("-" if view.group else str(view.gpus)),
        Cell(_number(view.most_gpus)),
        Cell(str(view.used_gpus)),
        Cell(_number(view.borrowed_gpus or None), "yellow" if view.borrowed_gpus else ""),
        Cell(_number(view.lent_gpus or None)),
        Cell(_of(view.jobs, view.most_jobs)),
        Cell(_hours(view.promised_gpu_hours, view.most_promised_gpu_hours)),
    )
    return Row(cells, notes)


def _reserved(view: ReservationView, now_s: float) -> Row:
    if view.from_s > now_s:
        state = Cell(f"in {render.span(view.from_s - now_s)}")
    else:
        missing = view.taken_gpus < view.gpus
        state = Cell(f"{view.taken_gpus} of {view.gpus} taken", "yellow" if missing else "")
    times = (Cell(moment(at_s, now_s)) for at_s in (view.from_s, view.to_s))
    return Row((Cell(render.printable(view.name)), Cell(str(view.gpus)), *times, state))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _of(has: int, most: int | None) -> str:
    """Return "2 of 10"; "2" without a limit."""
    return str(has) if most is None else f"{has} of {most}"


def _hours(has: float, most: float | None) -> str:
    """Return GPU-hours to three digits: "12.5 of 20"."""
    if most is None:
        return f"{has:.3g}" if has else "-"
    return f"{has:.3g} of {most:g}"
