"""AFS's virtual clusters of Philly, and results of other simulators on them, from a folder outside the project."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHILLY = "philly_jobs.csv.gz"
AFS_MODELS = "afs_models_gtx1080.csv"
ELASTICFLOW_JOBS = "elasticflow_jobs.csv.gz"
ELASTICFLOW_MODELS = "elasticflow_throughputs.csv"
PEERS = "peer_results.json"

SERVERS, GPUS = 16, 4  # AFS 5.1


@dataclass(frozen=True)
class VirtualCluster:
    """A virtual cluster of AFS Table 3, or of another trace (`own`)."""

    name: str
    number: int | None  # in Table 3; None: of another trace
    jobs: int  # in the file, which has up to 0.4 % fewer than the table
    trace: str = PHILLY  # in the data folder, or an absolute path
    column: str = "vc"  # column that names a job's cluster; "": all jobs of the file belong to this one
    profiles: str = AFS_MODELS
    random_models: bool = False


VIRTUAL_CLUSTERS = (
    VirtualCluster("0e4a51", 1, 2465),
    VirtualCluster("6c71a0", 2, 14783),
    VirtualCluster("e13805", 4, 938),
    VirtualCluster("6214e9", 5, 51258),
    VirtualCluster("103959", 7, 2677),
    VirtualCluster("ed69ec", 11, 1400),
)


def published(clusters: Iterable[VirtualCluster]) -> list[VirtualCluster]:
    """Return the clusters for which a paper has published figures."""
    return [cluster for cluster in clusters if cluster.number is not None]


SMALLEST = tuple(sorted(VIRTUAL_CLUSTERS, key=lambda cluster: cluster.jobs)[:2])


@dataclass(frozen=True)
class Peers:
    """Average JCTs of other simulators (s), and fractions of deadlines met, by simulator, input and policy as labelled in their
    runs."""

    avg_jct_s: dict[tuple[str, str, str], float]
    deadline_ratio: dict[tuple[str, str, str], float] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)  # by input: jobs admitted in ElasticFlow's simulator, but late

    def deadlines(self, source: str, policy: str) -> float | None:
        """Fraction of deadlines met in ElasticFlow's simulator; None if it was not run."""
        return self.deadline_ratio.get(("ElasticFlow", source, policy))

    def pcs(self, cluster: VirtualCluster, policy: str) -> float | None:
        return self.avg_jct_s.get(("PCS", f"trace_{cluster.name}, 64 GPUs", policy))

    def tiresias(self, cluster: VirtualCluster, policy: str) -> float | None:
        return self.avg_jct_s.get(("Tiresias", f"philly_{cluster.name}_n16g4", policy))


def peers(data: Path) -> Peers:
    runs = json.loads((data / PEERS).read_text(encoding="utf-8"))
    broken = {
        run["input"]: run["rows_in_job_csv"] - run["accepted"] for run in runs if run["policy"] == "ef-accessctrl"
    }
    return Peers(_of_each(runs, "avg_jct_s"), _of_each(runs, "ddl_satisfactory_ratio"), broken)


def _of_each(runs: Iterable[dict[str, Any]], figure: str) -> dict[tuple[str, str, str], float]:
    known = {(run["sim"], run["input"], run["policy"]): run.get(figure) for run in runs}
    return {key: float(value) for key, value in known.items() if value is not None}
