"""Handle messages of agents: sessions, statuses, ends of workers and lost servers.

This module makes no decisions about rosters. A message changes the state and marks the affected jobs as dirty;
`reconcile` examines these in the same turn. All handlers are idempotent: a repeated message changes nothing.
"""

from __future__ import annotations

from ...protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    CommandOutput,
    EventKind,
    ExecOutput,
    ForgetWorkers,
    LocalWorker,
    Log,
    LogPiece,
    ReadSnapshot,
    Refused,
    StopWorker,
    ToControllerFromAgent,
    WorkerExit,
    WorkerReport,
    WorkerUse,
)
from ...protocol.model import (
    Fault,
    GpuAddress,
    JobId,
    JobPhase,
    Resize,
    ServerId,
    Straggler,
    WorkerId,
    WorkerPhase,
    WorkerStatus,
)
from ...protocol.texts import gpu_count
from ...protocol.times import STOP_GRACE_S, paced_interval_s
from .. import accounting
from ..cluster import Cluster
from ..events import AgentMessage
from ..jobs.batches import factor_of, grow, note_changes
from ..jobs.generations import broken_by_report, cut_off, stalled_s, unconnected
from ..jobs.job import Job
from ..jobs.records import OrderKind, WorkerRecord, WorkerState
from ..jobs.type_speeds import learned
from ..reconcile.gangs import note_running, wait_for_server
from ..reconcile.health import worked
from ..reconcile.idle import note_use
from ..reconcile.orders import leader_address, order_message, send_order
from ..reconcile.processes import may_start, send_start, stop_worker
from ..reconcile.saving import suspend
from ..reconcile.slow_findings import judge_left, lift_causes
from ..reconcile.snapshot import fewest
from ..reconcile.tainted import refresh_taints
from ..sessions import Orphan, Session
from ..taints import within_bounds
from . import snapshots
from .foreign import is_foreign, on_message, present, receive, report_unknown, unknown_ended
from .forgery import fault_of, may_be_ahead, note_meeting, refuse, refuse_report
from .joining import refuse_older, refused, stale
from .later_terms import heard_of_term
from .restored import ahead, bring_forward, note_age
from .statuses import (
    MAX_NAME,
    MAX_PATH,
    end_fault,
    exit_within_bounds,
    hello_fault,
    sensible,
    sensible_use,
    unusable,
    without_odd_figures,
)
from .worker_ends import add_broken, unknown_there, worker_ended

MAX_ORPHANS = 4096  # most orphans per server
MAX_SERVERS = 10_000
NOWHERE = -1  # GPU index of a worker in reports of agents of earlier versions, which do not send it


def on_agent_message(
    cluster: Cluster, now: float, server: ServerId, message: ToControllerFromAgent, agent: str = ""
) -> None:
    """Handle a message from an agent of `server` with the identity `agent`."""
    if isinstance(message, AgentHello):
        _on_hello(cluster, now, server, message, agent)
        return
    if isinstance(message, WorkerExit) and (fault := end_fault(message)):
        cluster.warn(f"dropped the end of a worker: {fault}", server=server[:MAX_NAME], job=message.job[:MAX_NAME])
        return
    foreign = present(cluster, now, server)
    if foreign is not None and foreign.agent == agent:
        on_message(cluster, now, foreign, message)
        return
    session = cluster.servers.sessions.get(server)
    if session is None or not session.alive or session.agent != agent:
        cluster.servers.ask_for_hello(
            server, agent
        )  # the session was given up, or this controller has not met the agent yet
        return
    cluster.servers.heard_of(now, session)
    match message:
        case AgentHeartbeat(starting=starting, reports=reports, troubles=troubles, clock_s=clock_s, use=uses):
            session.clock.heard(now, clock_s)
            if troubles is not None and troubles != session.troubles:
                session.has_troubles(within_bounds(session.server, troubles))
                refresh_taints(cluster, now, server)
                lift_causes(cluster, now, server)
            for worker in starting:
                _on_running(cluster, now, session, worker)
            for report in reports:
                _on_status(cluster, now, session, report.status, report.uid)
            for told in uses:
                _on_use(cluster, now, session, told)
            for stop in session.stops_due(now):
                cluster.servers.send(server, stop)
            cluster.servers.send(server, _acknowledged(cluster, session, session.sent))
        case WorkerReport(status=status, uid=uid):
            _on_status(cluster, now, session, status, uid)
        case WorkerExit():
            _on_exit(cluster, now, session, exit_within_bounds(message))
            _forget(cluster, server, (message,))
        case LogPiece() | CommandOutput():
            _on_piece(cluster, now, server, message)
        case ReadSnapshot():
            snapshots.read(cluster, server, AgentMessage(server, message, agent), message)


