"""Published results of AFS, EDL, Elan, ElasticFlow and Pollux beside those of this and other simulators. `make papers`

    python -m benchmarks.papers [--quick] [--cluster NAME]... [--trace FILE [--profiles FILE] [--random-models]]
        [--data DIRECTORY] [--processes N] [--figure NAME]...

Writes out/papers.json, docs/reports/papers.md and docs/reports/papers/*.png; with `--quick` (the two smallest virtual clusters)
it writes out/papers-quick.json, out/papers-quick.md and out/papers-quick/ instead. With `--trace` the clusters of any file that
`elasticctl simulate` reads are added to AFS's and EDL's tables, without a published number; the output is out/papers-trace.*
then. `--cluster` selects some of AFS's virtual clusters, or of that file. With `--figure` (a module of this package, such as
elasticflow) only its simulations are run, and only its sections of the page are rewritten. Results of simulations are cached in
out/papers/, so an interrupted run resumes. A deviation above 10 % without an explanation, or an explanation of a deviation that
does not exist, is an error: the page is written, without that explanation, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticd.protocol.errors import ElasticError, UserError

from . import (
    altruistic,
    average,
    beside,
    easyscale,
    edl,
    elan,
    elasticflow,
    inputs,
    own,
    peak,
    pollux,
    simulators,
    tail,
    variants,
)
from .cases import Case
from .findings import faults
from .inputs import VirtualCluster
from .page import Section, paragraphs, save
from .results import Results, gather

ROOT = Path(__file__).resolve().parents[2]
FIGURES = (average, variants, peak, tail, altruistic, edl, elan, elasticflow, easyscale, beside, pollux, simulators)

INTRODUCTION = """\
# Published results beside ours

Written by `make papers`; do not edit. Each section has the number that a paper published, the number that `elasticctl simulate`
gives for the same policy and, where a group published its simulator, the number that this simulator gives.

    make papers                            # resumes an interrupted run
    make papers ARGS=--quick               # the two smallest virtual clusters; writes to out/ only
    make papers ARGS="--data DIRECTORY"    # where the traces are (default: ../shared/data)
    make papers ARGS="--cluster e13805"    # AFS's and EDL's tables for this virtual cluster only
    make papers ARGS="--figure elasticflow"    # this section only
    make papers ARGS="--quick --trace FILE"    # another trace in the same tables; writes to out/ only

This page holds {simulations} simulations. Six of the eleven virtual clusters of AFS Table 3 are published; here are
{clusters}{missing}.

