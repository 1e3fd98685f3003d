"""`elasticctl simulate compare`: two results of simulations side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..protocol.errors import UserError
from . import simulation_tables as tables
from .context import JSON, console, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = ("avg-jct", "p99", "max", "slowdown", "changes")
WORDS = {"tells": "told lengths", "gpus": "GPUs", "dropped_larger": "jobs larger than the cluster that were left out"}
ABSENT = {"tells": "those of the trace", "where": "all rows"}  # in place of "none"
RESULTS = ("policies", "interval_95", "by_seed", "seeds", "own_stages")


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
            help=f"Of simulate's tables; may be repeated (default {', '.join(SHOWN)}).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Set two results of `simulate --json` side by side, policy by policy."""
    left, right = _read(first), _read(second)
    common = [label for label in left["policies"] if label in right["policies"]]
    if not common:
        raise UserError(f"{first} and {second} have no policy in common: {_listed(left)}; {_listed(right)}")
    shown = [tables.column(name) for name in column or SHOWN]
    differences = _differences(left, right)
    if as_json:
        print_json({"differences": differences, "policies": _document(left, right, common, shown)})
        return
    for name, (one, other) in differences.items():
        say(
            f"elasticctl: they differ in {WORDS.get(name, name.replace('_', ' '))}: {_words(name, one)}, {_words(name, other)}"
        )
    if single := [label for label in [*left["policies"], *right["policies"]] if label not in common]:
        say(f"elasticctl: only one of them has {', '.join(single)}")
    console().print(_table(left, right, common, shown))


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
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def _words(name: str, value: Any) -> str:
    """Return a setting as the options say it."""
    if value is None or value == {}:
        return ABSENT.get(name, "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "tells":
        errors = f"errors by a factor from {value['least']:g} to {value['most']:g}"
        return f"{100 * value['part']:g} % of the jobs, {errors}, {100 * value['early']:g} % end early"
    if isinstance(value, dict):
        pairs = [(key, each if isinstance(each, list) else [each]) for key, each in value.items()]
        if name == "left_out":
            return ", ".join(f"{count} {why}" for why, (count,) in pairs)
        return " ".join(f"{key}={each}" for key, several in pairs for each in several)
    return str(value)


def _document(
    left: Mapping[str, Any], right: Mapping[str, Any], common: Sequence[str], shown: Sequence[tables.Column]
) -> dict[str, Any]:
    return {label: {each.figure: _pair(left, right, label, each) for each in shown} for label in common}


def _pair(left: Mapping[str, Any], right: Mapping[str, Any], label: str, of: tables.Column) -> dict[str, float | None]:
    one, other = left["policies"][label][of.figure], right["policies"][label][of.figure]
    return {"a": one, "b": other, "ratio": _ratio(one, other)}


def _ratio(one: float | None, other: float | None) -> float | None:
    return other / one if one and other is not None else None


def _table(
    left: Mapping[str, Any], right: Mapping[str, Any], common: Sequence[str], shown: Sequence[tables.Column]
) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("POLICY", "COLUMN"):
        table.add_column(head, no_wrap=True)
    for head in ("A", "B", "B / A"):
        table.add_column(head, justify="right", no_wrap=True)
    for label in common:
        name = label
        for each in shown:
            ratio = _pair(left, right, label, each)["ratio"]
            values = (tables.cell(each, document, label) for document in (left, right))
            table.add_row(name, each.head, *values, "-" if ratio is None else f"{ratio:.3f}")
            name = ""
    return table
