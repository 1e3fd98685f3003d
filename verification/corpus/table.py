"""The verdicts as a page and as JSON. Cells without a new verdict keep their content."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .desk import Check
from .index import BY_NAME, SCRIPTS
from .kinds import ordinary as ordinary_scripts
from .verdict import Kind, Verdict

HEAD = """# The corpus of training scripts

Small training scripts, each for one idiom of public training code, run by `make verify-corpus`. Each script trains with one
worker throughout, and then through resizes: 1 → 3 workers in the middle of an epoch, the oldest worker killed, 2 workers at an
epoch's edge, 3 in a later epoch; two workers from the start; resized at epochs' edges; one worker, preempted three times in the
middle of epochs, and three times at their edges. Everything that `run.save` has written, and each worker's final model, is
compared bit for bit. The scripts are in `verification/corpus/scripts`; each script's message is in `out/corpus.json`.

| verdict | meaning |
| --- | --- |
| equal | the same bits in all histories |
| named | a worker was refused, or there was a warning; "other bits" where the result differed all the same |
| refused | the script ended with an error of the library |
| SILENT | other bits in a history that has no message itself |
| crashed | an error of something else, or no end |
| …, alone too | two runs with one worker differ: the script itself is not repeatable |

Scripts with the same verdicts stand together. *Expected* by `verification/corpus/kinds`; *before*: the runtime when the
script was written; *now*: the last run; *with the line*: the last run of the script with the line that the message proposes
(`fix` in the index); *check*: `elasticctl check` on the script (`make verify-corpus ARGS=--desk`).

"""
ORDINARY = """## Ordinary scripts

Most scripts of the corpus were written to find gaps. The scripts named `ordinary_…` measure what a user meets: {count} scripts
in the manner of public ones, drawn without regard to their difficulty. They are the first, by the alphabetical order of an
index of public code, in files named train, trainer, train_vae, train_gan, train_gnn, train_lstm, distill, pinn, simclr and
maml (.py), each from another repository. Left out were frameworks other than PyTorch, files without a whole training loop,
the loops of Lightning, transformers and accelerate ([another page](../frameworks.md)), reinforcement learning that makes its
data while it trains, and one that was like another of its author. Each was written anew in its manner, with small data of its
own, and made elastic by `join`, `prepare`, `epochs`, the batches and `run.save` alone.

| | equal as written | named or refused | other bits, no message | crashed | equal with the named lines |
| --- | --- | --- | --- | --- | --- |
{rows}

{lines}

"""
ALARMS = "False alarms (`make verify-alarms`): "  # begins the paragraph below the head
VERDICTS = ("expected", "before", "now", "with the line", "check")


_SCRIPT = re.compile(r"- `(\w+)`: ")
FOUND = (Kind.NAMED, Kind.REFUSED)
FOUND_IN_CLUSTER = tuple(kind.value for kind in FOUND)  # beginnings of a cell
FOUND_AT_DESK = 0.95  # required fraction of the scripts that a cluster finds


def line(verdict: Verdict) -> str:
    """Return a script's line."""
    name = f"{verdict.script}{' +line' if verdict.fixed else ''}"
    mark = "  " if verdict.expected else "! "
    bits = f" (other bits: {', '.join(verdict.other_bits)})" if verdict.other_bits else ""
    bits += "" if verdict.repeatable else " (alone, too)"
    bits += f" ({verdict.missed} orders not reached)" if verdict.missed else ""
    return f"{mark}{name:34s} {verdict.kind.value}{bits} {verdict.seconds:5.1f} s  {verdict.message[:160]}"


def counts(verdicts: Sequence[Verdict]) -> str:
    """Return the number of verdicts of each kind."""
    lines = []
    for fixed in (False, True):
        kinds = Counter(verdict.kind.value for verdict in verdicts if verdict.fixed is fixed)
        if kinds:
            said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
            lines.append(f"{'with the line' if fixed else 'as written'}: {said}")
    asked = [each for each in verdicts if not each.fixed and BY_NAME[each.script].variable and each.kind in FOUND]
    if asked:
        named = sum(each.named for each in asked)
        lines.append(f"named by the variable: {named} of {len(asked)} ({named / len(asked):.0%})")
        lines.append(
            f"not by the variable: {', '.join(sorted(each.script for each in asked if not each.named)) or 'none'}"
        )
    return "\n".join(lines)


def _cell(verdict: Verdict) -> str:
    other = ", other bits" if verdict.other_bits and verdict.kind is not Kind.SILENT else ""
    alone = "" if verdict.repeatable else ", alone too"
    return verdict.kind.value + other + alone


def write_page(path: Path, verdicts: Sequence[Verdict], before: bool) -> None:
    """Rewrite the page. before: these verdicts also fill the column `before`."""
    rows = _read(path)
    for verdict in verdicts:
        row = rows[verdict.script]
        if verdict.fixed:
            row["with the line"] = _cell(verdict)
            continue
        row["now"] = _cell(verdict)
        if before:
            row["before"] = row["now"]
    _write(path, rows)


