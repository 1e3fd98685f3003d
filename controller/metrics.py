"""The controller's metrics (docs/metrics.md lists all of them).

A `Watch` counts decisions, commits and messages as they happen; all other metrics are computed at each scrape. The cost of a
scrape grows with the number of servers and of jobs that hold GPUs, not with the number of pending jobs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..protocol.figures import Buckets, Figure, Kind, counter, gauge, histogram, labelled, table
from ..protocol.messages import EventKind
from ..protocol.model import JobPhase, ServerId
from .cluster import Cluster
from .jobs.job import Job
from .jobs.records import WorkerState
from .reconcile.idle import idle_since_s
from .turn import Turn
from .usage import user_of

LEADS = "1: this controller leads; 0: it stands by."
TERM = "Of the present reign, or the last one that a controller that stands by knows of."
MOST_USERS = 100  # most users with a label of their own; all others share the label OTHERS
OTHERS = "(others)"
IDLE_S = 300.0  # a job without any computation for this long counts as idle
LIVE = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RUNNING)
ENDED = {
    JobPhase.FINISHED: EventKind.FINISHED,
    JobPhase.FAILED: EventKind.FAILED,
    JobPhase.CANCELLED: EventKind.CANCELLED,
}


class Watch:
    """Counts and durations of a controller's decisions and commits, and counts of its incoming messages."""

    def __init__(self) -> None:
        self.decisions = Buckets()
        self.commits = Buckets()
        self.records = 0
        self.received: dict[str, int] = {}
        self.refused: dict[str, int] = {"agents": 0, "clients": 0}

    def now(self) -> float:
        """Return the time of a monotonic clock (seconds)."""
        return time.perf_counter()

    def decided(self, seconds: float) -> None:
        """Note that a scheduling decision, with the first actions that follow from it, took `seconds`."""
        self.decisions.add(seconds)

    def committed(self, seconds: float, records: int) -> None:
        """Note that a commit of `records` records took `seconds`."""
        self.commits.add(seconds)
        self.records += records

    def came(self, kind: str) -> None:
        """Note an incoming message of this kind."""
        self.received[kind] = self.received.get(kind, 0) + 1

    def refuses(self, gate: str) -> None:
        """Note that a message was refused at this gate: it cannot be decoded, or its sender may not send it."""
        self.refused[gate] += 1


def figures(turn: Turn, watch: Watch, now: float, most_jobs: int) -> list[Figure]:
    """Return all metrics of a leader. `most_jobs`: the number of jobs that have metrics of their own."""
    cluster = turn.machine.cluster
    return [
        *_itself(turn, cluster),
        *_jobs(cluster, now),
        *_gpus(cluster),
        *_use(cluster, now),
        *_servers(cluster, now),
        *_work(cluster, watch),
        *_by_user(cluster),
        *_by_job(cluster, most_jobs),
    ]


def standby_figures(term: int, store_answers: bool) -> list[Figure]:
    """Return the metrics of a standby. `term`: the highest term that it knows."""
    return [
        gauge("controller_leads", LEADS, 0.0),
        gauge("controller_term", TERM, float(term)),
        gauge("store_available", "1: what happens is recorded; 0: the store cannot be written.", float(store_answers)),
    ]


def _itself(turn: Turn, cluster: Cluster) -> Iterator[Figure]:
    settings = cluster.settings
    names = (settings.cluster, settings.version, cluster.planning.policy.name)
    text = "Always 1; the labels say which cluster, version and policy."
    yield table(Kind.GAUGE, "controller_info", text, ("cluster", "version", "policy"), [(names, 1.0)])
    yield gauge("controller_leads", LEADS, 1.0)
    yield gauge("controller_term", TERM, float(turn.machine.term))
    yield gauge(
        "store_available", "1: what happens is recorded; 0: the store cannot be written.", float(not turn.trouble)
    )
    yield gauge(
        "policy_failing",
        "1: the policy raises, and the last plan is kept.",
        float(bool(cluster.planning.policy_trouble)),
    )


