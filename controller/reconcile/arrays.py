"""Arrays of jobs of which a limited number may run at a time (`ArrayElement.most`), as Slurm's --array=0-99%8.

The elements of an array are jobs like others. Those beyond the limit are hidden from policies (`Job.beyond_array`).
Elements that have GPUs count first, then the others in the order of submission. An element that a user withholds, or
that waits for another job, does not count. All of this follows from the jobs' records, so it has no record of its own.
"""

from __future__ import annotations

from ..cluster import Cluster
from ..jobs.job import Job


def limit_arrays(cluster: Cluster) -> None:
    """Choose again which elements may run, for each array in which an element has changed."""
    for elements in cluster.jobs.index.take_changed_arrays():
        array = elements[0].spec.array
        assert array is not None
        assert array.most is not None
        with_gpus = [job for job in elements if job.record.target]
        able = [job for job in elements if not job.record.target and not _kept_back(job)]
        chosen = {job.id for job in (*with_gpus, *able)[: array.most]}
        for job in elements:
            beyond = job.id not in chosen and not job.record.target
            if job.limit_by_array(beyond):
                cluster.jobs.mark_dirty(job)
                cluster.planning.request()


def _kept_back(job: Job) -> bool:
    return job.record.withheld is not None or bool(job.record.waits_for)
