"""What agents say, taken in: sessions, statuses, ends of workers, lost servers (cluster 2, 4; worker-runtime 4).

Nothing is decided here about rosters: facts change the state and stir the jobs concerned; `reconcile` looks at them in the same
turn. A fact that is told twice changes nothing the second time.
"""

from __future__ import annotations

from ..protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    ForgetWorkers,
    Log,
    LogPiece,
    Refused,
    StopWorker,
    ToControllerFromAgent,
    WorkerExit,
    WorkerReport,
)
from ..protocol.model import Fault, JobId, JobPhase, Resize, ServerId, WorkerId, WorkerPhase, WorkerStatus
from ..protocol.times import STOP_GRACE_S
from .cluster import Cluster, Session
from .ends import add_broken, unknown_there, worker_ended
from .generations import broken_by_report
from .health import worked
from .jobs import Job, WorkerRecord, WorkerState
from .reconcile import leader_address, order_message, send_order, send_start, stop_worker
from .statuses import exit_within_bounds, server_fault, unusable, without_odd_figures

MAX_STRAYS = 4096  # of one server
MAX_SERVERS = 10_000


def on_agent_message(cluster: Cluster, now: float, server: ServerId, message: ToControllerFromAgent) -> None:
    """Take in a message of the agent of `server`."""
    if isinstance(message, AgentHello):
        _on_hello(cluster, now, server, message)
        return
    session = cluster.sessions.get(server)
    if session is None or not session.alive:
        cluster.ask_for_hello(server)  # it has been given up, or this controller has not met it yet
        return
    session.last_heard_s = now
    match message:
        case AgentHeartbeat():
            cluster.send(server, Acknowledged(incarnation=cluster.settings.incarnation, sent=session.sent))
        case WorkerReport(status=status):
            _on_status(cluster, now, session, status)
        case WorkerExit():
            _on_exit(cluster, now, session, exit_within_bounds(message))
            cluster.send(server, ForgetWorkers(workers=(message.worker,)))
        case LogPiece():
            _on_log_piece(cluster, server, message)


# --------------------------------------------------------------------------------------------------------------- sessions


def _on_hello(cluster: Cluster, now: float, server: ServerId, hello: AgentHello) -> None:
    if hello.server.server != server:
        cluster.warn(f"dropped a hello of {hello.server.server!r} over the connection of {server!r}")
        return
    if fault := server_fault(hello.server):
        cluster.warn(f"dropped a hello of {server[:80]!r}: {fault}")
        return
    before = cluster.sessions.get(server)
    if before is None and len(cluster.sessions) >= MAX_SERVERS:
        cluster.warn(f"dropped a hello of {server}: there are {MAX_SERVERS} servers already")
        return
    if before is not None and before.incarnation == hello.incarnation and 0 < hello.number <= before.hello:
        return  # late or doubled: what it tells is not so any more
    session = Session(
        server=hello.server, alive=True, last_heard_s=now, incarnation=hello.incarnation, hello=hello.number
    )
    cluster.sessions[server] = session
    _greet(cluster, now, before, session)
    cluster.send(server, Acknowledged(incarnation=cluster.settings.incarnation, sent=0))
    seen: dict[WorkerId, None] = {}
    for status in hello.workers:
        seen[status.worker] = None
        _on_status(cluster, now, session, status)
    for worker in hello.starting:
        seen[worker] = None
        _on_starting(cluster, session, worker)
    for ended in hello.exited:
        seen[ended.worker] = None
        _on_exit(cluster, now, session, exit_within_bounds(ended))
    if hello.exited:
        cluster.send(server, ForgetWorkers(workers=tuple(ended.worker for ended in hello.exited)))
    _repeat_to(cluster, now, server, seen)


def _greet(cluster: Cluster, now: float, before: Session | None, session: Session) -> None:
    name = session.server.server
    expected = name in cluster.awaited
    cluster.awaited.discard(name)
    if before is None or before.server != session.server:
        cluster.record_server(session)
    if before is None:
        cluster.tell(now, "server-joined", None, f"server {name} joined with {len(session.server.gpus)} GPUs")
    elif not before.alive and not expected:
        cluster.tell(now, "server-back", None, f"server {name} is back")
    if before is None or not before.alive or before.server != session.server:
        cluster.schedule_due = True
    if expected and not cluster.awaited:
        cluster.stir_all()


