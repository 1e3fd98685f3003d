"""Servers that cannot start workers are left alone for a while, longer each time (cluster 4).

Theory of operation
-------------------
A server with a full disk looks idle: it would take one job after the other, and fail them all. So a start that fails by the
server's fault makes the controller *back off*: until the time is up, the server's free GPUs are not in the scheduler's view, and
what was to start there is placed elsewhere. Workers that run there go on. One worker that comes as far as its training loop
clears the server.

A server whose driver or file system is missing fails the *script*, with an exit code. It is told from a wrong script by
comparison (`script_is_innocent`).

Nothing of it is recorded: a controller that has just started tries each server, and knows soon.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.messages import EventKind
from ...protocol.model import JobId, ServerId
from ...protocol.times import FIRST_SERVER_BACK_OFF_S, LONGEST_SERVER_BACK_OFF_S
from ..cluster import Cluster
from ..jobs.generations import arrived
from ..jobs.job import Avoidance, Job
from ..jobs.records import WorkerRecord, WorkerState
from ..sessions import Doubt, Health

FAILURES_OF_A_JOB = 2  # on one server, of a job that has run elsewhere
JOBS_THAT_FAIL = 3  # on one server, in a row, none of which has failed elsewhere
TRIES_ON_ONE_SERVER = 4  # of a job that gets no other
TRIES_IF_LATE = 1  # of a job that gets no other, where each takes as long as a worker may
TRIES_IN_DOUBT = 7  # of such a job, where the server fails other jobs, too: five minutes with the times between
KEPT_DOUBTS = 16


def start_failed(cluster: Cluster, now: float, server: ServerId, reason: str, suspected: bool = False) -> None:
    """A worker could not be started, or not work, by the fault of `server`."""
    health = cluster.health.setdefault(server, Health())
    health.reason = reason.removeprefix("cannot be started: ")
    if health.until_s is not None:
        return  # one of several that were started together
    back_off_s = min(LONGEST_SERVER_BACK_OFF_S, FIRST_SERVER_BACK_OFF_S * 2.0 ** min(health.failures, 30))
    health.failures += 1
    health.suspected = suspected
    health.until_s = now + back_off_s
    cluster.tell(now, EventKind.SERVER_UNFIT, None, f"{server}: {health.sentence(now)}")
    cluster.schedule_due = True
    for job in cluster.index.on_server(server):
        if not job.final:
            _leave(cluster, job, server)


def _leave(cluster: Cluster, job: Job, server: ServerId) -> None:
    """What `job` has not started on `server` yet is to start elsewhere."""
    kept = tuple(gpu for gpu in job.record.target if gpu.server != server or gpu in job.running_gpus)
    waiting = [e for e in job.record.workers if e.gpu.server == server and e.state is WorkerState.ORDERED]
    if kept == job.record.target and not waiting:
        return
    job.update(target=kept)
    job.profiling = None
    for entry in waiting:
        job.drop_unstarted(entry.worker)
    cluster.mark_dirty(job)


def worked(cluster: Cluster, server: ServerId) -> None:
    """A worker has come as far as its training loop on `server`."""
    health = cluster.health.pop(server, None)
    if health is not None and health.until_s is not None:
        cluster.schedule_due = True


def pass_time(cluster: Cluster, now: float) -> None:
    """Servers whose time is up may be tried again."""
    for health in cluster.health.values():
        if health.until_s is not None and now >= health.until_s:
            health.until_s = None
            cluster.schedule_due = True


def deadlines(cluster: Cluster) -> Iterator[float]:
    """When `pass_time` has something to do."""
    for health in cluster.health.values():
        if health.until_s is not None:
            yield health.until_s


def troubles(cluster: Cluster, now: float) -> str:
    """Which servers are left alone, and why, in words."""
    sentences = [
        f"{server}: {cluster.health[server].sentence(now)}"
        for server in sorted(cluster.health)
        if cluster.health[server].until_s is not None
    ]
    return "; ".join(sentences)


# ------------------------------------------------------------------------------------------- is it the script or the server?


def script_is_innocent(cluster: Cluster, now: float, job: Job, entry: WorkerRecord, reason: str) -> bool:
    """A worker has ended with the script's exit code before it trained: is its server to blame? Then the server backs off.

    It is where the same job's workers come as far as their loop on other servers, for the second time (at once, if the job has
    never trained: it would fail for good), or where several jobs in a row have failed so which have not failed elsewhere.
    A server that is the only one is never to blame: there would be nothing to compare it with.
    """
    server = entry.gpu.server
    health = cluster.health.setdefault(server, Health())
    before = health.doubts.pop(job.id, None)
    health.doubts[job.id] = Doubt((before.times if before is not None else 0) + 1, job.kind)
    while len(health.doubts) > KEPT_DOUBTS:
        del health.doubts[next(iter(health.doubts))]
    if not any(session.alive and other != server and cluster.fit(other) for other, session in cluster.sessions.items()):
        return False
    enough = FAILURES_OF_A_JOB if job.record.progressed else 1
    comparable = _has_run_elsewhere(job, server) and health.doubts[job.id].times >= enough
    unlike = [name for name in health.doubts if not _fails_elsewhere(cluster, name, server)]
    if not comparable and not (job.id in unlike and len(unlike) >= JOBS_THAT_FAIL):
        return False
    start_failed(cluster, now, server, reason, suspected=True)
    return True


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
    trained = any(entry.trained and entry.gpu.server != server for entry in (*job.record.workers, *job.record.past))
    return trained or any(
        entry.gpu.server != server and arrived(job, entry.worker) and not entry.stopping for entry in job.record.workers
    )


def _fails_elsewhere(cluster: Cluster, job: JobId, server: ServerId) -> bool:
    return any(job in health.doubts for other, health in cluster.health.items() if other != server)