def _jobs(cluster: Cluster, now: float) -> Iterator[Figure]:
    phases, events = cluster.jobs.index.phases, cluster.history.tallies.events
    counts = {phase.value: float(len(phases[phase])) for phase in LIVE}
    yield labelled(Kind.GAUGE, "jobs", "Jobs that are not over, by phase.", "phase", counts)
    oldest_s = cluster.jobs.index.oldest_pending_s()
    longest_s = max(0.0, now - oldest_s) if oldest_s is not None else 0.0
    yield gauge("queue_oldest_wait_seconds", "Since the oldest pending job was submitted; 0: none is.", longest_s)
    yield counter("jobs_submitted", "Jobs that were submitted.", events.get(EventKind.SUBMITTED, 0))
    ended = {phase.value: float(events.get(kind, 0)) for phase, kind in ENDED.items()}
    yield labelled(Kind.COUNTER, "jobs_ended", "Jobs that are over, by how they ended.", "phase", ended)
    yield counter("job_restarts", "Jobs that began again.", events.get(EventKind.RESTARTED, 0))
    yield counter("job_preemptions", "Jobs that gave all their GPUs back.", events.get(EventKind.PREEMPTED, 0))
    promised, endangered = events.get(EventKind.PROMISED, 0), events.get(EventKind.ENDANGERED, 0)
    yield counter(
        "deadlines_promised", "Times that a deadline was found to hold, after it had not been known to.", promised
    )
    yield counter("deadlines_endangered", "Times that a deadline was found not to hold any more.", endangered)
    yield counter("deadlines_missed", "Jobs that finished after their deadlines.", events.get(EventKind.MISSED, 0))
    yield counter("workers_lost", "Workers that ended though they were to go on.", events.get(EventKind.LOST, 0))


def _gpus(cluster: Cluster) -> Iterator[Figure]:
    using = sum(job.record.gpu_account.using for job in cluster.jobs.usage.holding)
    idling = sum(job.record.gpu_account.idling for job in cluster.jobs.usage.holding)
    taken: dict[ServerId, int] = {}
    for job in cluster.jobs.usage.holding:
        for entry in job.workers:
            if entry.state is not WorkerState.ORDERED:
                taken[entry.gpu.server] = taken.get(entry.gpu.server, 0) + (len(entry.gpus) or 1)
    free = absent = 0
    for name, session in cluster.servers.sessions.items():
        rest = max(0, len(session.server.gpus) - taken.get(name, 0))
        free, absent = (free + rest, absent) if session.alive else (free, absent + rest)
    states = {"used": using, "idle": idling, "free": free, "absent": absent}
    text = "GPUs: held by a job that uses them, held without that, held by nobody, of servers that are not there."
    yield labelled(Kind.GAUGE, "gpus", text, "state", {name: float(count) for name, count in states.items()})


def _servers(cluster: Cluster, now: float) -> Iterator[Figure]:
    alive = [name for name, session in cluster.servers.sessions.items() if session.alive]
    unfit = sum(not cluster.servers.fit(name) for name in alive)
    lost = len(cluster.servers.sessions) - len(alive)
    counts = {"alive": len(alive) - unfit, "unfit": unfit, "lost": lost, "foreign": len(cluster.servers.foreign)}
    text = "Servers: whole, unable to start workers for now, lost, of another cluster."
    yield labelled(Kind.GAUGE, "servers", text, "state", {name: float(count) for name, count in counts.items()})
    troubles: dict[tuple[str, ...], float] = {}
    for name in alive:
        for trouble in cluster.servers.sessions[name].troubles:
            key = (trouble.code, trouble.severity.value)
            troubles[key] = troubles.get(key, 0.0) + 1
    text = "What agents say is wrong with servers and GPUs, by code and what it means for work."
    yield table(Kind.GAUGE, "troubles", text, ("code", "severity"), troubles.items())
    tainted = sum(len(cluster.servers.tainted.get(name, ())) for name in alive)
    yield gauge("gpus_barred", "GPUs of present servers that take no new work.", tainted)
    cordons = [
        cordon for record in cluster.servers.overruled.values() for cordon in record.cordons if cordon.gpu is None
    ]
    drained = [cordon for cordon in cordons if cordon.kind.drains]
    empty = sum(cordon.drained_s is not None for cordon in drained)
    stages = {"cordoned": len(cordons) - len(drained), "draining": len(drained) - empty, "drained": empty}
    text = "Servers on which an operator wants no new work: their work goes on, is to leave, has left."
    counted = {name: float(count) for name, count in stages.items()}
    yield labelled(Kind.GAUGE, "servers_cordoned", text, "state", counted)
    silent = next(iter(cluster.servers.leases), None)
    silence_s = max(0.0, now - cluster.servers.sessions[silent].last_heard_s) if silent is not None else 0.0
    yield gauge("longest_silence_seconds", "Since the server that has been silent for longest was heard of.", silence_s)