def write_checks(path: Path, checks: Sequence[Check]) -> None:
    """Rewrite the page with these verdicts of `elasticctl check`."""
    rows = _read(path)
    for each in checks:
        rows[each.script]["check"] = each.verdict
    _write(path, rows)


def compare_checks(path: Path, checks: Sequence[Check]) -> tuple[str, bool]:
    """Return how many of the scripts found by the cluster, as on the page, `elasticctl check` finds, and whether they suffice."""
    rows = _read(path)
    finds = [each for each in checks if rows[each.script].get("now", "").startswith(FOUND_IN_CLUSTER)]
    missed = sorted(each.script for each in finds if not each.found)
    beyond = sorted(each.script for each in checks if each.found and each not in finds)
    named = sum(each.named for each in finds)
    found = len(finds) - len(missed)
    lines = [
        f"of {len(finds)} scripts that the cluster finds, check finds {found}, {named} of them by the variable's name",
        f"missed: {', '.join(missed) or 'none'}",
        f"found by check alone: {', '.join(beyond) or 'none'}",
    ]
    return "\n".join(lines), found >= FOUND_AT_DESK * len(finds)


def write_alarms(path: Path, steps: int, scripts: int, alarms: int) -> None:
    """Rewrite the page with this count of false alarms."""
    text = f"{ALARMS}{alarms} in {steps:,} steps of {scripts} scripts that are equal as written, with a micro-batch compared in"
    _write(path, _read(path), f"{text}\neach step, on two and three workers by turns.")


def _alarms(path: Path) -> str:
    """Return the paragraph with the count of false alarms; "" if the page has none."""
    text = path.read_text() if path.exists() else ""
    return ALARMS + text.partition(ALARMS)[2].partition("\n\n")[0] if ALARMS in text else ""


def _write(path: Path, rows: dict[str, dict[str, str]], alarms: str = "") -> None:
    alarms = alarms or _alarms(path)
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in SCRIPTS:
        row = rows[each.name]
        verdicts = tuple(f"{name}: {row[name]}" for name in VERDICTS if row.get(name))
        groups.setdefault(verdicts, []).append(f"- `{each.name}`: {each.idiom}")
    parts = [f"## {'; '.join(verdicts)}\n\n" + "\n".join(lines) for verdicts, lines in groups.items()]
    ordinary = _of_ordinary([rows[each.name] for each in ordinary_scripts.SCRIPTS])
    path.write_text(HEAD + (f"{alarms}\n\n" if alarms else "") + ordinary + "\n\n".join(parts) + "\n")


def _of_ordinary(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the section on ordinary scripts, with their shares before and now."""
    shares = [_shares("when the scripts were written", [row.get("before", "") for row in rows], None)]
    lines = [row.get("with the line", row.get("now", "")) for row in rows]  # without a line: as written
    shares.append(_shares("now", [row.get("now", "") for row in rows], lines))
    used = Counter(line for each in ordinary_scripts.SCRIPTS for line in each.line.split(", ") if line)
    kinds = [f"| {line if ' ' in line else f'`{line}`'} | {count} |" for line, count in used.most_common()]
    mended = [each for each in ordinary_scripts.SCRIPTS if each.fix]
    single = sum("," not in each.line for each in mended)
    text = (
        f"The refusals come one after another; {single} of the {len(mended)} scripts with lines need one kind of line."
    )
    table = "\n".join(["| line to write | scripts |", "| --- | --- |", *kinds])
    return ORDINARY.format(count=len(rows), rows="\n".join(shares), lines=f"{textwrap.fill(text, 130)}\n\n{table}")


def _shares(when: str, cells: Sequence[str], lines: Sequence[str] | None) -> str:
    kinds = Counter("found" if cell.startswith(FOUND_IN_CLUSTER) else cell.partition(",")[0] for cell in cells)
    counts = [kinds[kind] for kind in (Kind.EQUAL.value, "found", Kind.SILENT.value, Kind.CRASHED.value)]
    if lines is not None:
        counts.append(sum(each == Kind.EQUAL.value for each in lines))
    shown = [f"{count} ({count / len(cells):.0%})" for count in counts]
    return f"| {when} | {' | '.join(shown)} |{'' if lines is not None else ' |'}"


def _read(path: Path) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    verdicts: dict[str, str] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        if text.startswith("## expected: "):
            verdicts = dict(part.split(": ", 1) for part in text.removeprefix("## ").split("; "))
        elif found := _SCRIPT.match(text):
            rows[found[1]] = dict(verdicts)
    for script in SCRIPTS:
        rows.setdefault(script.name, {})["expected"] = script.expected.value
        if not script.fix:
            rows[script.name].pop("with the line", None)
    return rows


def read_json(path: Path) -> list[Verdict]:
    """Read the verdicts of an earlier run, without their endings."""
    return [Verdict(**{**each, "kind": Kind(each["kind"]), "endings": []}) for each in json.loads(path.read_text())]


def write_json(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write all verdicts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([verdict.plain() for verdict in verdicts], indent=1) + "\n")
