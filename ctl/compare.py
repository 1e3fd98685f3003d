"""`elasticctl simulate compare`: two results of simulations side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..protocol.errors import UserError
from . import render
from . import simulation_tables as tables
from .context import JSON, console, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = ("avg-jct", "p99", "max", "slowdown", "changes")
MOST_NAMED = 8  # most users or accounts named in a line
SHOWN_BY = ("gpu-h", "avg-jct", "p99", "unfairness")  # default columns with --by
WORDS = {
    "tells": "told lengths",
    "gpus": "GPUs",
    "dropped_larger": "jobs larger than the cluster that were left out",
    "users": "the table of users",
    "account": "the column of accounts",
}
ABSENT = {"tells": "those of the trace", "where": "all rows"}  # words for an absent input, in place of "none"
RESULTS = ("policies", "interval_95", "by_seed", "seeds", "own_stages", "by")


@dataclass(frozen=True)
class Side:
    """A policy's figures in one of the results, or those of one user or account, with the halves of their intervals."""

    figures: tables.Figures
    halves: tables.Figures


Rows = Mapping[tuple[str, ...], tuple[Side, Side]]  # by policy, or by policy and user or account


def command() -> Any:
    """Return the command, for a caller that has already parsed its name."""
    app = typer.Typer(
        rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command()(compare)
    return typer.main.get_command(app)


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A.json", help="File that `simulate --json` wrote.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.", show_default=False)],
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help=f"Of simulate's tables; may be repeated (default {', '.join(SHOWN)}; with --by {', '.join(SHOWN_BY)}).",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="user|account", help="Compare the results by user or account (`simulate --by`).", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Set two results of `simulate --json` side by side, policy by policy."""
    left, right = _read(first), _read(second)
    common = [label for label in left["policies"] if label in right["policies"]]
    if not common:
        raise UserError(f"{first} and {second} have no policy in common: {_listed(left)}; {_listed(right)}")
    if by is None:
        shown = [tables.column(name, option="--column") for name in column or SHOWN]
        rows: Rows = {(label,): (_side(left, label), _side(right, label)) for label in common}
    else:
        shown = [tables.column(name, tables.GROUPS, "--column") for name in column or SHOWN_BY]
        rows = _by(by, common, _groups(first, left, by), _groups(second, right, by))
    differences = _differences(left, right)
    if as_json:
        document = _document(rows, shown)
        print_json({"differences": differences, **({"policies": document} if by is None else {"by": {by: document}})})
        return
    for name, (one, other) in differences.items():
        say(
            f"elasticctl: they differ in {WORDS.get(name, name.replace('_', ' '))}: {_words(name, one)}, {_words(name, other)}"
        )
    if single := [label for label in [*left["policies"], *right["policies"]] if label not in common]:
        say(f"elasticctl: only one of them has {', '.join(single)}")
    console().print(_table(rows, shown, ("POLICY",) if by is None else ("POLICY", by.upper())))


def _read(path: Path) -> dict[str, Any]:
    """Return the document in `path`. Raises UserError if it is not a result of a simulation."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: is not JSON: {error}") from None
    figures = {each.figure for each in tables.ALL}
    policies = found.get("policies") if isinstance(found, dict) else None
    if not isinstance(policies, dict) or not all(
        isinstance(one, dict) and figures <= one.keys() for one in policies.values()
    ):
        raise UserError(f"{path}: is not a result of `elasticctl simulate --json`")
    return dict(found)


def _listed(document: Mapping[str, Any]) -> str:
    return ", ".join(document["policies"])


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the inputs in which two results differ."""
    names = [name for name in {**left, **right} if name not in RESULTS]
    found = {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}
    if None in found.get("quotas", ()):  # only one result has quotas, so `quotas_by` is no further difference
        found.pop("quotas_by", None)
    return found


def _words(name: str, value: Any) -> str:
    """Return an input in the words of the command's options."""
    if value is None or value == {}:
        return ABSENT.get(name, "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "quotas":
        from ..scheduler.options import convert
        from ..scheduler.quotas.messages import changes
        from ..scheduler.quotas.terms import NO_QUOTAS, Quotas

        return changes(NO_QUOTAS, convert(value, Quotas, name))
    if name == "tells":
        errors = f"errors by a factor from {value['least']:g} to {value['most']:g}"
        return f"{100 * value['part']:g} % of the jobs, {errors}, {100 * value['early']:g} % end early"
    if isinstance(value, dict):
        pairs = [(key, each if isinstance(each, list) else [each]) for key, each in value.items()]
        if name == "left_out":
            return ", ".join(f"{count} {why}" for why, (count,) in pairs)
        return " ".join(f"{key}={each}" for key, several in pairs for each in several)
    return str(value)


def _side(document: Mapping[str, Any], label: str) -> Side:
    return Side(document["policies"][label], (document.get("interval_95") or {}).get(label) or {})


def _groups(path: Path, document: Mapping[str, Any], by: str) -> Mapping[str, Any]:
    """Return the results by user or account. Raises UserError if the file has none."""
    from ..simulator import owners

    owners.by(by, "--by")
    found = (document.get("by") or {}).get(by)
    if not found:
        raise UserError(f"{path}: has no results by {by}: they come from `elasticctl simulate --by {by} --json FILE`")
    return dict(found)


def _by(by: str, common: Sequence[str], left: Mapping[str, Any], right: Mapping[str, Any]) -> Rows:
    """Return the users or accounts that both results have under each policy."""
    rows: dict[tuple[str, ...], tuple[Side, Side]] = {}
    for label in common:
        one, other = left[label]["groups"], right[label]["groups"]
        if single := [render.printable(name) for name in {**one, **other} if name not in one or name not in other]:
            more = f" and {len(single) - MOST_NAMED} more" if len(single) > MOST_NAMED else ""
            say(f"elasticctl: {label}: only one of them has the {by} {', '.join(single[:MOST_NAMED])}{more}")
        for name in one:
            if name in other:
                sides = (
                    Side(each["groups"][name], each.get("interval_95", {}).get(name) or {})
                    for each in (left[label], right[label])
                )
                rows[label, name] = next(sides), next(sides)
    return rows


def _document(rows: Rows, shown: Sequence[tables.Column]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for names, sides in rows.items():
        place = whole
        for name in names:
            place = place.setdefault(name, {})
        place |= {each.figure: _pair(sides, each) for each in shown}
    return whole


def _pair(sides: tuple[Side, Side], of: tables.Column) -> dict[str, float | None]:
    one, other = (side.figures[of.figure] for side in sides)
    return {"a": one, "b": other, "ratio": _ratio(one, other)}


def _ratio(one: float | None, other: float | None) -> float | None:
    return other / one if one and other is not None else None


def _table(rows: Rows, shown: Sequence[tables.Column], heads: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in (*heads, "COLUMN"):
        table.add_column(head, no_wrap=True)
    for head in ("A", "B", "B / A"):
        table.add_column(head, justify="right", no_wrap=True)
    before: tuple[str, ...] = ("",) * len(heads)
    for names, sides in rows.items():
        for each in shown:
            ratio = _pair(sides, each)["ratio"]
            values = (tables.cell(each, side.figures, side.halves) for side in sides)
            told = [render.printable(name) if name != last else "" for name, last in zip(names, before, strict=True)]
            table.add_row(*told, each.head, *values, "-" if ratio is None else f"{ratio:.3f}")
            before = names
    return table
