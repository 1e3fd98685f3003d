"""Servers and GPUs that cannot start workers are left alone for a while, longer each time (cluster 4).

Theory of operation
-------------------
A server with a full disk looks idle: it would take one job after the other, and fail them all. So a start that fails by the
server's fault makes the controller *back off*: until the time is up, the server's free GPUs are not in the scheduler's view, and
what was to start there is placed elsewhere. Workers that run there go on. One worker that comes as far as its training loop
clears the server.

A server whose driver or file system is missing fails the *script*, with an exit code. It is told from a wrong script by
comparison (`script_is_innocent`). So is a single GPU that cannot be used, where others of its server work: then that GPU alone is
left alone, as with a trouble that its agent tells (`bars`). If a second one fails like that meanwhile, it is the server.

Nothing of it is recorded: a controller that has just started tries each server, and knows soon.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, JobId, ServerId, WorkerId
from ...protocol.times import FIRST_SERVER_BACK_OFF_S, LONGEST_SERVER_BACK_OFF_S
from ...scheduler.view import Use
from ..bars import Bar, sentences
from ..cluster import Cluster
from ..jobs.generations import arrived
from ..jobs.job import Avoidance, Job
from ..jobs.records import WorkerRecord, WorkerState
from ..loans import use_of
from ..sessions import Doubt, Health
from .barring import weigh

FAILURES_OF_A_JOB = 2  # on one server, of a job that has run elsewhere
JOBS_THAT_FAIL = 3  # on one server, in a row, none of which has failed elsewhere
JOBS_THAT_FAIL_ON_GPU = 2  # on one GPU, likewise, while other GPUs of its server work
TRIES_ON_ONE_SERVER = 4  # of a job that gets no other
TRIES_IF_LATE = 1  # of a job that gets no other, where each takes as long as a worker may
TRIES_IN_DOUBT = 7  # of such a job, where the server fails other jobs, too: five minutes with the times between
OWNERS_THAT_AGREE = 2  # of such jobs, where more than one has jobs that are not over
KEPT_DOUBTS = 16
DIVERGED_BACK_OFF_S = 60.0  # of a GPU where a worker has come to differ from the others of its job
SERVERS_TOLD = 8
LONGEST_TOLD = 1000  # characters, of one of them


def start_failed(cluster: Cluster, now: float, server: ServerId, reason: str, suspected: bool = False) -> None:
    """A worker could not be started, or not work, by the fault of `server`."""
    health = cluster.health.setdefault(server, Health())
    health.reason = reason.removeprefix("cannot be started: ")
    if health.until_s is not None:
        return  # one of several that were started together
    _back_off(now, health, suspected)
    cluster.tell(now, EventKind.SERVER_UNFIT, None, f"{server}: {health.sentence(now)}")
    cluster.schedule_due = True
    for job in cluster.index.on_server(server):
        if not job.final:
            _leave(cluster, now, job, server)


def _back_off(now: float, health: Health, suspected: bool, first_s: float = FIRST_SERVER_BACK_OFF_S) -> None:
    back_off_s = min(LONGEST_SERVER_BACK_OFF_S, first_s * 2.0 ** min(health.failures, 30))
    health.failures += 1
    health.suspected = suspected
    health.until_s = now + back_off_s


def diverged(cluster: Cluster, now: float, gpu: GpuAddress, worker: WorkerId) -> None:
    """The state of `worker` has come to differ from that of the others, which agree: its GPU may be faulty."""
    health = cluster.gpu_health.setdefault(gpu, Health())
    health.reason = f"the state of {worker} there came to differ from that of the other workers"
    if health.until_s is None:
        _back_off(now, health, suspected=False, first_s=DIVERGED_BACK_OFF_S)
        weigh(cluster, now, gpu.server)


def _leave(cluster: Cluster, now: float, job: Job, server: ServerId) -> None:
    """What `job` has not started on `server` yet is to start elsewhere."""
    kept = tuple(gpu for gpu in job.record.target if gpu.server != server or gpu in job.running_gpus)
    waiting = [e for e in job.workers if e.gpu.server == server and e.state is WorkerState.ORDERED]
    if kept == job.record.target and not waiting:
        return
    job.aim(now, kept, f"nothing new is started on server {server}")
    job.profiling = None
    for entry in waiting:
        job.drop_unstarted(entry.worker)
    cluster.mark_dirty(job)


def worked(cluster: Cluster, now: float, gpu: GpuAddress) -> None:
    """A worker has come as far as its training loop on `gpu`."""
    health = cluster.health.pop(gpu.server, None)
    if health is not None and health.until_s is not None:
        cluster.schedule_due = True
    if cluster.gpu_health.pop(gpu, None) is not None:
        weigh(cluster, now, gpu.server)


def forgive(cluster: Cluster, now: float, server: ServerId, gpus: Iterable[GpuAddress]) -> None:
    """An operator wants `server`, or these GPUs of it, to be tried again at once."""
    for gpu in gpus:
        cluster.gpu_health.pop(gpu, None)
    if cluster.health.pop(server, None) is not None:
        cluster.schedule_due = True
    weigh(cluster, now, server)


def pass_time(cluster: Cluster, now: float) -> None:
    """Servers whose time is up may be tried again."""
    for health in cluster.health.values():
        if health.until_s is not None and now >= health.until_s:
            health.until_s = None
            cluster.schedule_due = True
    for gpu, health in cluster.gpu_health.items():
        if health.until_s is not None and now >= health.until_s:
            health.until_s = None
            weigh(cluster, now, gpu.server)


def deadlines(cluster: Cluster) -> Iterator[float]:
    """When `pass_time` has something to do."""
    for health in chain(cluster.health.values(), cluster.gpu_health.values()):
        if health.until_s is not None:
            yield health.until_s


def troubles(cluster: Cluster, now: float) -> str:
    """Which servers and GPUs take no new work, and why, in words; of many the first. Of what is lent the reasons of jobs tell."""
    found = {server for server, health in cluster.health.items() if health.until_s is not None}
    for server in (*cluster.barred, *cluster.offers_nothing):
        if (
            server in cluster.sessions
            and cluster.sessions[server].alive
            and (server in cluster.offers_nothing or _barred(cluster, server))
        ):
            found.add(server)
    told = [
        f"{server}: {_told(cluster, now, server)[:LONGEST_TOLD]}" for server in heapq.nsmallest(SERVERS_TOLD, found)
    ]
    more = [f"and {len(found) - SERVERS_TOLD} more servers"] if len(found) > SERVERS_TOLD else []
    return "; ".join([*told, *more])


def _told(cluster: Cluster, now: float, server: ServerId) -> str:
    """Why `server`, or some of its GPUs, take no new work."""
    health = cluster.health.get(server)
    if health is not None and health.until_s is not None:
        return health.sentence(now)
    if server in cluster.barred:
        return "; ".join(sentences(len(cluster.sessions[server].server.gpus), _barred(cluster, server)))
    return f"it offers nothing: {cluster.offers_nothing[server]}"


def _barred(cluster: Cluster, server: ServerId) -> dict[int, Bar]:
    """GPUs of a server that take no new work, but for those that are only lent."""
    return {
        index: bar
        for index, bar in cluster.barred.get(server, {}).items()
        if bar.fault is not None or use_of(cluster, GpuAddress(server=server, index=index)) is Use.BARRED
    }


# ------------------------------------------------------------------------------------------- is it the script or the server?


def script_is_innocent(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> bool:
    """A worker has ended with the script's exit code before it trained: is its server to blame? Then the server backs off.

    It is where the same job's workers come as far as their loop on other servers, for the second time (at once, if the job has
    never trained: it would fail for good), or where several jobs in a row have failed so, of several
    owners (`_agree`), which have not failed elsewhere.
    A server that is the only one is never to blame: there would be nothing to compare it with.
    """
    server = entry.gpu.server
    if _gpu_is_to_blame(cluster, now, job, entry, reason):
        return True
    health = cluster.health.setdefault(server, Health())
    _doubt(health, job)
    if not any(session.alive and other != server and cluster.fit(other) for other, session in cluster.sessions.items()):
        return False
    enough = FAILURES_OF_A_JOB if job.record.progressed else 1
    comparable = _has_run_elsewhere(job, server) and health.doubts[job.id].times >= enough
    unlike = [name for name in health.doubts if not _fails_elsewhere(cluster, name, server)]
    if not comparable and not (job.id in unlike and _agree(cluster, health, unlike, JOBS_THAT_FAIL)):
        return False
    start_failed(cluster, now, server, reason, suspected=True)
    return True


def _agree(cluster: Cluster, health: Health, jobs: Sequence[JobId], enough: int) -> bool:
    """Have so many jobs failed there, and of more than one owner? One user's scripts alone take no GPUs from other users; where
    nobody else has jobs, they take them from nobody."""
    owners = {health.doubts[job].owner for job in jobs}
    return len(jobs) >= enough and (len(owners) >= OWNERS_THAT_AGREE or not cluster.index.others_than(owners))


def _doubt(health: Health, job: Job) -> None:
    before = health.doubts.pop(job.id, None)
    health.doubts[job.id] = Doubt((before.times if before is not None else 0) + 1, job.kind, job.submission.owner)
    while len(health.doubts) > KEPT_DOUBTS:
        del health.doubts[next(iter(health.doubts))]


def _gpu_is_to_blame(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> bool:
    """Is it this GPU alone? It then backs off.

    It is where other GPUs of its server work, and either this job, which has never trained, has come as far as its loop on one
    of them, or jobs in a row, of several owners (`_agree`), have failed here which have failed on no other GPU. If another GPU of
    the server has been left alone for that already, it is rather the server. A job that has trained, and whose newcomers
    fail, does not grow (`ends`).

    A job alone takes no GPU from other users: a script may fail by its rank, or on purpose. Where others have jobs, it leaves the
    GPU to them, is tried on other GPUs, and fails for good if it has failed on this one again and again.
    """
    if entry.gpus:  # it has several, and nobody knows which
        return False
    gpu = entry.gpu
    health = cluster.gpu_health.setdefault(gpu, Health())
    _doubt(health, job)
    health.reason = reason
    if health.until_s is not None:
        return True  # one of several that were started together
    beside = {job.id for job, _ in _at_work(cluster, gpu)}
    if not beside or any(
        other.server == gpu.server and other != gpu and known.until_s is not None
        for other, known in cluster.gpu_health.items()
    ):
        return False
    comparable = job.id in beside and not job.record.progressed
    unlike = [name for name in health.doubts if not _fails_on_another(cluster, name, gpu)]
    agreed = job.id in unlike and _agree(cluster, health, unlike, JOBS_THAT_FAIL_ON_GPU)
    if comparable and not agreed and cluster.index.others_than({job.submission.owner}):
        before = job.avoided_gpus.get(gpu)
        if before is not None and before.until_s is None and before.failures >= TRIES_ON_ONE_SERVER:
            return False
        job.avoid_gpu(now, gpu, f"its script fails at its start on {gpu}: {reason}")
        cluster.schedule_due = True
        return True
    if not comparable and not agreed:
        return False
    _back_off(now, health, suspected=True)
    health.reason = f"workers fail at their start there, while other GPUs of the server work: {reason}"
    weigh(cluster, now, gpu.server)
    return True


def _at_work(cluster: Cluster, gpu: GpuAddress) -> Iterator[tuple[Job, WorkerRecord]]:
    """Workers on the other GPUs of its server that have come as far as their loop."""
    for job in cluster.index.on_server(gpu.server):
        for entry in job.workers:
            beside = entry.gpu.server == gpu.server and entry.gpu != gpu and not entry.stopping
            if beside and arrived(job, entry.worker):
                yield job, entry


def _fails_on_another(cluster: Cluster, job: JobId, gpu: GpuAddress) -> bool:
    return any(job in health.doubts for other, health in cluster.gpu_health.items() if other != gpu)


def second_opinion(
    cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str, late: bool = False
) -> bool:
    """The script has failed before its first step, and nobody has the state. Is the job to be tried elsewhere first?

    Not where it has failed on two sound servers, or again and again on the only one that it gets, or where there is only one.
    What a server says that fails jobs of other kinds, too, counts only in the end: else two such servers would fail every job.
    late: the script has taken longer than it may, and will again: it is tried once on one other server, whatever that says.
    """
    server = entry.gpu.server
    if len(cluster.sessions) < 2:
        return False
    sound = late or _is_sound(cluster, job, server)
    others = [other for other, avoided in job.avoided.items() if avoided.extent is Avoidance.START and other != server]
    if sound and any(late or _is_sound(cluster, job, other) for other in others):
        return False
    before = job.avoided.get(server)
    tries = TRIES_IF_LATE if late else TRIES_ON_ONE_SERVER if sound else TRIES_IN_DOUBT
    tried = before is not None and before.extent is Avoidance.START and before.until_s is None
    if before is not None and tried and before.failures >= tries:
        return False
    # Another server may come free in the time that this one was given, and not in the first few seconds.
    at_least_s = now - entry.started_s if late and entry.started_s is not None else 0.0
    job.avoid(now, server, f"its script fails at its start on server {server}: {reason}", Avoidance.START, at_least_s)
    cluster.schedule_due = True
    return True


def _is_sound(cluster: Cluster, job: Job, server: ServerId) -> bool:
    """Does nothing speak against `server` but what has become of `job`, and others of its kind, there?"""
    health = cluster.health.get(server)
    if health is None:
        return True
    return health.until_s is None and all(doubt.kind == job.kind for doubt in health.doubts.values())


def _has_run_elsewhere(job: Job, server: ServerId) -> bool:
    trained = any(entry.trained and entry.gpu.server != server for entry in (*job.workers, *job.record.past))
    return trained or any(
        entry.gpu.server != server and arrived(job, entry.worker) and not entry.stopping for entry in job.workers
    )


def _fails_elsewhere(cluster: Cluster, job: JobId, server: ServerId) -> bool:
    return any(job in health.doubts for other, health in cluster.health.items() if other != server)