# --------------------------------------------------------------------------------------------------------------- sessions


def _on_hello(cluster: Cluster, now: float, server: ServerId, hello: AgentHello, agent: str) -> None:
    if hello.server.server != server or hello.agent != agent:
        if server in cluster.servers.sessions:
            refuse(cluster, now, server, f"all those of {hello.server.server[:MAX_NAME]!r}")
        return
    if fault := hello_fault(hello):
        cluster.warn(f"dropped a hello of {server[:80]!r}: {fault}", server=server[:MAX_NAME])
        return
    before = cluster.servers.sessions.get(server)
    if (
        before is None
        and server not in cluster.servers.foreign
        and len(cluster.servers.sessions) + len(cluster.servers.foreign) >= MAX_SERVERS
    ):
        cluster.warn(f"dropped a hello of {server}: there are {MAX_SERVERS} servers already")
        return
    if not heard_of_term(cluster, now, server, hello):
        return
    if stale(before, hello) or stale(cluster.servers.foreign.get(server), hello):
        refuse_older(cluster, now, server, hello)
        return
    if refused(cluster, now, server, hello):
        return
    if server not in cluster.servers.met:
        note_age(cluster, now, hello)
    note_meeting(cluster, server, hello)
    if is_foreign(cluster, hello):
        receive(cluster, now, hello)
        return
    cluster.servers.drop_foreign(server)
    cluster.servers.record_removal(server, None)
    session = Session(
        server=hello.server,
        alive=True,
        last_heard_s=now,
        incarnation=hello.incarnation,
        agent=agent,
        start=hello.start,
        hello=hello.number,
        places={local.worker: local for local in hello.processes},
        troubles=within_bounds(hello.server, hello.troubles),
    )
    session.clock.heard(now, hello.clock_s)
    cluster.servers.put_session(session)
    cluster.servers.heard_of(now, session)
    refresh_taints(cluster, now, server)
    _greet(cluster, now, before, session)
    cluster.servers.send(server, _acknowledged(cluster, session, 0))
    _take_in(cluster, now, session, hello)
    report_unknown(cluster, now, before, session)


def _take_in(cluster: Cluster, now: float, session: Session, hello: AgentHello) -> None:
    """Compare the workers of an agent's hello with those that the jobs' records expect on its server."""
    server = session.server.server
    seen: dict[WorkerId, None] = {}
    for worker in hello.starting:
        if _on_starting(cluster, now, session, worker):
            seen[worker] = None
    for status in hello.workers:
        if _on_status(cluster, now, session, status, session.uid(status.worker)):
            seen[status.worker] = None
    for ended in hello.exited:
        if _on_exit(cluster, now, session, exit_within_bounds(ended)):
            seen[ended.worker] = None
    if hello.exited:
        _forget(cluster, server, hello.exited)
    _repeat_to(cluster, now, server, seen)


def _acknowledged(cluster: Cluster, session: Session, sent: int) -> Acknowledged:
    return Acknowledged(
        incarnation=cluster.settings.incarnation,
        sent=sent,
        cluster=cluster.id,
        newest_event=cluster.history.next_number - 1,
        session=session.name,
        heartbeat_interval_s=paced_interval_s(len(cluster.servers.sessions), cluster.settings.server_lease_s),
    )


def _forget(cluster: Cluster, server: ServerId, ends: tuple[WorkerExit, ...]) -> None:
    workers, uids = tuple(ended.worker for ended in ends), {ended.worker: ended.uid for ended in ends}
    cluster.servers.send(server, ForgetWorkers(workers=workers, uids=uids))


