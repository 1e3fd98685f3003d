"""`elasticctl policy`: show the policy in use and the available ones, and change the policy while the cluster runs."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..protocol.errors import UserError
from ..protocol.messages import GetPolicy, PolicyInUse, PolicySet, SetPolicy, StageView
from . import completion, render
from .context import DECIDED_WITHIN_S, JSON, Context, console, of, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..scheduler.describe import RuleView


def add_to(root: typer.Typer) -> None:
    """Register this file's commands."""
    app = typer.Typer(
        name="policy",
        help="Show and change what decides who gets which GPUs: policy, admission, packing, placement.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command(name="list")(list_rules)
    app.command()(show)
    app.command(
        name="set",
        epilog="What is set stays, whatever happens to the controller, until --from-config. Stages that neither a policy "
        "file nor an option names are those of the controller's configuration.",
    )(set_policy)
    app.command()(check)
    root.add_typer(app)


def list_rules(as_json: Annotated[bool, JSON] = False) -> None:
    """List the policies, admissions, packings and placements that this program knows."""
    from ..scheduler.describe import rules

    if as_json:
        print_json({"rules": render.plain(rules())})
        return
    rows = [(rule.kind, rule.name, "needed" if rule.needs_lengths else "-", rule.rule) for rule in rules()]
    console().print(_table(["KIND", "NAME", "LENGTHS", "RULE"], rows))


def show(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="What this policy, admission, packing or placement does.",
            show_default=False,
            autocompletion=completion.policies,
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the policy and stages in use; or the rule of a known policy or stage, with its parameters."""
    if name is not None:
        rule = _rule(name)
        if as_json:
            print_json(render.plain(rule))
        else:
            _print_rule(rule)
        return
    found = of(context).ask(GetPolicy(), PolicyInUse)
    if as_json:
        print_json(_fields(found))
    else:
        _print_in_use(found)


def set_policy(
    context: typer.Context,
    policy: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="A policy file, or the name of a policy.",
            show_default=False,
            autocompletion=completion.policies,
        ),
    ] = None,
    admission: Annotated[str | None, typer.Option(help="The admission, by name.", show_default=False)] = None,
    packing: Annotated[str | None, typer.Option(help="The packing: none or network.", show_default=False)] = None,
    placement: Annotated[str | None, typer.Option(help="The placement, by name.", show_default=False)] = None,
    from_config: Annotated[
        bool, typer.Option("--from-config", help="Give it back to the controller's configuration.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs' shares would change.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Put another policy in force, at once and permanently. Running jobs grow, shrink and move; no job that keeps GPUs
    restarts.

    Without FILE or NAME the policy stays, and the named stages change.
    """
    named = {"admission": admission, "packing": packing, "placement": placement}
    stages = {stage: name for stage, name in named.items() if name is not None}
    if from_config and (policy is not None or stages):
        raise UserError("--from-config takes everything from the controller's configuration: name nothing else")
    shared = of(context)
    document = None if from_config else _document(shared, policy, stages)
    source = "" if from_config else _source(policy, stages)
    request = SetPolicy(document=document, source=source, user=_user(), dry_run=dry_run)
    answer = shared.ask(request, PolicySet, DECIDED_WITHIN_S)
    if as_json:
        shown = {"before": _fields(answer.before), "after": _fields(answer.after)}
        print_json({"dry_run": dry_run, **shown, "shares": render.plain(answer.shares), "time_s": answer.time_s})
    else:
        _print_set(answer, dry_run)


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Policy files.", show_default=False)],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check policy files, without a cluster: exit code 2 if one is wrong, with file, line, field and reason.

    A policy in a Python file is also run on some tables of jobs.
    """
    findings = [_finding(file) for file in files]
    for finding in findings if not as_json else ():
        if finding["ok"]:
            print(f"{finding['file']}: {finding['policy']}")
        else:
            say(f"elasticctl: {finding['reason']}")
    if as_json:
        print_json({"files": findings})
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(2)


# -- reading


def _finding(file: Path) -> dict[str, Any]:
    from ..runtime.config import line_of
    from ..scheduler import plugin
    from ..scheduler.options import WrongOption
    from ..simulator import files

    try:
        policy = files.read_scheduler(file).policy
        if isinstance(policy, plugin.LoadedPlugin):
            plugin.try_out(policy)
        return {"file": str(file), "ok": True, "policy": policy.name}
    except WrongOption as error:
        where = {"line": line_of(file, error.field), "field": error.field or None}
        return {"file": str(file), "ok": False, **where, "reason": files.sentence(file, error)}
    except plugin.PolicyError as error:
        return {"file": str(file), "ok": False, "line": error.line, "field": None, "reason": str(error)}
    except UserError as error:  # the file cannot be read, or is not YAML
        return {"file": str(file), "ok": False, "line": None, "field": None, "reason": str(error)}


def _document(shared: Context, policy: str | None, stages: dict[str, str]) -> dict[str, Any]:
    """Return the document for the controller, checked as far as this program can. Raises UserError."""
    from ..runtime.config import load_yaml
    from ..scheduler.options import plain
    from ..scheduler.scheduler import load_scheduler
    from ..simulator.files import is_file, scheduler_in

    document: Any
    if policy is None and not stages:
        raise UserError("policy set: give a policy file, the name of a policy, or --from-config")
    if policy is None:
        present = shared.ask(GetPolicy(), PolicyInUse)
        document = {"policy": present.policy.name, "parameters": present.policy.parameters, "packing": present.packing}
        document |= {"admission": render.plain(present.admission), "placement": render.plain(present.placement)}
        told = {name: getattr(present, name) for name in ("deadlines", "quotas", "reservations")}
        document |= {name: value for name, value in told.items() if value is not None}
    elif is_file(policy):
        scheduler_in(Path(policy), python=False)
        document = plain(load_yaml(Path(policy), UserError))
    else:
        document = {"policy": policy}
    document |= stages
    if policy is None or not is_file(policy) or stages:
        load_scheduler(document, "policy set")
    return dict(document)


def _source(policy: str | None, stages: dict[str, str]) -> str:
    """Return the origin of a setting, for people."""
    from ..simulator.files import is_file

    first = str(Path(policy).absolute()) if policy is not None and is_file(policy) else policy
    return " ".join([*([first] if first else []), *(f"--{stage} {name}" for stage, name in stages.items())])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the account has no name
        return ""


def _rule(name: str) -> RuleView:
    from ..scheduler.describe import rules

    found = next((rule for rule in rules() if rule.name == name), None)
    if found is None:
        known = ", ".join(rule.name for rule in rules())
        raise UserError(f"policy show: nothing is called {name!r}; known are {known}")
    return found


# -- showing


def _fields(found: PolicyInUse) -> dict[str, Any]:
    """Return the policy in use as plain values, without the messages' tag."""
    return {name: value for name, value in render.plain(found).items() if name in PolicyInUse.__struct_fields__}


def _stage(stage: StageView) -> str:
    parameters = ", ".join(f"{name}: {_value(value)}" for name, value in stage.parameters.items())
    return f"{stage.name} ({parameters})" if parameters else stage.name


def _value(value: Any) -> str:
    """Return a value in the notation of a policy file."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _print_in_use(found: PolicyInUse) -> None:
    lengths = ", which needs to know how long jobs take" if found.needs_lengths else ""
    print(f"policy     {_stage(found.policy)}{lengths}")
    print(f"admission  {_stage(found.admission)}")
    print(f"packing    {found.packing}")
    print(f"placement  {_stage(found.placement)}")
    if found.at_run_time:
        who = f" by {found.user}" if found.user else ""
        print(f"from       {found.source}, set at run time{who}; the configuration has {found.configured_policy}")
    else:
        print(f"from       {found.source}, as configured")
    ago = render.span(time.time() - found.since_s)
    print(f"since      {render.clock(found.since_s)}, {ago} ago")
    if found.trouble:
        print(f"trouble    {render.printable(found.trouble)}")


def _print_set(answer: PolicySet, dry_run: bool) -> None:
    would = "would give" if dry_run else "gives"
    before, after = answer.before, answer.after
    print(f"{_stage(before.policy)} {would} way to {_stage(after.policy)}")
    for stage in ("admission", "packing", "placement"):
        old, new = getattr(before, stage), getattr(after, stage)
        if old != new:
            names = [one if isinstance(one, str) else _stage(one) for one in (old, new)]
            print(f"{stage}: {names[0]} {would} way to {names[1]}")
    for name, changed in _changed(before, after):
        print(f"{name}{' would be' if dry_run else ''}: {render.printable(changed)}")
    if not answer.shares:
        print(f"no job's share {'would change' if dry_run else 'changes'}")
        return
    rows = [(job.job, f"{job.before_gpus} > {job.after_gpus}", render.printable(job.reason)) for job in answer.shares]
    console().print(_table(["JOB", "GPUS", "NOTE"], rows))


def _changed(before: PolicyInUse, after: PolicyInUse) -> Iterator[tuple[str, str]]:
    """Yield the changed quotas and the changed reservations, a line each."""
    from msgspec import ValidationError, convert

    from ..scheduler.quotas.messages import changes, reservation_messages
    from ..scheduler.quotas.reservations import TimedReservation
    from ..scheduler.quotas.terms import Quotas

    try:
        quotas = changes(convert(before.quotas or {}, Quotas), convert(after.quotas or {}, Quotas))
        old, new = (convert(one.reservations or (), tuple[TimedReservation, ...]) for one in (before, after))
    except ValidationError:  # a value of a newer controller
        yield "quotas and reservations", "`elasticctl quota` shows them"
        return
    if quotas:
        yield "quotas", quotas
    if reserved := reservation_messages(old, new):
        yield "reservations", reserved


def _print_rule(rule: RuleView) -> None:
    lengths = ", needs to know how long jobs take" if rule.needs_lengths else ""
    print(f"{rule.name}: {rule.kind}{lengths}")
    print(f"  {rule.rule}")
    if not rule.parameters:
        print("  no parameters")
        return
    rows = [(one.name, one.type, _value(one.default), one.meaning) for one in rule.parameters]
    console().print(_table(["PARAMETER", "TYPE", "DEFAULT", "MEANING"], rows))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return plain texts in columns, of which the last one may be wrapped."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*map(Text, row))
    return table