"A over B" is the average JCT of B divided by that of A: 2x means that jobs take half as long under A. The deviation is measured
from the published number, or from the nearer end of the published range. Every deviation over 10 % has an explanation, named in
the last column; `make papers` fails where one is missing or superfluous. Numbers that a paper shows only as bars are not used."""


def main() -> int:
    options = _options()
    if not (options.data / inputs.PHILLY).exists():
        print(f"{options.data}: the traces are not there ({inputs.PHILLY}); say where with --data", file=sys.stderr)
        return 2
    try:
        clusters = _clusters(options)
        figures = _figures(options.figure)
        wanted = sorted({case for figure in figures for case in figure.cases(clusters)}, key=_size)
        results = gather(wanted, options.data, ROOT / "out" / "papers", options.processes)
    except ElasticError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    peers = inputs.peers(options.data)
    sections = [figure.section(results, clusters, peers) for figure in figures]
    wrong = [fault for section in sections for fault in faults(section.findings, section.explanations)]
    if options.figure:
        _renew(sections)
    else:
        _write(sections, results, clusters, "-trace" if options.trace else "-quick" if options.quick else "")
    for fault in wrong:
        print(fault, file=sys.stderr)
    return int(bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description="The papers' results beside ours.")
    parser.add_argument("--quick", action="store_true", help="the two smallest virtual clusters, to see that it works")
    parser.add_argument("--cluster", action="append", default=[], help="this virtual cluster (several times: these)")
    parser.add_argument("--trace", type=Path, help="a file of jobs, whose clusters stand beside AFS's")
    parser.add_argument("--profiles", type=Path, help="its throughputs (default: those of AFS's models)")
    parser.add_argument(
        "--random-models", action="store_true", help="its models drawn from the profiles, whatever it names"
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="where the traces are")
    parser.add_argument("--figure", action="append", default=[], help="only these sections (several times: these)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="simulations at a time")
    return parser.parse_args()


def _clusters(options: argparse.Namespace) -> list[VirtualCluster]:
    """Return the selected clusters of AFS, then those of the given trace. Raises UserError for unknown names."""
    known = [cluster for cluster in inputs.VIRTUAL_CLUSTERS if cluster.name in options.cluster]
    names = [cluster.name for cluster in inputs.VIRTUAL_CLUSTERS]
    others = [name for name in options.cluster if name not in names]
    if options.trace is None:
        if others:
            raise UserError(f"no virtual cluster {others[0]!r}; there are {', '.join(names)}, and those of a --trace")
        if options.profiles or options.random_models:
            raise UserError("--profiles and --random-models are those of an own trace; name it with --trace")
        own_ones = []
    else:
        own_ones = own.clusters(options.trace, others, options.profiles, options.random_models, options.data)
    if options.quick:
        known = list(inputs.SMALLEST)
    elif not known:
        known = list(inputs.VIRTUAL_CLUSTERS)
    return [*known, *own_ones]


def _size(case: Case) -> tuple[int, str]:
    """Sort key by size: small traces first, so that results appear soon."""
    jobs = {one.name: one.jobs for one in (*inputs.VIRTUAL_CLUSTERS, *elasticflow.INPUTS)}
    return max((jobs.get(value, 0) for _, value in case.where), default=0), case.label


def _write(sections: Sequence[Section], results: Results, clusters: Sequence[VirtualCluster], suffix: str) -> None:
    """Write the results. suffix: of the files' names; "": the page of the docs."""
    out = ROOT / "out"
    document = {
        "sections": [section.document() for section in sections],
        "simulations": [
            {"case": case.label, "trace": case.trace, "avg_jct_s": record.avg_jct_s, "wall_s": record.metrics.wall_s}
            for case, record in results.items()
        ],
    }
    (out / f"papers{suffix}.json").write_text(json.dumps(_plain(document), indent=1) + "\n", encoding="utf-8")
    page = out / f"papers{suffix}.md" if suffix else ROOT / "docs" / "reports" / "papers.md"
    pictures = page.with_suffix("")
    for section in sections:
        for picture in section.pictures:
            save(picture, pictures)
    parts = [*_introduction(len(results), clusters), *(section.markdown(pictures.name) for section in sections)]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written to {page}")


def _introduction(simulations: int, clusters: Sequence[VirtualCluster]) -> list[str]:
    missing = [cluster for cluster in inputs.VIRTUAL_CLUSTERS if cluster not in clusters]
    added = f", and not {_names(missing)}, which `make papers` adds" if missing else ""
    return paragraphs(INTRODUCTION.format(simulations=simulations, clusters=_names(clusters), missing=added))


def _figures(names: Sequence[str]) -> list[ModuleType]:
    """Return the figures with these names, in the order of the page; all, if none is named. Raises UserError."""
    known = {figure.__name__.rpartition(".")[2]: figure for figure in FIGURES}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--figure: there is no figure {unknown[0]!r}; there are {', '.join(known)}")
    return [figure for name, figure in known.items() if name in names or not names]


def _renew(sections: Sequence[Section]) -> None:
    """Replace the sections of the page with the same titles; add new ones before the last one. The introduction is rewritten,
    too."""
    page = ROOT / "docs" / "reports" / "papers.md"
    clusters = inputs.VIRTUAL_CLUSTERS
    simulations = len({case for figure in FIGURES for case in figure.cases(clusters)})
    parts = re.split(r"(?m)^(?=## )", page.read_text(encoding="utf-8"))
    parts[0] = "\n\n".join(_introduction(simulations, clusters)) + "\n\n"
    for section in sections:
        for picture in section.pictures:
            save(picture, page.with_suffix(""))
        text = section.markdown(page.stem) + "\n\n"
        place = next((at for at, part in enumerate(parts) if part.startswith(f"## {section.title}\n")), None)
        if place is None:
            parts.insert(len(parts) - 1, text)
        else:
            parts[place] = text
    page.write_text("".join(parts).rstrip("\n") + "\n", encoding="utf-8")
    print(f"written to {page}: {', '.join(section.title for section in sections)}")


def _names(clusters: Sequence[VirtualCluster]) -> str:
    return ", ".join(cluster.name for cluster in clusters)


def _plain(value: Any) -> Any:
    """Replace infinity by null, since JSON has no infinity: an open end of a range."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