def _greet(cluster: Cluster, now: float, before: Session | None, session: Session) -> None:
    name = session.server.server
    expected = cluster.servers.greet(name)
    if before is None or (before.server, before.agent) != (session.server, session.agent):
        cluster.servers.record(session)
    if before is None:
        cluster.history.add(
            now, EventKind.SERVER_JOINED, None, f"server {name} joined with {gpu_count(len(session.server.gpus))}"
        )
    elif not before.alive and not expected:
        cluster.history.add(now, EventKind.SERVER_BACK, None, f"server {name} is back")
    if expected and not cluster.servers.awaited:
        cluster.jobs.mark_all_dirty()


def _repeat_to(cluster: Cluster, now: float, server: ServerId, seen: dict[WorkerId, None]) -> None:
    """Send an agent everything again that concerns its server, and give up workers that the agent does not have.

    A worker that the hello does not name may have been started after the hello was written. So its GPU is not free
    before the agent has answered the stop request.
    """
    for job in cluster.jobs.index.on_server(server):
        job.end_wait_for_server(server)
        here = [entry for entry in job.workers if entry.gpu.server == server]
        if job.record.overtaken:  # the record is outdated, and the job's workers are about to be stopped
            for entry in here:
                if entry.stopping and entry.worker not in seen:  # a stop was sent before, and the worker may be gone
                    stop_worker(cluster, now, job, entry.worker)
            continue
        order = order_message(job)
        if here and order is not None and not job.final and not job.follow_newest(here):
            cluster.servers.send(server, order)
        for entry in here:
            if entry.state is WorkerState.ORDERED:
                continue
            if entry.worker in seen:
                if entry.stopping:
                    stop_worker(cluster, now, job, entry.worker)
            elif entry.state is WorkerState.STARTED and may_start(cluster, job, entry):
                send_start(cluster, job, entry)
            else:
                if not entry.stopping:
                    unknown_there(cluster, now, job, entry)
                stop_worker(cluster, now, job, entry.worker)
        if here:
            cluster.jobs.mark_dirty(job)


def server_lost(cluster: Cluster, now: float, session: Session) -> None:
    """Handle the end of a server's lease: its workers are lost, and its GPUs are not available any more."""
    name = session.server.server
    cluster.servers.lose(session)
    silence_s = now - session.last_heard_s
    cluster.history.add(now, EventKind.SERVER_LOST, None, f"server {name} is lost: not heard of for {silence_s:.0f} s")
    for job in cluster.jobs.index.on_server(name):
        if wait_for_server(cluster, now, job, name):
            continue
        job.set_target(now, tuple(gpu for gpu in job.record.target if gpu.server != name), f"server {name} is lost")
        cluster.jobs.mark_dirty(job)
        for entry in [entry for entry in job.workers if entry.gpu.server == name]:
            if entry.state is WorkerState.ORDERED:
                job.drop_unstarted(entry.worker)
            else:
                worker_ended(cluster, now, job, entry, None, f"server {name} is lost", None, Fault.LOST)
        if not (job.elastic or job.final or job.restart_counted or job.record.target or job.workers):
            suspend(cluster, now, job)  # a gang that has not begun waits again, for any GPUs


# --------------------------------------------------------------------------------------------------------------- workers


def _find(
    cluster: Cluster, session: Session, job: JobId, worker: WorkerId, uid: str
) -> tuple[Job, WorkerRecord] | None:
    """Return the job and the worker if the record says that the worker runs on this server; else None."""
    found = cluster.jobs.get(job)
    entry = found.worker(worker) if found is not None and found.has_uid(uid) else None
    here = entry is not None and entry.gpu.server == session.server.server
    return (found, entry) if found is not None and entry is not None and here else None


