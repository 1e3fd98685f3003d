"""Recovery of the cluster's state from the records of the previous controller (cluster 3). Pure: records in, state out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from ..protocol.errors import OperatorError
from ..protocol.messages import EventKind, EventView, Submitted
from ..protocol.model import JobId, ServerId, job_number
from ..protocol.times import LONGEST_SLOW_BACK_OFF_S, MOST_SAVE_S
from ..scheduler.length_statistics import NOTHING_ENDED
from ..scheduler.transient import Idle
from . import snapshots, usage
from .cluster import Cluster
from .inbound.statuses import mended_progress, usable_measurement, usable_resize
from .jobs import account, archive, lengths
from .jobs.job import Job
from .jobs.records import JobRecord, Submission, WorkerRecord
from .jobs.reported import Reported
from .jobs.stored import States, Written, contents, living, workers_of
from .jobs.table import WorkerTable
from .jobs.throughput import PREFIX, KindRecord
from .notices import NOTICES, Notice, notice_key
from .reconcile.slow_gpus import leaves_out
from .records import (
    ADOPTED,
    CLUSTER_KEY,
    JOBS,
    LEADER_KEY,
    OVERRULED,
    POLICY_KEY,
    REMOVED,
    REQUESTS,
    SLOW,
    AdoptionRecord,
    ClusterRecord,
    LeaderRecord,
    OverruleRecord,
    PolicyRecord,
    RemovalRecord,
    RequestRecord,
    ServerRecord,
    SlowRecord,
    event_key,
    job_of_submission,
    request_key,
    server_key,
    submission_key,
)
from .requests.policy import recover_policy
from .requests.validation import usable_rate
from .state import idle
from .state.jobs import TRUSTED_AFTER_S

_SUBMISSION = msgspec.msgpack.Decoder(Submission)
_STATE = msgspec.msgpack.Decoder(JobRecord)
_REQUEST = msgspec.msgpack.Decoder(RequestRecord)


def recover(cluster: Cluster, now: float, records: Iterable[tuple[str, bytes]]) -> None:
    """Fill `cluster` from (key, value) records. Raises OperatorError for a value that this version cannot decode.

    Archived records may come with empty values, as only their keys are read.

    Servers count as absent until their agents have sent a hello. The scheduler decides nothing until all agents have done so,
    or the leases of the others have expired.
    """
    submitted: dict[JobId, Submission] = {}
    states = States()
    earliest: dict[JobId, JobRecord] = {}
    answered: dict[str, JobId] = {}
    archived: list[str] = []
    events: list[EventView] = []
    kinds: list[KindRecord] = []
    idle_times: dict[ServerId, Idle] = {}
    removals: dict[ServerId, RemovalRecord] = {}
    notices: list[Notice] = []
    policy: PolicyRecord | None = None
    leader = LeaderRecord(term=0)
    itself = ClusterRecord(id="")
    ended: lengths.LengthsRecord | None = None
    for key, value in records:
        try:
            if key.startswith(snapshots.PREFIX):
                cluster.snapshots.recover(key, now)
            elif key.startswith(archive.PREFIX):
                archived.append(key)
            elif states.put(key, value) is not None:
                pass
            elif job_of_submission(key) is not None:
                submission = _SUBMISSION.decode(value)
                submitted[submission.job] = submission
            elif key.startswith(JOBS):  # an earlier version kept submission and state in one record
                submission = _SUBMISSION.decode(value)
                submitted[submission.job], earliest[submission.job] = submission, _STATE.decode(value)
                cluster.clients.remember(submission.request, Submitted(job=submission.job))
                cluster.replace_record(key)
            elif key.startswith(REQUESTS):
                answered[key.removeprefix(REQUESTS)] = _REQUEST.decode(value).job
            elif key.startswith("/events/"):
                events.append(msgspec.msgpack.decode(value, type=EventView))
            elif key.startswith(PREFIX):
                kinds.append(_mended_kind(msgspec.msgpack.decode(value, type=KindRecord), now))
            elif key.startswith("/servers/"):
                known = msgspec.msgpack.decode(value, type=ServerRecord)
                cluster.servers.recover(known, now)
            elif key.startswith(usage.PREFIX):
                cluster.jobs.usage.recover(key, usage.DECODER.decode(value))
            elif key == CLUSTER_KEY:
                itself = msgspec.msgpack.decode(value, type=ClusterRecord)
            elif key == LEADER_KEY:
                leader = msgspec.msgpack.decode(value, type=LeaderRecord)
            elif key.startswith(ADOPTED):
                adopted = msgspec.msgpack.decode(value, type=AdoptionRecord)
                cluster.servers.recover_adoption(ServerId(key.removeprefix(ADOPTED)), adopted.agent)
            elif key.startswith(OVERRULED):
                overruled = msgspec.msgpack.decode(value, type=OverruleRecord)
                cluster.servers.recover_overruled(ServerId(key.removeprefix(OVERRULED)), overruled)
            elif key == lengths.KEY:
                ended = msgspec.msgpack.decode(value, type=lengths.LengthsRecord)
            elif key.startswith(idle.PREFIX):
                idle_times[ServerId(key.removeprefix(idle.PREFIX))] = idle.recovered(
                    msgspec.msgpack.decode(value, type=idle.IdleRecord)
                )
            elif key.startswith(SLOW):
                slow = msgspec.msgpack.decode(value, type=SlowRecord)
                cluster.servers.recover_slow(ServerId(key.removeprefix(SLOW)), slow)
            elif key.startswith(REMOVED):
                removals[ServerId(key.removeprefix(REMOVED))] = msgspec.msgpack.decode(value, type=RemovalRecord)
            elif key.startswith(NOTICES):
                notices.append(msgspec.msgpack.decode(value, type=Notice))
            elif key == POLICY_KEY:
                policy = msgspec.msgpack.decode(value, type=PolicyRecord)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"the store's record {key} cannot be read: {error}") from None
    cluster.begin_reign(leader)
    cluster.servers.recover_removals(removals)
    for name in cluster.servers.overruled:
        cluster.servers.update_taints(name)
    cluster.jobs.recover(itself.first_job, archived)
    cluster.identify(itself.id)
    cluster.experience.recover(kinds, ended, idle_times)
    for request, job in sorted(answered.items(), key=lambda known: job_number(known[1])):
        cluster.clients.remember(request, Submitted(job=job), recorded=True)
    for submission in sorted(submitted.values(), key=lambda one: job_number(one.job)):
        if (whole := earliest.get(submission.job)) is not None:
            _recover_job(
                cluster, now, submission, Written(replace(whole, stored_workers=()), whole=workers_of(whole)), False
            )
        else:
            _recover_job(cluster, now, submission, states.get(submission.job), True)
    cluster.history.recover(events)
    cluster.notices.recover(notices)
    cluster.jobs.begin_after(max(map(job_number, (*submitted, *states)), default=0))
    cluster.jobs.clock_goes_since(trusted_since(cluster.history.events, now))
    if policy is not None and (trouble := recover_policy(cluster, policy)):
        cluster.history.add(now, EventKind.POLICY, None, trouble)
        cluster.warn(trouble)
    if not cluster.servers.awaited:
        cluster.jobs.mark_all_dirty()


UNTOUCHED = JobRecord()


def mended_submission(submission: Submission, now: float) -> Submission:
    """Return `submission` without unusable numbers (such as NaN), which an older version may have recorded."""
    spec = submission.spec
    rates = {share: rate for share, rate in spec.throughput.items() if usable_rate(share, rate)}
    return replace(
        submission,
        spec=replace(spec, throughput=rates) if rates != spec.throughput else spec,
        submitted_s=_time(submission.submitted_s, now),
    )


def mended(record: JobRecord, now: float) -> JobRecord:
    """Return `record` without unusable numbers, as `mended_submission` does."""
    if record == UNTOUCHED:  # true of most records if many jobs are pending
        return record
    started_s, finished_s, counted_s = record.started_s, record.finished_s, record.counted_s
    return replace(
        record,
        started_s=None if started_s is None else _time(started_s, now),
        finished_s=None if finished_s is None else _time(finished_s, now),
        counted_s=None if counted_s is None else min(_time(counted_s, now), now),
        attained_gpu_s=_sum(record.attained_gpu_s),
        executed_s=_sum(record.executed_s),
        shares=tuple(change for change in record.shares if math.isfinite(change.time_s)),
        progress=mended_progress(record.progress) if record.progress is not None else None,
        measured=tuple(entry for entry in record.measured if usable_measurement(entry)),
        resizes=tuple(resize for resize in record.resizes if usable_resize(resize)),
        slow=tuple(
            replace(one, until_s=min(_time(one.until_s, now), now + LONGEST_SLOW_BACK_OFF_S)) for one in record.slow
        ),
        gpu_account=account.mended(record.gpu_account, now),
    )


def _mended_kind(record: KindRecord, now: float) -> KindRecord:
    measured = tuple(entry for entry in record.measured if usable_measurement(entry))
    return replace(record, updated_s=_time(record.updated_s, now), measured=measured)


def _time(time_s: float, now: float) -> float:
    return time_s if math.isfinite(time_s) else now


def _not_after(entry: WorkerRecord, now: float, save_s: float) -> WorkerRecord:
    """Return `entry` with no time later than `now`, as the clock may have been set back since the entry was recorded.

    `save_s`: the longest time that a worker may take to save a checkpoint (s); `stop_by_s` may be later than `now` by
    it.
    """
    return replace(
        entry,
        started_s=_at_most(entry.started_s, now),
        joined_s=_at_most(entry.joined_s, now),
        stop_by_s=_at_most(entry.stop_by_s, now + save_s),
    )


def _at_most(time_s: float | None, latest_s: float) -> float | None:
    return None if time_s is None else min(time_s, latest_s)


def _sum(seconds: float) -> float:
    return seconds if 0 <= seconds < math.inf else 0.0


def _recover_job(cluster: Cluster, now: float, submitted: Submission, state: Written | None, recorded: bool) -> None:
    """Add a job to `cluster`. `state`: the records of its state; None: there are none. `recorded`: the job's records have the
    keys and the form of this version."""
    submission = mended_submission(submitted, now)
    told_s = submission.spec.checkpoint.save_timeout_s
    save_s = told_s if told_s is not None else MOST_SAVE_S
    record = mended(state.record, now) if state is not None else UNTOUCHED
    workers = [_not_after(entry, now, save_s) for entry in living(state)] if state is not None else []
    progress = record.progress
    step = progress.step if progress is not None and progress.step is not None else -1
    best = max(record.best_at_restart, step)
    job = Job(submission, record, WorkerTable(workers), reported=Reported(best_applied=best, recovered=True))
    job.begin_timers(now)
    if leaves_out(job) and record.target:
        job.bound_by_refusals(len(record.target))
        cluster.planning.note_cramped(job)
    cluster.jobs.add(job, (submitted, state) if recorded else None)


# ----------------------------------------------------------------------- comparison of a recovered state with the one before it

# These timers follow from the records; all others begin with the agents' hellos.
LASTING = ("restart", "hold", "rest")


def durable(cluster: Cluster) -> dict[str, bytes]:
    """Return all keys and values that the store must hold after a turn, so that the next controller recovers the same state.

    Values of archived records are empty.
    """
    found = {event_key(event.number): msgspec.msgpack.encode(event) for event in cluster.history.events}
    found |= {notice_key(number): msgspec.msgpack.encode(notice) for number, notice in cluster.notices.pending.items()}
    for job in cluster.jobs.values():
        found |= {
            key: msgspec.msgpack.encode(part) for key, part in contents(job, cluster.jobs.is_parted(job.id)).items()
        }
    found |= {submission_key(name): msgspec.msgpack.encode(job.submission) for name, job in cluster.jobs.items()}
    found |= dict.fromkeys(cluster.jobs.archive.keys, b"")
    for request, answer in cluster.clients.answers.items():
        if isinstance(answer, Submitted):
            found[request_key(request)] = msgspec.msgpack.encode(RequestRecord(job=answer.job))
    for name, session in cluster.servers.sessions.items():
        found[server_key(name)] = msgspec.msgpack.encode(ServerRecord(server=session.server, agent=session.agent))
    found |= {key: msgspec.msgpack.encode(record) for key, record in cluster.jobs.usage.records().items()}
    found[CLUSTER_KEY] = msgspec.msgpack.encode(cluster.record)
    found[LEADER_KEY] = msgspec.msgpack.encode(cluster.leader)
    found |= {
        ADOPTED + name: msgspec.msgpack.encode(AdoptionRecord(agent=a)) for name, a in cluster.servers.adopted.items()
    }
    found |= {OVERRULED + name: msgspec.msgpack.encode(record) for name, record in cluster.servers.overruled.items()}
    found |= {
        SLOW + name: msgspec.msgpack.encode(SlowRecord(findings=one)) for name, one in cluster.servers.slow.items()
    }
    found |= {REMOVED + name: msgspec.msgpack.encode(record) for name, record in cluster.servers.removed.items()}
    found |= {
        PREFIX + record.fingerprint: msgspec.msgpack.encode(record)
        for record in cluster.experience.throughput.records()
    }
    if cluster.experience.lengths is not NOTHING_ENDED:
        found[lengths.KEY] = msgspec.msgpack.encode(lengths.record(cluster.experience.lengths))
    for name, times in cluster.experience.idle.servers.items():
        found[idle.key(name)] = msgspec.msgpack.encode(idle.record(times))
    if cluster.planning.decider.record is not None:
        found[POLICY_KEY] = msgspec.msgpack.encode(cluster.planning.decider.record)
    return found


def differences(before: Cluster, after: Cluster) -> tuple[str, ...]:
    """Return in words how the state `after` a recovery differs from the state `before`; empty if the two are equivalent.

    Durable records are compared, and the timers that follow from them. The leader's record is left out, as each reign has its
    own term.
    """
    kept, found = durable(before), durable(after)
    odd = [key for key in sorted({*kept, *found} - {LEADER_KEY}) if kept.get(key) != found.get(key)]
    for name in before.jobs.keys() & after.jobs.keys():
        waits = [[timer for timer in LASTING if timer in cluster.jobs[name].timers()] for cluster in (before, after)]
        if waits[0] != waits[1]:
            odd.append(f"{name} waits for {waits[0]} before, for {waits[1]} after")
    return tuple(odd)


def trusted_since(events: Sequence[EventView], now: float) -> float:
    """Return since when the clock has not been set, as far as the recorded events show (Unix time, s).

    From that event up to `now` the times of events only grow, and two successive ones are less than TRUSTED_AFTER_S apart.
    So even a controller that is restarted often comes to trust its clock.
    """
    since_s = now
    for event in reversed(events):
        if not 0 <= since_s - event.time_s < TRUSTED_AFTER_S:
            break
        since_s = event.time_s
    return since_s
