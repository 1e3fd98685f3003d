"""Back-off from servers and GPUs on which workers fail at their start, longer each time (cluster 4).

Theory of operation ------------------- A server with a full disk looks idle: it would get one job after the other, and
all of them would fail. So if a start fails by the server's fault, the controller *backs off*: until the time is up, the
server's free GPUs are not in the scheduler's view, and workers not started yet are placed on other servers. Workers
that run on the server go on. The first worker there that reaches its training loop clears the server.

If a server's driver or file system is missing, the *script* fails with an exit code. A comparison with other jobs and
servers distinguishes such a server from a faulty script (`script_is_innocent`). The same comparison finds a single
faulty GPU on a server with GPUs that work: the controller then backs off from this GPU only, as after a fault that the
agent reports (`taints`). If a second GPU of the server fails so meanwhile, the server is to blame.

None of this is recorded: a controller that has just started tries each server, and soon knows again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobId, ServerId, WorkerId
from ...scheduler.view import Use
from ..cluster import Cluster
from ..jobs.avoided import Avoidance
from ..jobs.generations import arrived
from ..jobs.job import Job
from ..jobs.records import WorkerRecord, WorkerState
from ..loans import use_of
from ..sessions import Health
from ..taints import Taint, sentences
from .tainted import refresh_taints

FAILURES_OF_A_JOB = 2  # so many failures on one server, of a job that runs elsewhere, show that the server is to blame
JOBS_THAT_FAIL = 3  # so many jobs in a row that fail on one server only show that the server is to blame
JOBS_THAT_FAIL_ON_GPU = 2  # the same for one GPU, while other GPUs of its server work
TRIES_ON_ONE_SERVER = 4  # a job that gets no other server fails after so many tries on the only one
TRIES_IF_LATE = 1  # the same limit if the tries fail by the time limit of a start
TRIES_IN_DOUBT = 7  # the same limit if other kinds of jobs fail there, too: five minutes with back-offs
OWNERS_THAT_AGREE = 2  # users with failed jobs until a server or GPU is to blame, if several users have active jobs
DIVERGED_BACK_OFF_S = 60.0  # first back-off from a GPU on which the state of a worker diverged
SERVERS_TOLD = 8
LONGEST_TOLD = 1000  # characters of text per server


def start_failed(cluster: Cluster, now: float, server: ServerId, reason: str, suspected: bool = False) -> None:
    """Back off from `server`, by the fault of which a worker could not be started or could not work.

    Jobs with workers not started there yet are placed on other servers. `suspected`: the fault is inferred by comparison.
    """
    health = cluster.servers.start_failed(server, reason.removeprefix("cannot be started: "))
    if health.until_s is not None:
        return  # several workers started together fail together: they count once
    cluster.servers.back_off(now, health, suspected)
    cluster.history.add(now, EventKind.SERVER_UNFIT, None, f"{server}: {health.sentence(now)}")
    for job in cluster.jobs.index.on_server(server):
        if not job.final:
            _leave(cluster, now, job, server)


def diverged(cluster: Cluster, now: float, gpu: GpuAddress, worker: WorkerId) -> None:
    """Back off from `gpu`, which may be faulty: the state of `worker` there diverged, while the other workers agree."""
    reason = f"the state of {worker} there came to differ from that of the other workers"
    health = cluster.servers.start_failed(gpu, reason)
    if health.until_s is None:
        cluster.servers.back_off(now, health, suspected=False, first_s=DIVERGED_BACK_OFF_S)
        refresh_taints(cluster, now, gpu.server)


def _leave(cluster: Cluster, now: float, job: Job, server: ServerId) -> None:
    """Withdraw the workers of `job` that are not started on `server` yet, so that they are placed on other servers."""
    kept = tuple(gpu for gpu in job.record.target if gpu.server != server or gpu in job.running_gpus)
    waiting = [e for e in job.workers if e.gpu.server == server and e.state is WorkerState.ORDERED]
    if kept == job.record.target and not waiting:
        return
    job.set_target(now, kept, f"nothing new is started on server {server}")
    for entry in waiting:
        job.drop_unstarted(entry.worker)
    cluster.jobs.mark_dirty(job)


def worked(cluster: Cluster, now: float, gpu: GpuAddress) -> None:
    """Clear `gpu` and its server: a worker has reached its training loop there."""
    cluster.servers.clear(gpu.server)
    if cluster.servers.clear_gpu(gpu):
        refresh_taints(cluster, now, gpu.server)


def forgive(cluster: Cluster, now: float, server: ServerId, gpus: Iterable[GpuAddress]) -> None:
    """Clear `server` and these GPUs of it at once, as an operator has requested."""
    for gpu in gpus:
        cluster.servers.clear_gpu(gpu)
    cluster.servers.clear(server)
    refresh_taints(cluster, now, server)


def pass_time(cluster: Cluster, now: float) -> None:
    """End the back-offs that have expired, so that these servers and GPUs are tried again."""
    for server in cluster.servers.end_back_offs(now):
        refresh_taints(cluster, now, server)


def deadlines(cluster: Cluster) -> Iterator[float]:
    """Yield the times at which back-offs expire, for `pass_time` (Unix time, s)."""
    for health in chain(cluster.servers.health.values(), cluster.servers.gpu_health.values()):
        if health.until_s is not None:
            yield health.until_s


def troubles(cluster: Cluster, now: float) -> str:
    """Return a sentence on the servers and GPUs that take no new work, with reasons; at most SERVERS_TOLD servers.

    Lent GPUs are left out: the reasons of waiting jobs mention them.
    """
    found = {server for server, health in cluster.servers.health.items() if health.until_s is not None}
    for server in (*cluster.servers.tainted, *cluster.servers.offers_nothing):
        if (
            server in cluster.servers.sessions
            and cluster.servers.sessions[server].alive
            and (server in cluster.servers.offers_nothing or _tainted(cluster, server))
        ):
            found.add(server)
    told = [
        f"{server}: {_told(cluster, now, server)[:LONGEST_TOLD]}" for server in heapq.nsmallest(SERVERS_TOLD, found)
    ]
    more = [f"and {len(found) - SERVERS_TOLD} more servers"] if len(found) > SERVERS_TOLD else []
    return "; ".join([*told, *more])


def _told(cluster: Cluster, now: float, server: ServerId) -> str:
    """Return why `server`, or some of its GPUs, take no new work."""
    health = cluster.servers.health.get(server)
    if health is not None and health.until_s is not None:
        return health.sentence(now)
    if server in cluster.servers.tainted:
        return "; ".join(sentences(len(cluster.servers.sessions[server].server.gpus), _tainted(cluster, server)))
    return f"it offers nothing: {cluster.servers.offers_nothing[server]}"


def _tainted(cluster: Cluster, server: ServerId) -> dict[int, Taint]:
    """Return the taints on GPUs of a server, by index, without GPUs that are only lent."""
    return {
        index: taint
        for index, taint in cluster.servers.tainted.get(server, {}).items()
        if taint.fault is not None or use_of(cluster, GpuAddress(server=server, index=index)) is Use.BARRED
    }


# ------------------------------------------------------------------------------------------- is it the script or the server?


def script_is_innocent(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> bool:
    """Return whether a worker that failed with its script's exit code before it trained failed by its server or GPU.

    If so, the controller backs off from the server or GPU. A GPU is checked first (`_gpu_is_to_blame`). The server is to blame

    * if workers of the same job reach their training loop on other servers, and this is the job's second failure here; one
      failure suffices if the job has never trained, since the job would otherwise fail for good;
    * or if several jobs of several owners (`_agree`) have failed here in a row, and on no other server.

    The only usable server is never to blame, as no other one can be compared with it.
    """
    server = entry.gpu.server
    if _gpu_is_to_blame(cluster, now, job, entry, reason):
        return True
    health = cluster.servers.doubt(server, job.id, job.kind, job.submission.owner)
    if not any(
        session.alive and other != server and cluster.servers.fit(other)
        for other, session in cluster.servers.sessions.items()
    ):
        return False
    enough = FAILURES_OF_A_JOB if job.record.progressed else 1
    comparable = _has_run_elsewhere(job, server) and health.doubts[job.id].times >= enough
    unlike = [name for name in health.doubts if not _fails_elsewhere(cluster, name, server)]
    if not comparable and not (job.id in unlike and _agree(cluster, health, unlike, JOBS_THAT_FAIL)):
        return False
    start_failed(cluster, now, server, reason, suspected=True)
    return True


def _agree(cluster: Cluster, health: Health, jobs: Sequence[JobId], enough: int) -> bool:
    """Return whether the failures of at least `enough` jobs, of more than one owner, point at the server or GPU.

    So the scripts of one user alone take no GPUs from other users. If no other user has jobs, one owner suffices.
    """
    owners = {health.doubts[job].owner for job in jobs}
    return len(jobs) >= enough and (len(owners) >= OWNERS_THAT_AGREE or not cluster.jobs.index.others_than(owners))


def _gpu_is_to_blame(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> bool:
    """Return whether the worker failed by its GPU alone; if so, the controller backs off from the GPU, or the job
    avoids it.

    The GPU is to blame if other GPUs of its server work, and

    * this job has never trained, and its workers have reached their training loop on one of those GPUs;
    * or jobs of several owners (`_agree`) have failed here in a row, and on no other GPU.

    If the controller backs off from another GPU of the server already, the server is more likely to blame. A job that
    has trained, and of which the joining workers fail, does not grow (`inbound.worker_ends`).

    One job alone takes no GPU from other users, as a script may fail because of its rank, or on purpose. If other users
    have jobs, the job only avoids the GPU, and is tried on other ones. It fails for good after TRIES_ON_ONE_SERVER
    failures here.
    """
    if entry.gpus:  # the worker has several GPUs, and the faulty one is not known
        return False
    gpu = entry.gpu
    cluster.servers.start_failed(gpu, reason)
    health = cluster.servers.doubt(gpu, job.id, job.kind, job.submission.owner)
    if health.until_s is not None:
        return True  # several workers started together fail together: they count once
    beside = {job.id for job, _ in _at_work(cluster, gpu)}
    if not beside or any(
        other.server == gpu.server and other != gpu and known.until_s is not None
        for other, known in cluster.servers.gpu_health.items()
    ):
        return False
    comparable = job.id in beside and not job.record.progressed
    unlike = [name for name in health.doubts if not _fails_on_another(cluster, name, gpu)]
    agreed = job.id in unlike and _agree(cluster, health, unlike, JOBS_THAT_FAIL_ON_GPU)
    if comparable and not agreed and cluster.jobs.index.others_than({job.submission.owner}):
        before = job.avoided.gpus.get(gpu)
        if before is not None and before.until_s is None and before.failures >= TRIES_ON_ONE_SERVER:
            return False
        job.avoid_gpu(now, gpu, f"its script fails at its start on {gpu}: {reason}")
        return True
    if not comparable and not agreed:
        return False
    cluster.servers.back_off(now, health, suspected=True)
    cluster.servers.start_failed(
        gpu, f"workers fail at their start there, while other GPUs of the server work: {reason}"
    )
    refresh_taints(cluster, now, gpu.server)
    return True


def _at_work(cluster: Cluster, gpu: GpuAddress) -> Iterator[tuple[Job, WorkerRecord]]:
    """Yield the workers on other GPUs of the same server that have reached their training loop, with their jobs."""
    for job in cluster.jobs.index.on_server(gpu.server):
        for entry in job.workers:
            beside = entry.gpu.server == gpu.server and entry.gpu != gpu and not entry.stopping
            if beside and arrived(job, entry.worker):
                yield job, entry


def _fails_on_another(cluster: Cluster, job: JobId, gpu: GpuAddress) -> bool:
    return any(job in health.doubts for other, health in cluster.servers.gpu_health.items() if other != gpu)


def second_opinion(
    cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str, late: bool = False
) -> bool:
    """Return whether a job that failed before its first step, and of which no worker has the state, is tried on other servers.

    If so, the job avoids the server. It is not tried again if it has failed on two sound servers, or repeatedly on the only
    server that it gets, or if there is only one server. A server where jobs of other kinds fail, too, is not sound, and is given
    TRIES_IN_DOUBT tries: otherwise two such servers would fail every job.

    `late`: the script has exceeded its start time limit, and probably will again. It is tried once on one other server, sound or
    not.
    """
    server = entry.gpu.server
    if len(cluster.servers.sessions) < 2:
        return False
    sound = late or _is_sound(cluster, job, server)
    others = [
        other for other, avoided in job.avoided.servers.items() if avoided.extent is Avoidance.START and other != server
    ]
    if sound and any(late or _is_sound(cluster, job, other) for other in others):
        return False
    before = job.avoided.servers.get(server)
    tries = TRIES_IF_LATE if late else TRIES_ON_ONE_SERVER if sound else TRIES_IN_DOUBT
    tried = before is not None and before.extent is Avoidance.START and before.until_s is None
    if before is not None and tried and before.failures >= tries:
        return False
    # After a late start, avoid the server at least as long as the start took: another server may become free meanwhile.
    at_least_s = now - entry.started_s if late and entry.started_s is not None else 0.0
    job.avoid(now, server, f"its script fails at its start on server {server}: {reason}", Avoidance.START, at_least_s)
    return True


def _is_sound(cluster: Cluster, job: Job, server: ServerId) -> bool:
    """Return whether only `job` and jobs of its kind have failed on `server`, and the controller does not back off from it."""
    health = cluster.servers.health.get(server)
    if health is None:
        return True
    return health.until_s is None and all(doubt.kind == job.kind for doubt in health.doubts.values())


def _has_run_elsewhere(job: Job, server: ServerId) -> bool:
    trained = any(entry.trained and entry.gpu.server != server for entry in (*job.workers, *job.record.past))
    return trained or any(
        entry.gpu.server != server and arrived(job, entry.worker) and not entry.stopping for entry in job.workers
    )


def _fails_elsewhere(cluster: Cluster, job: JobId, server: ServerId) -> bool:
    return any(job in health.doubts for other, health in cluster.servers.health.items() if other != server)