def _unwanted(
    cluster: Cluster, now: float, session: Session, job: JobId, worker: WorkerId, uid: str, status: WorkerStatus | None
) -> bool:
    """Handle a process that the record lacks or that is ahead of it; return whether the job can use the process.

    A process of a known job that is ahead of the record brings the record forward. Any other process is stopped; that
    of an unknown job is noted.
    """
    local = session.places.get(worker, LocalWorker(worker=worker, job=job, uid=uid, gpu=NOWHERE))
    known = cluster.jobs.get(job)
    if fault := fault_of(cluster, session, job, worker, local.uid, status):
        refuse_report(cluster, now, session.server.server, job, fault)
        if worker not in session.places:
            return False  # if the process is among the places, it holds a GPU and is handled below
    if known is None and (over := cluster.jobs.archive.find(job)) is not None and over.has_uid(local.uid):
        _stop_orphan(cluster, now, session, over.job, None, local)
        return False
    if known is None or not known.has_uid(local.uid):
        if len(session.unknown) < MAX_ORPHANS:
            session.runs_unknown(local)
        return False
    entry, here = known.worker(worker), GpuAddress(server=session.server.server, index=local.gpu)
    gpu = entry.gpu if entry is not None else here
    believed = (
        gpu.server == here.server and gpu.index != NOWHERE and may_be_ahead(cluster, session, known, worker, local.uid)
    )
    if believed and ahead(known, worker, status):
        bring_forward(cluster, now, known, worker, gpu, status, local.gpus)
        return True
    _stop_orphan(cluster, now, session, known.id, known.known_worker(worker), local)
    return False


def _stop_orphan(
    cluster: Cluster, now: float, session: Session, job: JobId, known: WorkerRecord | None, local: LocalWorker
) -> None:
    """Stop a process that no job needs. `known`: the worker's record.

    The GPU is not free until the process has ended.
    """
    worker = local.worker
    if worker in session.orphans:
        return
    if len(session.orphans) >= MAX_ORPHANS:
        text = f"it reports more than {MAX_ORPHANS} processes that nobody knows: {worker} is ignored"
        cluster.warn(text, server=session.server.server, job=job)
        return
    server = session.server.server
    gpus = tuple(GpuAddress(server=server, index=index) for index in local.all_gpus if index != NOWHERE)
    stop = StopWorker(job=job, worker=worker, grace_s=STOP_GRACE_S, uid=local.uid)
    session.stop_orphan(now, worker, Orphan(gpus or (known.all_gpus if known is not None else ()), stop))
    cluster.servers.send(server, stop)


def _on_starting(cluster: Cluster, now: float, session: Session, worker: WorkerId) -> bool:
    """Handle a worker that runs and has not reported yet; return whether it should run."""
    job = JobId(worker.rpartition(".")[0])
    found = _find(cluster, session, job, worker, session.uid(worker))
    if found is None:
        return _unwanted(cluster, now, session, job, worker, session.uid(worker), None)
    if found[1].state is not WorkerState.RUNNING:
        found[0].update_worker(worker, state=WorkerState.RUNNING)
        cluster.jobs.mark_dirty(found[0])
    return True


def _on_running(cluster: Cluster, now: float, session: Session, worker: WorkerId) -> None:
    """Note that a worker's process runs and has not reported yet. Its time to join starts now."""
    job, uid = JobId(worker.rpartition(".")[0]), session.uid(worker)
    found = _find(cluster, session, job, worker, uid)
    if found is None and (fault := fault_of(cluster, session, job, worker, uid, None)):
        refuse_report(cluster, now, session.server.server, job, fault)
    if found is not None and found[1].started_s is None:
        found[0].update_worker(worker, state=WorkerState.RUNNING, started_s=now)
        cluster.jobs.mark_dirty(found[0])
        note_running(cluster, now, found[0])


def _on_status(cluster: Cluster, now: float, session: Session, said: WorkerStatus, uid: str) -> bool:
    """Handle a worker's status; return whether the worker should run."""
    if _goes_on(cluster, session, said, uid):
        return True
    if fault := unusable(said):
        text = f"dropped a status of {said.worker[:80]!r}: {fault}"
        cluster.warn(text, server=session.server.server, job=said.job[:MAX_NAME])
        return True
    status, odd = without_odd_figures(said)
    found = _find(cluster, session, status.job, status.worker, uid)
    if found is None or ahead(found[0], status.worker, status):
        if not _unwanted(cluster, now, session, status.job, status.worker, uid, status):
            return False
        found = _find(cluster, session, status.job, status.worker, uid)
    if found is not None:
        _note_status(cluster, now, found, status, odd)
    return True