def _work(cluster: Cluster, watch: Watch) -> Iterator[Figure]:
    yield histogram("decision_seconds", "How long a decision took, with what was begun by it.", watch.decisions)
    yield histogram("commit_seconds", "How long it took until a turn's records were durable.", watch.commits)
    yield counter("records_written", "Records that were made durable.", watch.records)
    received = {name: float(count) for name, count in watch.received.items()}
    yield labelled(Kind.COUNTER, "messages_received", "Messages of agents and clients.", "kind", received)
    refused = {name: float(count) for name, count in watch.refused.items()}
    text = "Messages that were not understood, or that their sender may not say, by where they came in."
    yield labelled(Kind.COUNTER, "messages_refused", text, "gate", refused)
    forged = sum(found.count for found in cluster.servers.forged.values())
    yield counter("reports_refused", "Reports of agents about workers that were never sent to them.", forged)
    events = {kind.value: float(cluster.history.tallies.events.get(kind, 0)) for kind in EventKind}
    yield labelled(Kind.COUNTER, "events", "What `elasticctl events` tells, by kind.", "kind", events)
    yield counter(
        "steps", "Steps of training that no worker of their job had done before.", cluster.history.tallies.steps
    )
    yield histogram("pause_seconds", "How long training stood still in a resize.", cluster.history.tallies.pauses)


def _use(cluster: Cluster, now: float) -> Iterator[Figure]:
    busy, idle = 0.0, 0
    for job in cluster.jobs.usage.holding:
        busy += (job.uses.busy() or 0.0) * job.record.gpu_account.holds
        since_s = idle_since_s(now, job)
        idle += since_s is not None and now - since_s >= IDLE_S
    yield gauge("gpus_busy", "GPUs that compute, as far as agents know: parts of the last minute or so, summed.", busy)
    yield gauge("jobs_idle", "Jobs of which no GPU has computed for five minutes.", idle)


def _by_user(cluster: Cluster) -> Iterator[Figure]:
    held: dict[str, int] = {}
    for job in cluster.jobs.usage.holding:
        held[user_of(job)] = held.get(user_of(job), 0) + job.record.gpu_account.holds
    first = sorted(held, key=lambda user: (-held[user], user))[:MOST_USERS]
    counts = {user: float(held[user]) for user in first}
    if len(held) > len(first):
        counts[OTHERS] = float(sum(held.values()) - sum(held[user] for user in first))
    yield labelled(Kind.GAUGE, "user_gpus", "GPUs that the jobs of a user hold.", "user", counts)


def _by_job(cluster: Cluster, most: int) -> Iterator[Figure]:
    """Yield the metrics by job, for the `most` jobs that were submitted first among those that hold GPUs."""
    jobs = cluster.jobs.usage.holding[:most]
    labels = ("job", "user")

    def each(name: str, text: str, values: Iterator[float]) -> Figure:
        rows = tuple(((str(job.id), user_of(job)), value) for job, value in zip(jobs, values, strict=True))
        return Figure(name, Kind.GAUGE, text, rows, labels)

    yield each("job_gpus", "GPUs that a job holds.", (float(job.record.gpu_account.holds) for job in jobs))
    yield each("job_steps", "Steps that a job has done.", map(_steps, jobs))
    known = [(job, busy) for job in jobs if (busy := job.uses.busy()) is not None]
    rows = tuple(((str(job.id), user_of(job)), busy) for job, busy in known)
    text = "Part of the last minute or so in which the GPUs of a job computed; only of jobs of which it is known."
    yield Figure("job_gpu_busy_ratio", Kind.GAUGE, text, rows, labels)
    yield each("job_samples_per_second", "How fast a job trains.", (job.progress().samples_per_s for job in jobs))


def _steps(job: Job) -> float:
    step = job.progress().step
    return float(step + 1) if step is not None else 0.0
