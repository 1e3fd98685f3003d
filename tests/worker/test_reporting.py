"""A status is small, whatever metrics a script reports."""

from __future__ import annotations

from elasticd.protocol.limits import MAX_METRIC_NAME, MAX_METRICS
from elasticd.protocol.model import JobId, WorkerId
from elasticd.worker.events import MetricsReported, WorkerConfig
from elasticd.worker.machine import WorkerMachine
from elasticd.worker.reporting import Reporting


def reporting() -> Reporting:
    place = WorkerConfig(job=JobId("j-1"), worker=WorkerId("j-1.0"), pid=1, address="", virtual_workers=1)
    machine = WorkerMachine(place, 0.0)
    machine.handle(0.0, MetricsReported({"loss": 1.0}))
    return machine._reporting


def test_of_too_many_figures_the_first_are_kept_and_go_on_changing() -> None:
    told = reporting()
    for step in range(2000):
        told.measured({f"loss of step {step}": 0.5, "loss": float(step)})
    assert len(told.metrics) == MAX_METRICS
    assert told.metrics["loss"] == 1999.0


def test_names_of_figures_are_cut() -> None:
    told = reporting()
    told.measured({"x" * 10_000: 1.0})
    assert max(map(len, told.metrics)) == MAX_METRIC_NAME