def _on_use(cluster: Cluster, now: float, session: Session, report: WorkerUse) -> None:
    """Handle a report of what a worker has used. A worker that no job knows is
    handled by its other reports."""
    found = _find(cluster, session, JobId(report.worker.rpartition(".")[0]), report.worker, report.uid)
    if found is not None and sensible_use(report):
        note_use(cluster, now, found[0], report)


def _goes_on(cluster: Cluster, session: Session, status: WorkerStatus, uid: str) -> bool:
    """Take over a status that only reports progress in the committed generation; return False for any other status.

    Most statuses are of this kind.
    """
    job = cluster.jobs.get(status.job)
    before = job.statuses.get(status.worker) if job is not None and job.has_uid(uid) else None
    if job is None or before is None or status.applied is None or status.applied >= job.reported.rate_counts_from:
        return False
    if job.spec.until is not None:  # a report of the metric that ends the training may change the job's length
        return False
    newest, entry = job.newest, job.worker(status.worker)
    if (
        newest is None
        or newest.kind is OrderKind.UNION
        or not newest.generation == job.record.committed == status.generation
        or job.record.overtaken
    ):
        return False
    if entry is None or not entry.trained or entry.stopping or entry.gpu.server != session.server.server:
        return False
    if (
        status.waits_s
        or entry.gpu.server in cluster.servers.health
        or entry.gpu in cluster.servers.gpu_health
        or not sensible(status)
    ):
        return False
    if status.sequence <= before.sequence or _besides_progress(status) != _besides_progress(before):
        return False
    job.put_status(status)
    if new := job.note_progress(status):
        cluster.history.tallies.stepped(new)
    cluster.jobs.rows.moved(job)
    return True


def _besides_progress(status: WorkerStatus) -> tuple[object, ...]:
    """Return the part of a status that stays the same while only the progress and the rate change."""
    return (
        status.phase,
        status.generation,
        status.order,
        status.floor,
        status.pid,
        status.saved,
        status.saved_generation,
        status.save_failures,
        status.waits_s,
        status.unconnected_s,
        status.address,
        status.unheard,
        status.resizes,
        status.news,
        status.batch_changes,
        status.batch_ceiling,
        status.paces,
        status.stragglers,
        status.hardware_agnostic,
        status.applied is None,
    )


def _costly(status: WorkerStatus | None) -> list[Straggler]:
    """Return the workers in a leader's status that cost so much that the job may leave their GPUs (`reconcile.slow_gpus`)."""
    return [each for each in status.stragglers if each.kept < 1.0] if status is not None else []


def _note_paces(cluster: Cluster, job: Job, status: WorkerStatus) -> None:
    """Learn from the leader's status how fast the job's GPU types are for it."""
    order = job.committed_order
    if order is None or not (status.paces or job.record.paces) or status.worker != order.roster.leader:
        return
    if status.generation != job.record.committed or status.phase is not WorkerPhase.TRAINING:
        return
    types = {member.worker: cluster.servers.gpu_name(member.gpu) for member in order.roster.members}
    found = learned(job.record.paces, types, status.paces)
    if "" not in types.values() and found != job.record.paces:
        job.update(paces=found)