def _repeat_to(cluster: Cluster, now: float, server: ServerId, seen: dict[WorkerId, None]) -> None:
    """Tell an agent everything anew that concerns its server; what has run there and does not is lost.

    What the hello does not name may have been started since it was said: its GPU is not free before the agent, told to stop
    it, has answered that it does not run.
    """
    for job in cluster.jobs.values():
        here = [entry for entry in job.kept.workers if entry.gpu.server == server]
        order = order_message(job)
        if here and order is not None and not job.final:
            cluster.send(server, order)
        for entry in here:
            if entry.state is WorkerState.ORDERED:
                continue
            if entry.worker in seen:
                if entry.stopping:
                    stop_worker(cluster, now, job, entry.worker)
            elif entry.state is WorkerState.STARTED and not entry.stopping and not job.final:
                send_start(cluster, job, entry)
            else:
                if not entry.stopping:
                    unknown_there(cluster, now, job, entry)
                stop_worker(cluster, now, job, entry.worker)
        if here:
            cluster.stir(job)


def server_lost(cluster: Cluster, now: float, session: Session) -> None:
    """A lease has run out: the server's workers count as lost, its GPUs do not exist."""
    name = session.server.server
    session.alive = False
    session.strays = {}
    cluster.awaited.discard(name)
    cluster.schedule_due = True
    silence_s = now - session.last_heard_s
    cluster.tell(now, "server-lost", None, f"server {name} is lost: not heard of for {silence_s:.0f} s")
    for job in cluster.jobs.values():
        if job.final and not job.kept.workers:
            continue
        job.update(target=tuple(gpu for gpu in job.kept.target if gpu.server != name))
        job.descent = None
        cluster.stir(job)
        for entry in [entry for entry in job.kept.workers if entry.gpu.server == name]:
            if entry.state is WorkerState.ORDERED:
                job.drop_unstarted(entry.worker)
            else:
                worker_ended(cluster, now, job, entry, None, f"server {name} is lost", None, Fault.LOST)


# --------------------------------------------------------------------------------------------------------------- workers


def _find(cluster: Cluster, job: JobId, worker: WorkerId) -> tuple[Job, WorkerRecord] | None:
    found = cluster.jobs.get(job)
    entry = found.worker(worker) if found is not None else None
    return (found, entry) if found is not None and entry is not None else None


def _stop_stray(cluster: Cluster, session: Session, job: JobId, worker: WorkerId) -> None:
    """A process runs that nobody wants (any more): its GPU is not free until it has ended."""
    if worker in session.strays:
        return
    known = cluster.jobs[job].known_worker(worker) if job in cluster.jobs else None
    if len(session.strays) >= MAX_STRAYS:
        cluster.warn(
            f"{session.server.server} reports more than {MAX_STRAYS} processes that nobody knows: {worker} is ignored"
        )
        return
    session.strays[worker] = known.gpu if known is not None else None
    cluster.send(session.server.server, StopWorker(job=job, worker=worker, grace_s=STOP_GRACE_S))


def _on_starting(cluster: Cluster, session: Session, worker: WorkerId) -> None:
    job = JobId(worker.rpartition(".")[0])
    found = _find(cluster, job, worker)
    if found is None:
        _stop_stray(cluster, session, job, worker)
    elif found[1].state is not WorkerState.RUNNING:
        found[0].update_worker(worker, state=WorkerState.RUNNING)
        cluster.stir(found[0])


