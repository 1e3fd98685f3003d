"""Real jobs are measured with the shares that they get and, on the way down, with smaller ones; the scheduler goes by that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import Cancel, JobView

MakeCluster = Callable[..., Any]
MEASURING = {"way_down": True, "steps": 12}


def measured(view: JobView) -> dict[int, float]:
    return {point.share_gpus: point.steps_per_s for point in view.curve if point.source == "measured"}


@pytest.mark.cluster
def test_a_job_that_stops_growing_is_found_out_and_its_gpus_go_to_another_one(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=6, measuring=MEASURING)
    narrow = ("--epochs", "400", "--pace", "0.15", "--useful", "2")
    first = cluster.submit(str(tmp_path / "a.pt"), *narrow, gpus=(1, 4), name="narrow")
    cluster.until_share(first, 4)
    found = cluster.until_measured(first, 2, {2, 4})
    assert measured(found)[4] < 1.1 * measured(found)[2]

    wide = ("--epochs", "400", "--pace", "0.15")
    second = cluster.submit(str(tmp_path / "b.pt"), *wide, gpus=(1, 4), name="wide")
    cluster.until_share(second, 3)  # the fair share of a job that nothing is known of
    found = cluster.until_measured(second, 4, {1, 3, 4})  # with 2 there is no need
    assert cluster.job(first).share_gpus == 2
    rates = measured(found)
    assert rates[4] > 1.6 * rates[1]
    assert {point.servers for point in found.curve if point.source == "measured"} == {1}

    for job in (first, second):
        cluster.client.ask(Cancel(job=job))
    cluster.kill("controller")
    cluster.start("controller")
    again = cluster.submit(str(tmp_path / "a.pt"), *narrow, gpus=(1, 4), name="again")
    cluster.until_step(again, 5)
    view = cluster.job(again)
    assert [change.share for change in view.shares] == [2], "a known job was given more than it can use"
    assert {point.source for point in view.curve if point.share_gpus == 4} == {"history"}