def _note_status(
    cluster: Cluster, now: float, found: tuple[Job, WorkerRecord], status: WorkerStatus, odd: tuple[str, ...]
) -> None:
    job, entry = found
    before = job.statuses.get(status.worker)
    if before is not None and status.sequence <= before.sequence:
        return
    job.put_status(status)
    if not job.record.joined and not job.final:
        job.update(joined=True)  # policies include the job in their decisions from now on
    if status.hardware_agnostic not in (None, job.record.hardware_agnostic) and not job.final:
        job.update(hardware_agnostic=status.hardware_agnostic)  # such a job may use GPUs of several types
        cluster.planning.request()
    if status.news and (before is None or before.news != status.news):
        cluster.history.add(now, EventKind.TOLD, job.id, f"{status.worker} on {entry.gpu}: {status.news}")
    for what in job.reported.newly_odd(odd):
        cluster.history.add(
            now, EventKind.ODD_FIGURE, job.id, f"{status.worker} reports {what}, which cannot be reckoned with"
        )
    _note_worker(now, job, entry, status)
    # Only a worker that has just arrived shows that starts succeed on its server now.
    arrives = before is None or before.phase is WorkerPhase.STARTING
    concerned = entry.gpu.server in cluster.servers.health or entry.gpu in cluster.servers.gpu_health
    if arrives and status.phase in (WorkerPhase.READY, WorkerPhase.TRAINING) and concerned:
        worked(cluster, now, entry.gpu)
    if not job.final:
        cluster.history.tallies.stepped(job.note_progress(status))
        if news := note_changes(job, status):
            cluster.history.add(now, EventKind.BATCH, job.id, news)
        job.note_reports(status)
        if job.note_saved(status):
            accounting.saved(cluster.jobs.usage, now, job)
        _note_paces(cluster, job, status)
        if _costly(before) != _costly(status):
            cluster.planning.request()
        judge_left(cluster, now, job, status, cluster.settings.measuring.steps)
        if job.note_rate(now, status, cluster.settings.measuring.steps):
            if factor_of(job) == 1:
                cluster.experience.record_throughput(now, job)
            else:  # its batch has grown, so its steps take other times than those of other jobs of its kind
                job.on_reschedule()
            if grow(job, status, lambda: cluster.estimate(now, job, fewest(cluster, job.spec.gpus.max)).curve):
                send_order(cluster, job)
        for resize in job.note_resizes(status):
            cluster.history.add(now, EventKind.RESIZED, job.id, resize_text(resize))
            accounting.stood_still(cluster.jobs.usage, now, job, resize)
            cluster.history.tallies.resized(resize.paused_s)
        _note_commit(now, job, status)
        _note_begin(cluster, now, job, status)
        _note_broken(job, status)
        _note_cut(now, job)
        if status.waits_s:
            _note_stall(cluster, now, job)
        newest = job.newest if not job.record.overtaken else None
        if (
            newest is not None
            and newest.generation > job.record.committed
            and newest.roster.leader == status.worker
            and leader_address(job) != job.sent_address
        ):
            send_order(cluster, job)
    newest = job.newest
    # A union goes on once the joining workers have taken part.
    moves = newest is not None and newest.kind is OrderKind.UNION
    if before is None or entry.stopping or moves or _matters(before) != _matters(status):
        cluster.jobs.mark_dirty(job)
    else:
        cluster.jobs.moved(job)


def _matters(status: WorkerStatus) -> tuple[object, ...]:
    """Return the part of a status that can require a decision."""
    return (status.phase, status.generation, status.order, status.floor, status.applied is None, status.address)


def _note_worker(now: float, job: Job, entry: WorkerRecord, status: WorkerStatus) -> None:
    if entry.joined_s is None:
        job.update_worker(entry.worker, joined_s=now)
    if entry.state is not WorkerState.RUNNING or entry.pid != status.pid:
        job.update_worker(entry.worker, state=WorkerState.RUNNING, pid=status.pid)
    if not entry.trained and status.applied is not None:
        job.begin_training(now, entry, status.applied)


def _note_commit(now: float, job: Job, status: WorkerStatus) -> None:
    order = job.order(status.generation)
    if order is None or order.generation <= job.record.committed or status.worker not in order.roster.workers:
        return
    job.update(
        committed=order.generation,
        orders=tuple(other for other in job.record.orders if other.generation >= order.generation),
        progress=job.progress(),
    )
    job.reported.begin_generation()
    if job.record.phase is JobPhase.STARTING:
        job.enter(JobPhase.RUNNING, now)
    job.change_share(now, len(order.roster.members))


def _note_begin(cluster: Cluster, now: float, job: Job, status: WorkerStatus) -> None:
    """Note that training began, once a worker that has the state trains.

    A worker that has committed a generation may still find no checkpoint there.
    """
    order = job.committed_order
    if order is None or status.applied is None or status.generation < job.record.cycle:
        return
    if job.record.begun_cycle >= job.record.cycle or status.worker not in order.roster.workers:
        return
    job.update(begun_cycle=job.record.cycle)
    cluster.history.add(now, EventKind.STARTED, job.id, f"trains on {gpu_count(len(order.roster.members))}")


