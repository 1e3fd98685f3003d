"""A worker whose library does not come back from an abort is lost, and its job is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).with_name("train_stuck.py")


def test_a_job_goes_on_without_a_worker_whose_abort_does_not_return(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(slots=3)
    enough = tmp_path / "enough"
    job = cluster.submit(
        *(str(tmp_path / "out.pt"), "--pace", "0.02", "--enough", str(enough)),
        gpus=(1, 3),
        script=SCRIPT,
        env={"STUCK": ".2"},
    )
    cluster.until_share(job, 3)
    step = cluster.until_step(job, 0).step
    os.kill(cluster.pids(job)[f"{job}.1"], signal.SIGKILL)

    def said() -> bool:
        logs = [log.read_text(errors="replace") for log in (tmp_path / "s1").rglob(f"{job}.2.log")]
        return any("has not ended this worker's collectives within 10 s of an abort" in log for log in logs)

    cluster.until("the worker whose abort hangs has ended", said)
    enough.touch()
    view = cluster.until_final(job)
    assert view.step > step
