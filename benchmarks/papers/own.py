"""Another trace beside AFS's virtual clusters: its rows are in the same tables, without a published number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from elasticd.protocol.errors import UserError
from elasticd.scheduler.profiles import curves
from elasticd.scheduler.profiles.tables import listed, read
from elasticd.simulator import assign, traces

from .inputs import AFS_MODELS, GPUS, SERVERS, VirtualCluster

COLUMNS = ("vc", "cluster")  # columns with which traces name their clusters


def clusters(
    trace: Path, names: Sequence[str], profiles: Path | None, random_models: bool, data: Path
) -> list[VirtualCluster]:
    """Return the clusters of a file, smallest first: all, or those with these names. Without names in it, all jobs are one
    cluster.

    Raises UserError for a file that cannot be simulated, naming file and line, and for an unknown cluster.
    """
    table = read(trace)
    column = next((column for column in COLUMNS if column in table), "")
    jobs = Counter(table.columns[column]) if column else Counter({trace.name.split(".")[0]: len(table)})
    if unknown := [name for name in names if column and name not in jobs]:
        raise UserError(f"{trace}: has no cluster {unknown[0]!r}; there are {listed(jobs)}")
    if names and not column:
        raise UserError(f"{trace}: names no clusters, so that --cluster {names[0]} cannot be picked from it")
    models = AFS_MODELS if profiles is None else str(profiles.absolute())
    found = [
        VirtualCluster(name, None, count, str(trace.absolute()), column, models, random_models)
        for name, count in sorted(jobs.items(), key=lambda one: one[1])
        if not names or name in names
    ]
    for cluster in found:
        check(cluster, data)
    return found


def check(cluster: VirtualCluster, data: Path) -> None:
    """Raises UserError if its jobs cannot be simulated; prints how many are too large and left out."""
    gpus = SERVERS * GPUS
    whole = traces.load(Path(cluster.trace), {cluster.column: [cluster.name]} if cluster.column else {})
    fitting = whole.up_to(gpus)
    assign.assign(fitting, gpus, curves.load(data / cluster.profiles), 0, random_models=cluster.random_models)
    if left_out := len(whole) - len(fitting):
        print(f"{cluster.name}: {left_out} of {len(whole)} jobs requested more than {gpus} GPUs, and are left out")
