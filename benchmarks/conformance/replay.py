"""Replay of a trace on a real cluster: each job is submitted at its time, and the cluster's records give its course."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from elasticd.protocol.messages import JobView
from elasticd.protocol.model import JobPhase

from ..runtime.processes import MeasurementFailed
from .cluster import POLL_S, Cluster
from .courses import Course
from .trace import PlannedJob, Profile

LIMIT_S = 1200.0


def replay(
    cluster: Cluster, jobs: Sequence[PlannedJob], profile: Profile, stated: bool, progress: Callable[[str], None]
) -> tuple[Course, ...]:
    """Submit all jobs and wait until all have finished. stated: jobs state their throughputs; otherwise these are measured.
    Raises MeasurementFailed if a job fails, or does not end."""
    began = time.monotonic()
    for job in jobs:
        time.sleep(max(0.0, began + job.submit_s - time.monotonic()))
        rates = profile[job.kind.name] if stated else None
        cluster.submit(job.kind, job.name, f"1:{job.gpus}", job.steps(profile), rates)
        progress(f"{time.monotonic() - began:6.1f} s  {job.name} submitted: {job.kind.name}, up to {job.gpus} GPUs")
    views = _until_all_over(cluster, jobs, began)
    first_s = min(view.submitted_s for view in views)
    return tuple(_course(view, job, first_s) for view, job in zip(views, jobs, strict=True))


def _until_all_over(cluster: Cluster, jobs: Sequence[PlannedJob], began: float) -> list[JobView]:
    names = [job.name for job in jobs]
    while time.monotonic() < began + LIMIT_S:
        found = {view.spec.name: view for view in cluster.jobs() if view.spec.name in names}
        views = [found[name] for name in names]
        failed = [view for view in views if view.phase.final and view.phase is not JobPhase.FINISHED]
        if failed:
            raise MeasurementFailed(f"{failed[0].job} has {failed[0].phase.value}: {failed[0].reason}")
        if all(view.phase.final for view in views):
            return views
        time.sleep(POLL_S)
    raise MeasurementFailed(f"the jobs are not over within {LIMIT_S:.0f} s")


def _course(view: JobView, job: PlannedJob, first_s: float) -> Course:
    assert view.finished_s is not None
    return Course(
        name=job.name,
        kind=job.kind.name,
        submit_s=view.submitted_s - first_s,
        end_s=view.finished_s - first_s,
        shares=tuple((change.time_s - first_s, change.share) for change in view.shares),
    )