def _on_status(cluster: Cluster, now: float, session: Session, said: WorkerStatus) -> None:
    if fault := unusable(said):
        cluster.warn(f"dropped a status of {said.worker[:80]!r} on {session.server.server}: {fault}")
        return
    status, odd = without_odd_figures(said)
    found = _find(cluster, status.job, status.worker)
    if found is None:
        _stop_stray(cluster, session, status.job, status.worker)
        return
    job, entry = found
    before = job.statuses.get(status.worker)
    if before is not None and status.sequence <= before.sequence:
        return
    job.statuses[status.worker] = status
    for what in job.newly_odd(odd):
        cluster.tell(now, "odd-figure", job.id, f"{status.worker} reports {what}: it is left out")
    _note_worker(now, job, entry, status)
    if status.phase in (WorkerPhase.READY, WorkerPhase.TRAINING) and entry.gpu.server in cluster.health:
        worked(cluster, entry.gpu.server)
    if not job.final:
        job.note_progress(status)
        job.note_saved(status)
        if job.note_rate(now, status, cluster.settings.measuring.steps):
            cluster.record_throughput(now, job)
            cluster.schedule_due = True
        for resize in job.note_resizes(status):
            cluster.tell(now, "resized", job.id, resize_text(resize))
        _note_commit(cluster, now, job, status)
        _note_broken(job, status)
        newest = job.newest
        if newest is not None and newest.roster.leader == status.worker and leader_address(job) != job.sent_address:
            send_order(cluster, job)
    if before is None or _matters(before) != _matters(status):
        cluster.stir(job)
    else:
        cluster.touch(job)


def _matters(status: WorkerStatus) -> tuple[object, ...]:
    """What of a status can call for a decision."""
    return (status.phase, status.generation, status.order, status.floor, status.applied is None, status.address)


def _note_worker(now: float, job: Job, entry: WorkerRecord, status: WorkerStatus) -> None:
    if entry.joined_s is None:
        job.update_worker(entry.worker, joined_s=now)
    if entry.state is not WorkerState.RUNNING or entry.pid != status.pid:
        job.update_worker(entry.worker, state=WorkerState.RUNNING, pid=status.pid)
    if not entry.trained and status.applied is not None:
        job.update_worker(entry.worker, trained=True)
        job.start_failures = 0
        job.avoided.clear()
        if job.hold_until is None and job.kept.hold_s:
            job.update(hold_s=0.0)


def _note_commit(cluster: Cluster, now: float, job: Job, status: WorkerStatus) -> None:
    order = job.order(status.generation)
    if order is None or order.generation <= job.kept.committed or status.worker not in order.roster.workers:
        return
    job.update(
        committed=order.generation,
        orders=tuple(other for other in job.kept.orders if other.generation >= order.generation),
        progress=job.progress(),
    )
    job.rate_counts_from = -1
    share = len(order.roster.members)
    starts = job.kept.phase is JobPhase.STARTING
    if starts:
        job.enter(JobPhase.RUNNING, now)
    job.change_share(now, share)
    if starts:
        cluster.tell(now, "started", job.id, f"trains on {share} {'GPU' if share == 1 else 'GPUs'}")


def _note_broken(job: Job, status: WorkerStatus) -> None:
    if status.phase is not WorkerPhase.BROKEN:
        return
    add_broken(job, broken_by_report(job, status.worker, status.generation))


def resize_text(resize: Resize) -> str:
    """A measured switch in one line, for people."""
    steps = f"median step {resize.median_step_s * 1000:.0f} ms, then {resize.median_step_after_s * 1000:.0f} ms"
    gap = f"longest gap {resize.longest_gap_s * 1000:.0f} ms ({steps})"
    change = f"{resize.workers_before} -> {resize.workers_after} GPUs at step {resize.step}, {gap}"
    return f"went on after a loss: {change}" if resize.recovery else change


def _on_exit(cluster: Cluster, now: float, session: Session, message: WorkerExit) -> None:
    if session.strays.pop(message.worker, None) is not None:
        cluster.stir_waiting()
    found = _find(cluster, message.job, message.worker)
    if found is not None:
        if message.status is not None and message.status.worker == message.worker:
            _on_status(cluster, now, session, message.status)
        job, entry = found[0], found[0].worker(message.worker) or found[1]
        worker_ended(cluster, now, job, entry, message.exit_code, message.reason, message.phase, message.fault)


# ------------------------------------------------------------------------------------------------------------------ logs


def _on_log_piece(cluster: Cluster, server: ServerId, piece: LogPiece) -> None:
    pending = cluster.pending_logs.get(piece.request)
    if pending is None or pending.server != server:
        return
    del cluster.pending_logs[piece.request]
    if piece.error:
        cluster.answer(pending.client, piece.request, Refused(reason=piece.error))
    else:
        answer = Log(data=piece.data, next_offset=piece.next_offset, end=piece.end)
        cluster.answer(pending.client, piece.request, answer)
