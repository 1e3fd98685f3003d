"""`elasticctl doctor`: determines the targets on this machine, runs their checks, and shows the findings."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...protocol.errors import UserError
from .. import completion
from ..context import JSON, of, print_json, say

if TYPE_CHECKING:
    from .checks import Check, Finding
    from .crowd import Crowd
    from .screen import Result
    from .targets import Target

WIDTH_IN_PIPES = 100
LATE = 0.5  # a check that has taken more than this part of its limit may have failed for lack of time
AGAIN = "`elasticctl doctor` again when less runs here"


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(doctor)


def _completions(incomplete: str) -> list[str]:
    return completion.of_kind(incomplete, sorted(check.name for check in all_checks()))


def doctor(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Configuration of a daemon (by default those in /etc/elasticctl, and of `elasticctl up`).",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this check; may be repeated.", autocompletion=_completions),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(help="Interpreter that your jobs run with (default: that in PATH).", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show what does not apply, too.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Look for faults at a user's desk, on a server or on the controller's machine, and state the remedies.

    Nothing is changed. Exit code 1: something does not work. root sees more than others.
    """
    from . import screen, targets
    from .checks import Outcome

    wanted = _wanted(only or [])
    machine = targets.Machine.here()
    found = targets.find(of(context), files or [], python, machine)
    pairs = _pairs(found, wanted)
    if not pairs:
        raise UserError(f"doctor: {', '.join(only or [])}: there is nothing here that it looks at")
    results: list[Result] = []
    names = max(len(check.name) for _, check in pairs)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_IN_PIPES
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for result in examined(pairs):
        results.append(result)
        _progress(f"{len(results)} of {len(pairs)} checks, {result.check.name}")
    _progress("")
    title = ""
    for result in () if as_json else screen.in_order(results):
        if result.finding.outcome is Outcome.ABSENT and not everything and not only:
            continue
        if result.target.title != title:
            title = result.target.title
            print(title)
        for line in screen.lines_of(result, names, width, colour):
            print(line)
    if as_json:
        print_json(screen.document(results, machine.host))
    else:
        for line in screen.summary(results, width):
            print(line)
        if machine.uid != 0 and any(
            target.daemon is not None and target.daemon.owner != machine.uid for target in found
        ):
            say("some checks of other accounts' daemons need root: `sudo elasticctl doctor`")
    if any(result.finding.outcome is Outcome.FAILURE for result in results):
        raise typer.Exit(1)


def _progress(text: str) -> None:
    """Show a line on a terminal, over the last one; "": remove it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()


def _pairs(found_targets: Sequence[Target], checks: Sequence[Check]) -> list[tuple[Target, Check]]:
    """Return the pairs of target and check. Checks of the machine run once."""
    found: list[tuple[Target, Check]] = []
    seen: set[str] = set()
    for target in found_targets:
        for check in checks:
            if check.subject is target.subject and not (check.once and check.name in seen):
                seen.add(check.name)
                found.append((target, check))
    return found


def examined(pairs: Sequence[tuple[Target, Check]], look: Callable[[], Crowd] | None = None) -> Iterator[Result]:
    """Yield the finding of each check, in order; each runs in a process of its own, within its limit. `look`: returns the
    load of the machine.

    On an overloaded machine, a check that fails after a large part of its time says nothing about its subject, unless that
    failure is certain.
    """
    import msgspec

    from .. import bounded
    from .checks import Finding, Outcome, absent, failure, warning
    from .crowd import crowd
    from .screen import Result

    look = look or crowd
    patience = look().patience
    works = [bounded.Work(partial(_look, check, target), check.limit_s * patience) for target, check in pairs]
    for (target, check), done in zip(pairs, bounded.in_order(works), strict=True):
        if done.hung and (now := look()).crowded:
            said = now.sentence(f"no end within {check.limit_s * patience:.0f} s of looking at this: {check.finds}")
            finding = warning(said, AGAIN)
        elif done.hung:
            finding = failure(
                f"no end within {check.limit_s:.0f} s of looking at this: {check.finds}",
                f"whatever it asks hangs, a file system or a name service, say; {check.remedy}",
            )
        elif done.error.startswith("PermissionError"):
            finding = absent(f"root sees this ({done.error.partition(': ')[2]})")
        elif done.error:
            finding = failure(f"could not be looked at: {done.error}", check.remedy)
        else:
            finding = msgspec.convert(done.answer, Finding)
            late = done.took_s > LATE * check.limit_s
            doubtful = late and finding.outcome is Outcome.FAILURE and not finding.certain
            if doubtful and (now := look()).crowded:
                finding = warning(now.sentence(finding.found), AGAIN)
        yield Result(target, check, finding, done.took_s)


def _look(check: Check, target: Target) -> Finding:
    from .checks import absent

    if target.daemon is not None and target.daemon.described is None and check.name != "configuration":
        return absent(f"the configuration cannot be read: {target.daemon.error}")
    return check.look(target)


def all_checks() -> tuple[Check, ...]:
    """Return all checks, in the order in which they are shown."""
    from . import buses, controllers, desk, drivers, files, limits, network, services

    return (
        *controllers.CHECKS.checks,
        *services.CHECKS.checks,
        *network.CHECKS.checks,
        *files.CHECKS.checks,
        *limits.CHECKS.checks,
        *drivers.CHECKS.checks,
        *buses.CHECKS.checks,
        *desk.CHECKS.checks,
    )


def _wanted(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks with these names. Raises UserError."""
    checks = all_checks()
    known = sorted({check.name for check in checks})
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; {near[0]} is meant?" if near else f"; there are {', '.join(known)}"
            raise UserError(f"--only {name}: there is no such check{meant}")
    return tuple(check for check in checks if not names or check.name in names)
