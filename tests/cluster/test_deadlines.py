"""Deadlines with real processes: promised, kept beside a job without one, refused with what would hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.errors import RequestRefused
from elasticd.protocol.messages import EventKind, Forecast, Forecasted, GetEvents, PromiseState, Submit
from elasticd.protocol.model import Deadline, GpuRange, JobSpec, Until

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]
UNTIL = Path(__file__).with_name("train_until.py")
RATES = {1: 2.0, 2: 4.0, 4: 8.0}  # steps per second that jobs state: fewer than they do here
PACE = ("--pace", "0.02")


def promise(cluster: Any, job: str) -> Any:
    return cluster.job(job).promise


def told(cluster: Any, job: str) -> list[EventKind]:
    return [event.kind for event in cluster.client.ask(GetEvents()).events if event.job == job]


def test_a_deadline_is_promised_and_kept_beside_a_job_without_one(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=4)
    long = cluster.submit(str(tmp_path / "long.pt"), "--epochs", "4000", *PACE, name="long", throughput=RATES)
    cluster.until_step(long, 5)
    due = cluster.submit(
        str(tmp_path / "due.pt"),
        "--epochs", "400", *PACE,
        name="due",
        max_steps=120,
        throughput=RATES,
        deadline=Deadline(in_s=45.0),
    )  # fmt: skip
    assert promise(cluster, due).state is PromiseState.HOLDS
    more = JobSpec(
        name="more",
        command=("python", "other.py"),
        gpus=GpuRange(min=1, max=4),
        virtual_workers=4,
        workdir=str(tmp_path),
        max_steps=2000,
        throughput=RATES,
        deadline=Deadline(in_s=45.0),
    )
    answer = cluster.client.ask(Forecast(spec=more))
    assert isinstance(answer, Forecasted)
    assert "does not hold" in answer.reason
    assert 0 < answer.offer.steps < 2000
    with pytest.raises(RequestRefused, match=r"more is not admitted: its deadline in 4\ds does not hold"):
        cluster.client.ask(Submit(spec=more))
    view = cluster.until_final(due)
    assert view.finished_s < view.submitted_s + 45.0
    assert EventKind.MISSED not in told(cluster, due)
    assert cluster.job(long).restarts == 0


def test_a_job_that_ends_at_an_accuracy_is_promised_when_its_reports_show_its_length(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=4)
    job = cluster.submit(
        str(tmp_path / "until.pt"),
        "0.9",
        script=UNTIL,
        name="until",
        until=Until(metric="accuracy", bound=0.9),
        throughput=RATES,
        deadline=Deadline(in_s=600.0),
    )
    assert promise(cluster, job).state is PromiseState.PROVISIONAL
    assert promise(cluster, job).waits_for == "its length (some reports of accuracy, or max_steps)"

    def promised() -> Any:
        view = cluster.job(job)
        return view if view.promise is not None and view.promise.state is PromiseState.HOLDS else None

    then = cluster.until("it is promised", promised)
    assert then.length.by_reports == "accuracy >= 0.9"
    view = cluster.until_final(job)
    assert view.finished_s < view.submitted_s + 600.0
    assert view.metrics["accuracy"] >= 0.9
    assert then.step + 1 < view.step + 1, "it was promised before it was over"
    assert view.step + 1 < 5 * then.length.steps
