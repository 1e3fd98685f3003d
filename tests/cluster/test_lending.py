"""GPUs that are lent for a while, with real processes: jobs leave them without a restart, and grow again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import EndLoan, GetServers, GpusLent, LendGpus, LoanEnded

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]


def test_a_job_leaves_what_is_lent_and_grows_again(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=2, slots=2)
    job = cluster.submit(str(tmp_path / "model.pt"), "--epochs", "4000", "--pace", "0.02")
    cluster.until_share(job, 4)
    before = cluster.pids(job)
    loan = cluster.client.ask(LendGpus(gpus=3, for_s=600.0, reason="evening peak"))
    assert isinstance(loan, GpusLent)

    def free() -> bool:
        cordons = [cordon for view in cluster.client.ask(GetServers()).servers for cordon in view.cordons]
        return len(cordons) == 3 and all(cordon.drained_s is not None for cordon in cordons)

    cluster.until("what is lent is free", free)
    view = cluster.until_share(job, 1)
    (worker,) = view.workers
    assert all((gpu.server, gpu.index) != (worker.server, worker.gpu) for gpu in loan.gpus)
    assert before[worker.worker] == worker.pid, "the worker that stays is the same process"
    assert isinstance(cluster.client.ask(EndLoan(loan=loan.loan)), LoanEnded)
    assert cluster.until_share(job, 4).restarts == 0
