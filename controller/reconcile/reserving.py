"""Input of reservations (`scheduler.reservation`): the jobs that are gangs, and the GPUs of all jobs.

A job that is expected to call `elastic.join()` is a gang only for the seconds of its imports, so it may start on reserved GPUs.
If one such job has not called `elastic.join()` in time, all others count as gangs, too, as long as that job runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from ...protocol.model import GpuAddress, JobId, JobPhase
from ...scheduler.arrays import Ints
from ...scheduler.policies import RIGID
from ...scheduler.quotas.dividing import Tenancy
from ...scheduler.quotas.pinned import Pinned, lasting
from ...scheduler.reservation import Queue, reserve
from ...scheduler.sets import union
from ...scheduler.view import ClusterView, Gpus, ServerInView
from ..cluster import Cluster
from ..jobs.job import Job


def reserved(
    cluster: Cluster,
    view: ClusterView,
    chosen: Ints,
    there: tuple[ServerInView, ...],
    running: Mapping[int, Gpus],
    policy: str,
    tenancy: Tenancy | None,
) -> tuple[ClusterView, float]:
    """Return the view with its reservation, if there is one, and the time of the next review (Unix time, s).

    `chosen`: rows of `Rows` in view; `there`: connected servers; `running`: GPUs with processes, by row of the view. `tenancy`:
    GPUs guaranteed to other tenants are not reserved.
    """
    gangs = [job for job in cluster.jobs.rows.gangs.values() if stays_a_gang(job)]
    if not gangs and cluster.jobs.reserved is None:
        return view, math.inf
    bits: dict[GpuAddress, Gpus] = {}
    for server in there:
        for index in server.gpus:
            bits[GpuAddress(server=server.server, index=index)] = 1 << len(bits)
    tainted = {name for name in (*cluster.servers.tainted, *cluster.servers.health) if name in cluster.servers.sessions}
    unusable = union(bit for gpu, bit in bits.items() if gpu.server in tainted and not cluster.servers.usable(gpu))
    demands, demand_of = cluster.jobs.rows.demands(chosen)
    queue = Queue(
        servers=there,
        usable=((1 << len(bits)) - 1) & ~unusable,
        busy=tuple(_gpus(job, bits) for job in cluster.jobs.rows.fixed.values()),
        gangs=union(_gpus(job, bits) for job in gangs),
        demands=demands,
        demand_of=demand_of,
        stays=cluster.jobs.rows.unjoined(chosen, expected=any(job.spec.expected_to_join for job in gangs)),
        begun=frozenset(row for row, gpus in running.items() if gpus),
    )
    before: JobId | None = cluster.jobs.reserved
    most = partial(_most, tenancy, lasting(view, tenancy)) if tenancy is not None else None
    return reserve(view, queue, policy, policy in RIGID, cluster.settings.reserve_after_s, before, most)


def _most(tenancy: Tenancy, may: Pinned, row: int) -> int:
    return may.most(tenancy.tenant(row))


def stays_a_gang(job: Job) -> bool:
    """Return whether the job is expected to stay a gang until its end."""
    return not job.spec.expected_to_join or job.record.phase is JobPhase.RUNNING


def _gpus(job: Job, bits: Mapping[GpuAddress, Gpus]) -> Gpus:
    return union(bits.get(gpu, 0) for gpu in job.own_gpus)