def _note_broken(job: Job, status: WorkerStatus) -> None:
    if status.phase is not WorkerPhase.BROKEN:
        return
    add_broken(job, broken_by_report(job, status.worker, status.generation))


def _note_cut(now: float, job: Job) -> None:
    job.note_cut(now, bool(cut_off(job) or unconnected(job)))


def _note_stall(cluster: Cluster, now: float, job: Job) -> None:
    """Give up a step in which all workers wait for each other.

    In such a step, data that the workers send is lost on the way, and the generation is as broken as after a loss.
    """
    generation, waited_s = job.record.committed, stalled_s(job)
    if not waited_s or generation in job.record.broken:
        return
    order = job.order(generation)
    assert order is not None
    servers = ", ".join(sorted({member.gpu.server for member in order.roster.members}))
    text = (
        f"all {len(order.roster.members)} workers of generation {generation} have waited for each other for {waited_s:.0f} s: "
        f"does the network carry data between their GPUs ({servers})? The step is given up"
    )
    cluster.history.add(now, EventKind.STALLED, job.id, text)
    for worker in order.roster.workers:
        add_broken(job, broken_by_report(job, worker, generation))
    cluster.jobs.mark_dirty(job)


def resize_text(resize: Resize) -> str:
    """Describe a measured resize in one line, for users."""
    steps = f"median step {resize.median_step_s * 1000:.0f} ms, then {resize.median_step_after_s * 1000:.0f} ms"
    gap = f"longest gap {resize.longest_gap_s * 1000:.0f} ms ({steps})"
    change = f"{resize.workers_before} -> {gpu_count(resize.workers_after)} at step {resize.step}, {gap}"
    return f"went on after a loss: {change}" if resize.recovery else change


def _on_exit(cluster: Cluster, now: float, session: Session, message: WorkerExit) -> bool:
    """Handle the end of a worker; return whether the worker is recorded."""
    unknown_ended(cluster, session, message)
    if session.orphan_ended(message.worker):
        cluster.jobs.mark_waiting_dirty()
    found = _find(cluster, session, message.job, message.worker, message.uid)
    status = message.status if message.status is not None and message.status.worker == message.worker else None
    if found is None:
        known = cluster.jobs.get(message.job)
        if fault := fault_of(cluster, session, message.job, message.worker, message.uid, status):
            refuse_report(cluster, now, session.server.server, message.job, fault)
        elif known is not None and known.has_uid(message.uid) and ahead(known, message.worker, status):
            bring_forward(cluster, now, known, message.worker, None, status)
        return False
    if status is not None:
        _on_status(cluster, now, session, status, message.uid)
    if message.use is not None:
        _on_use(cluster, now, session, WorkerUse(worker=message.worker, uid=message.uid, use=message.use))
    job, entry = found[0], found[0].worker(message.worker) or found[1]
    path = message.log if len(message.log) <= MAX_PATH else ""
    worker_ended(
        cluster, now, job, entry, message.exit_code, message.reason, message.phase, message.fault, path, message.begun
    )
    return True


# ----------------------------------------------------------------------------------------- logs, output of commands


def _on_piece(cluster: Cluster, now: float, server: ServerId, piece: LogPiece | CommandOutput) -> None:
    pending = cluster.clients.pending_logs.get(piece.request)
    if pending is None:
        return
    if pending.server != server:
        refuse(cluster, now, server, f"what {pending.server} was asked for: {pending.due}")
        return
    cluster.clients.agent_has_answered(piece.request)
    if piece.error:
        cluster.clients.answer(pending.asked, Refused(reason=piece.error))
    elif isinstance(piece, CommandOutput):
        cluster.clients.answer(pending.asked, ExecOutput(output=piece.output))
    else:
        cluster.clients.answer(pending.asked, Log(data=piece.data, next_offset=piece.next_offset, end=piece.end))
