"""Admission of jobs with deadlines, and the state of the promises that have been given (ElasticFlow section 4).

A hard deadline is promised if the plan for all promises has room for it; otherwise the job is refused, with a counter-offer.
While a job's throughput or length is unknown, no plan can be made: the job is admitted provisionally, and judged when both are
known. After each decision every promise is checked again. A promise that cannot be kept any more is reported then, at the
latest `DeadlineTerms.margin_s` before its deadline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from msgspec import structs

from ...protocol.messages import CounterOffer, EventKind, PromiseState, PromiseView
from ...protocol.model import GpuAddress, JobId, ServerId
from ...protocol.texts import changes, gpu_count, span
from ...scheduler.arrays import Floats, Ints
from ...scheduler.curves import Curves
from ...scheduler.deadline_guard import Busy, Deadlines, Kept
from ...scheduler.deadlines.decision import AdmissionDecision, Commitments, Offer, counter_offer, within
from ...scheduler.deadlines.pool_assignment import PoolCommitments, chosen, decided, settled
from ...scheduler.deadlines.promises import Promise, settle
from ...scheduler.deadlines.table import NO_LEVELS, DeadlineTerms, choices_of, situations, told_deadline_s
from ...scheduler.kinds import GpuSort
from ...scheduler.quotas.hours import Hours
from ...scheduler.quotas.reservations import busy
from ...scheduler.scheduler import Scheduler
from ...scheduler.speedup_curve import peak
from ...scheduler.view import UNKNOWN_S, ClusterView, Columns, JobTable, Limit, ServerInView
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.rows import demand_of
from ..jobs.throughput import Estimated
from ..jobs.volatile import Planned
from ..loans import taken
from ..state.planning import Snapshot
from .snapshot import fewest, snapshot

STARTING_SERVER = ServerId("")  # name of the server that `_Wide` adds for jobs that have not joined yet
STARTED_S = 10.0  # expected time from a job's start to its first step
REVIEW_S = 30.0  # interval of checks of promises without events
OFFERED_S = 300.0  # age at which a `Planned.offer` is renewed, for one job in each decision
AS_IT_CAN = "--soft runs it as it can"
ALONE = "the GPUs that may be promised do not end it in time"
LENGTH, THROUGHPUT = "its length (max_steps, or epochs over data of known length)", "its throughput"


@dataclass(frozen=True)
class Judged:
    """The promise that a submission would get, or the reason of its refusal."""

    state: PromiseState
    planned: Planned
    by_s: float | None = None  # the plan's deadline if it is before the job's own (Unix time); None: the job's own
    reason: str = ""  # why the submission would be refused; "": it would be admitted
    offer: CounterOffer | None = None


def judged(cluster: Cluster, now: float, jobs: Sequence[Job]) -> list[Judged]:
    """Return the judgements on newly submitted jobs with deadlines, all of one turn together, in the order of `jobs`."""
    seen, terms = snapshot(cluster, now), cluster.planning.decider.scheduler.terms
    found = [_without_a_plan(cluster, now, seen, job) for job in jobs]
    rest = [job for job, known in zip(jobs, found, strict=True) if known is None]
    if not rest:
        return [known for known in found if known is not None]
    assert terms is not None
    wide = _wide(cluster, now, seen, (*_starting(cluster), *rest))
    first = len(wide.jobs) - len(rest)
    these, choices = situations(wide.view, range(first, len(wide.jobs)), terms, wide.busy, wide.busy_on)
    verdicts = decided(these, choices)[0]
    newcomers = [chosen(each, verdict) for each, verdict in zip(choices, verdicts, strict=True)]
    hours = _hours(cluster, wide, these, newcomers)
    by_plan = iter(
        [
            _by_hours(now, wide, these.each[verdict.pool], verdict, one, terms, hours)
            or _by_plan(now, wide, verdict, one, terms, bool(these.each[verdict.pool].promised))
            for verdict, one in zip(verdicts, newcomers, strict=True)
        ]
    )
    return [known if known is not None else next(by_plan) for known in found]


def _without_a_plan(cluster: Cluster, now: float, seen: Snapshot, job: Job) -> Judged | None:
    """Return the judgement on a job that can be judged without a plan; None for any other job."""
    deadline, scheduler = job.spec.deadline, cluster.planning.decider.scheduler
    assert deadline is not None
    why = _never_promised(job)
    if scheduler.terms is None:
        why = f"the policy {scheduler.policy.name} keeps no deadlines; {AS_IT_CAN}; `elasticctl policy list` tells of others"
    if job.deadline_s <= now:
        why = "its deadline has passed"
    if why:
        return _refused("" if deadline.soft else why)
    if waits_for := _waits_for(cluster, now, seen, job):
        final_by_s = _final_by_s(cluster, now, waits_for)
        return Judged(PromiseState.PROVISIONAL, Planned(waits_for=waits_for, final_by_s=final_by_s))
    return None


def _hours(cluster: Cluster, wide: _Wide, these: PoolCommitments, newcomers: Sequence[Promise]) -> Hours:
    """Return the promised GPU time by user; nothing is counted unless a newcomer's user has a bound on promised GPU time."""
    hours = Hours(cluster.planning.decider.scheduler.stages.quotas)
    if any(math.isfinite(hours.left_gpu_s(_owner(wide, one))) for one in newcomers):
        for plan in settled(these)[1]:
            for key, filled in plan.found.items():
                hours.add(wide.jobs[key].user, filled.gpu_s)
    return hours


def _owner(wide: _Wide, one: Promise) -> str:
    return wide.jobs[one.key].user


def _by_hours(
    now: float,
    wide: _Wide,
    asked: Commitments,
    found: AdmissionDecision,
    newcomer: Promise,
    terms: DeadlineTerms,
    hours: Hours,
) -> Judged | None:
    """Return a refusal if the newcomer's promise exceeds the promised GPU time of its user.

    None: the promise is within bounds, and was added to `hours`; or the newcomer gets no hard promise.
    """
    if newcomer.soft or not found.admitted:
        return None
    owner, job = _owner(wide, newcomer), wide.jobs[newcomer.key]
    why = hours.beyond(owner, found.gpu_s)
    if not why:
        hours.add(owner, found.gpu_s)
        return None
    offer = _offer(wide, job.steps_left, newcomer, within(asked, newcomer, hours.left_gpu_s(owner)), terms)
    instead = "; ".join(_instead(now, offer))
    return _refused(f"{why}; {f'any of these would fit: {instead}; ' if instead else ''}{AS_IT_CAN}", offer)


def _by_plan(
    now: float, wide: _Wide, found: AdmissionDecision, newcomer: Promise, terms: DeadlineTerms, others: bool
) -> Judged:
    job = wide.jobs[newcomer.key]
    if not found.admitted and newcomer.levels is NO_LEVELS:
        return _refused(f"a deadline needs GPUs of one type, of which the job may use all; {AS_IT_CAN}")
    if found.offer is not None and not found.admitted:
        offer = _offer(wide, job.steps_left, newcomer, found.offer, terms)
        return _refused(_sentence(now, job, offer, others), offer)
    if not math.isfinite(found.finish_s):
        return Judged(PromiseState.NONE, Planned())
    by_s = told_deadline_s(found.by_s, terms) if math.isfinite(found.by_s) else None
    return Judged(PromiseState.HOLDS, Planned(found.finish_s, found.gpus, gpu_s=found.gpu_s), by_s)


def deadlines(cluster: Cluster, seen: Snapshot, scheduler: Scheduler | None = None) -> Deadlines | None:
    """Return the deadlines' part of a decision's input; None if no deadline is to be kept.

    `scheduler`: the scheduler that decides; None: the one in use.
    """
    terms = (scheduler or cluster.planning.decider.scheduler).terms
    if terms is None or not cluster.jobs.rows.any_deadline:
        return None
    wide = _wide(cluster, seen.view.now, seen, _starting(cluster), scheduler)
    return Deadlines(terms, wide.view, wide.busy, wide.busy_on, frozenset(_being_measured(wide)))


def _being_measured(wide: _Wide) -> Iterator[int]:
    """Yield the rows of jobs with provisional deadlines and a running measurement of their throughput."""
    for row in np.flatnonzero(np.isfinite(wide.view.jobs.deadline_s)).tolist():
        job = wide.jobs[row]
        if job.profiling is not None and job.record.promise is PromiseState.PROVISIONAL:
            yield row


def broken_without(cluster: Cluster, now: float, gpus: Sequence[GpuAddress], until_s: float) -> tuple[JobId, ...]:
    """Return the jobs with promises that hold now, and would break without these GPUs until `until_s` (Unix time)."""
    terms = cluster.planning.decider.scheduler.terms
    if terms is None or not cluster.jobs.rows.any_promise:
        return ()
    wide = _wide(cluster, now, snapshot(cluster, now), _starting(cluster))
    these, _ = situations(wide.view, (), terms, wide.busy, wide.busy_on)
    names, found = Counter(cluster.servers.gpu_name(gpu) for gpu in gpus), []
    for pool, asked in zip(these.pools, these.each, strict=True):
        count = names[pool.name] if len(these.pools) > 1 else len(gpus)
        before = settle(asked.promised, asked.timeline())
        less = replace(asked, busy=(*asked.busy, (now, until_s, min(count, asked.gpus))))
        after = settle(asked.promised, less.timeline()) if count else before
        found += [wide.jobs[one.key].id for one in after.broken if one.key in before.found]
    return tuple(found)


def note_promises(cluster: Cluster, now: float, seen: Snapshot, kept: Kept | None) -> None:
    """Record the state of each promise after a decision, and report changes as events. `kept`: the decision's plan."""
    if not cluster.jobs.rows.any_deadline:
        return
    wide, terms = _wide(cluster, now, seen, _starting(cluster)), cluster.planning.decider.scheduler.terms
    if kept is None or terms is None:
        _note_by_pace(cluster, now, wide, range(len(wide.jobs)))
        return
    cluster.planning.note_schedules(kept.schedules)
    hours = Hours(cluster.planning.decider.scheduler.stages.quotas)
    for row, filled in kept.plan.found.items():
        if _is_new(job := wide.jobs[row]):
            continue
        hours.add(job.user, filled.gpu_s if job.promised else 0.0)
    looked = False
    for row, filled in kept.plan.found.items():
        job, one = wide.jobs[row], kept.promised[row]
        planned = Planned(filled.finish_s, one.levels.counts[filled.level], gpu_s=filled.gpu_s)
        if _is_new(job) and job.profiling is None:
            if why := hours.beyond(job.user, filled.gpu_s):
                offer, offered_s = job.planned.offer, job.planned.offered_s
                if _is_offer_due(now, job, looked):
                    most_gpu_s = hours.left_gpu_s(job.user)
                    offer, offered_s, looked = _offered(wide, kept, row, terms, most_gpu_s), now, True
                refused = Planned(filled.finish_s, saved_by=why, offer=offer, offered_s=offered_s)
                _note(cluster, now, job, PromiseState.NONE, refused)
                continue
            hours.add(job.user, filled.gpu_s)
        _note(cluster, now, job, PromiseState.HOLDS, planned)
    for one in kept.plan.broken:
        job = wide.jobs[one.key]
        if job.record.by_s is not None:  # planned with an earlier deadline; the job's own may still hold
            job.update(by_s=None)
            continue
        is_new = job.record.promise is not PromiseState.BREAKS or job.planned == Planned()
        saved_by = _saved_by(wide, kept.these.each[kept.homes[one.key]], one) if is_new else job.planned.saved_by
        end_s = _end_s(wide.view, one.key, _share(kept, wide, one.key))
        _note(cluster, now, job, PromiseState.BREAKS, Planned(end_s, saved_by=saved_by))
    why = "" if kept.plan.found or kept.plan.broken else ALONE
    for row in kept.unkept:
        job = wide.jobs[row]
        offer, offered_s = job.planned.offer, job.planned.offered_s
        if _is_new(job) and _is_offer_due(now, job, looked):
            offer, offered_s, looked = _offered(wide, kept, row, terms), now, True
        end_s = _end_s(wide.view, row, _share(kept, wide, row))
        _note(cluster, now, job, PromiseState.NONE, Planned(end_s, saved_by=why, offer=offer, offered_s=offered_s))
    for row in kept.unknown:
        job = wide.jobs[row]
        waits_for = _length_of(job) if math.isnan(job.steps_left) else THROUGHPUT
        final_by_s = job.planned.final_by_s or _final_by_s(cluster, now, waits_for)
        _note(cluster, now, job, PromiseState.PROVISIONAL, Planned(waits_for=waits_for, final_by_s=final_by_s))
    planned_for = {*kept.plan.found, *(one.key for one in kept.plan.broken), *kept.unkept, *kept.unknown}
    _note_by_pace(cluster, now, wide, [row for row in range(len(wide.jobs)) if row not in planned_for])
    cluster.planning.review_by(now + REVIEW_S, *_last_looks(now, kept, terms))


def _is_new(job: Job) -> bool:
    """Return whether the job has a hard deadline without a final promise, so that a user's bound on promises applies."""
    deadline = job.spec.deadline
    return (
        deadline is not None
        and not deadline.soft
        and job.record.promise in (PromiseState.PROVISIONAL, PromiseState.NONE)
    )


def _is_offer_due(now: float, job: Job, looked: bool) -> bool:
    """Return whether to search for changes with which the deadline of `job` would be promised.

    looked: this decision has searched for another job already.
    """
    offered_s = job.planned.offered_s
    old = now < job.deadline_s and (offered_s is None or now - offered_s >= OFFERED_S)
    return job.record.promise is PromiseState.PROVISIONAL or (old and not looked)


def _note_by_pace(cluster: Cluster, now: float, wide: _Wide, rows: Iterable[int]) -> None:
    """Record the state of deadlines without a plan, by each job's present pace.

    No plan is made for jobs with manual shares, nor for any job if the policy keeps no deadlines.
    """
    jobs = wide.view.jobs
    for row in rows:
        job = wide.jobs[row]
        if job.spec.deadline is None:
            continue
        if job.promised and jobs.left_s[row] < UNKNOWN_S:
            end_s = _end_s(wide.view, row, int(jobs.share[row] or jobs.max_gpus[row]))  # without GPUs: the earliest end
            late = end_s is None or end_s > job.deadline_s
            _note(cluster, now, job, PromiseState.BREAKS if late else PromiseState.HOLDS, Planned(end_s))
        cluster.planning.review_by(now + REVIEW_S)


def promise_view(job: Job) -> PromiseView | None:
    """Return the state of the deadline of `job`; None: the job has none, or has ended."""
    deadline, planned = job.spec.deadline, job.planned
    if deadline is None or job.final:
        return None
    return PromiseView(
        state=job.record.promise or PromiseState.PROVISIONAL,
        deadline_s=job.deadline_s,
        soft=deadline.soft,
        planned_s=planned.finish_s,
        least_gpus=planned.least_gpus,
        waits_for=planned.waits_for,
        final_by_s=planned.final_by_s,
        saved_by=planned.saved_by,
        offer=planned.offer,
        offered_s=planned.offered_s,
    )


def not_planned(cluster: Cluster, now: float, job: Job, why: str) -> None:
    """Record that `job` may not run, so that its promise breaks. `why` completes the sentence "it is ..."."""
    if job.promised:
        _note(cluster, now, job, PromiseState.BREAKS, Planned(saved_by=f"it is {why}"))


def told_with(now: float, job: Job, found: Judged) -> str:
    """Return the words on the deadline that follow the text of a submission's event."""
    soft = "soft " if job.spec.deadline is not None and job.spec.deadline.soft else ""
    words = {
        PromiseState.HOLDS: "promised",
        PromiseState.PROVISIONAL: f"promised provisionally, until {found.planned.waits_for} is known",
        PromiseState.NONE: "not promised",
        PromiseState.BREAKS: "not promised",
    }
    return f", {soft}deadline in {span(job.deadline_s - now)}, {words[found.state]}"


# -- newcomers


def _refused(reason: str, offer: CounterOffer | None = None) -> Judged:
    return Judged(PromiseState.NONE, Planned(), reason=reason, offer=offer)


def _never_promised(job: Job) -> str:
    """Return why a deadline of such a job could not be promised in any cluster; "": it could."""
    spec = job.spec
    if not spec.expected_to_join:
        return f"a command that does not call elastic.join() tells no steps: nobody knows when it ends; {AS_IT_CAN}"
    return ""


def _waits_for(cluster: Cluster, now: float, seen: Snapshot, job: Job) -> str:
    """Return the unknown facts, in words, without which no plan can be made for `job`; "": all are known."""
    missing = [_length_of(job)] if math.isnan(job.steps_left) else []
    if not cluster.estimate(now, job, _servers(cluster, seen.view, job)).known:
        missing.append(THROUGHPUT)
    return " and ".join(missing)


def _length_of(job: Job) -> str:
    """Return the name, for users, of the fact that gives the length of `job`."""
    until = job.spec.until
    return LENGTH if until is None else f"its length (some reports of {until.metric}, or max_steps)"


def _final_by_s(cluster: Cluster, now: float, waits_for: str) -> float | None:
    """Return when the missing facts are known if the job starts now (Unix time).

    None: the length is missing, and the time at which the job reports its length cannot be foreseen.
    """
    return now + STARTED_S + cluster.settings.measuring.longest_s if waits_for == THROUGHPUT else None


def _servers(cluster: Cluster, view: ClusterView, job: Job) -> Ints:
    most = max(view.jobs.curves.most, min(job.spec.gpus.max, max(view.total_gpus, 1)))
    return fewest(cluster, most)


@dataclass(frozen=True)
class _Wide:
    """A view with additional rows for starting and newly submitted jobs, and a server with the GPUs of the starting jobs."""

    view: ClusterView
    jobs: tuple[Job, ...]  # job of each row
    busy: Busy  # GPUs that are reserved, and until when
    busy_on: Mapping[str, Busy] = field(default_factory=dict)  # by GPU type: GPUs of starting jobs without deadlines


def _starting(cluster: Cluster) -> tuple[Job, ...]:
    """Return the jobs that cannot be resized yet because their workers are expected to join and have not."""
    return tuple(job for job in cluster.jobs.rows.gangs.values() if job.spec.expected_to_join and not job.final)


def _wide(
    cluster: Cluster, now: float, seen: Snapshot, more: Sequence[Job], scheduler: Scheduler | None = None
) -> _Wide:
    """Return the view of `seen` with the jobs `more` as its last rows.

    `scheduler`: the scheduler that decides; None: the one in use.
    """
    reserved = tuple(busy((scheduler or cluster.planning.decider.scheduler).stages.reservations, taken(cluster), now))
    if not more:
        return _Wide(_with_types(cluster, now, seen.view, seen.jobs), seen.jobs, reserved)
    sorts = tuple(_sort(cluster, gpu) for job in more for gpu in job.own_gpus)
    own = len(sorts)
    beside = (ServerInView(STARTING_SERVER, tuple(range(own)), sorts),) if own else ()
    view = structs.replace(seen.view, servers=(*seen.view.servers, *beside), **_limits(cluster, seen, more))
    jobs, total = view.jobs, view.total_gpus
    curves, rows = jobs.curves, []
    narrow = np.flatnonzero(np.isfinite(jobs.deadline_s)).tolist() if own else []  # capped by the GPUs of `seen`
    narrow = [row for row in narrow if jobs.max_gpus[row] < min(seen.jobs[row].spec.gpus.max, total)]
    for job in (*(seen.jobs[row] for row in narrow), *more):
        estimated = cluster.estimate(now, job, fewest(cluster, max(curves.most, min(job.spec.gpus.max, total), 1)))
        rows.append(_row(now, total, job, estimated, len(curves.speedup)))
        curves = _with_curve(curves, estimated.speedup)
    names = [*(jobs.name(row) for row in range(len(jobs))), *(job.id for job in more)]
    columns = {
        name: np.append(getattr(jobs, name), [row[name] for row in rows[len(narrow) :]]).astype(
            getattr(jobs, name).dtype
        )
        for name in (each.name for each in fields(Columns))
        if name != "names"
    }
    for row, wider in zip(narrow, rows, strict=False):
        columns["max_gpus"][row], columns["curve"][row] = wider["max_gpus"], wider["curve"]
    all_columns, schedules = Columns(names=names, **columns), cluster.planning.schedules
    table = JobTable(all_columns, np.arange(len(names)), curves, ended=jobs.ended, schedules=schedules)
    others = Counter(_sort(cluster, gpu).name for job in more if job.spec.deadline is None for gpu in job.own_gpus)
    starting = {name: ((now, now + STARTED_S, count),) for name, count in others.items()}
    view = _with_types(cluster, now, structs.replace(view, jobs=table), (*seen.jobs, *more))
    return _Wide(view, (*seen.jobs, *more), reserved, starting)


def _with_types(cluster: Cluster, now: float, view: ClusterView, jobs: Sequence[Job]) -> ClusterView:
    """Return the view with a curve on each GPU type for jobs that have not begun.

    A type on which a job's throughput is unknown cannot be promised to the job.
    """
    names = dict.fromkeys(sort.name for server in view.servers for sort in server.sorts)
    rows = np.flatnonzero(np.isfinite(view.jobs.deadline_s) & (view.jobs.left_s < UNKNOWN_S)).tolist()
    if len(names) < 2 or not rows:
        return view
    curves, servers = view.jobs.curves, fewest(cluster, view.jobs.curves.most)
    speedup, on = [curves.speedup], {name: list(range(len(curves.speedup))) for name in names}
    count = len(curves.speedup)
    for curve, job in {int(view.jobs.curve[row]): jobs[row] for row in rows if not jobs[row].record.gpu_name}.items():
        alone = float((job.estimated or cluster.estimate(now, job, servers)).curve[1])
        for name in names:
            estimated = cluster.estimate(now, job, servers, name)
            speedup.append((estimated.curve[None, :] / alone) if estimated.known else np.zeros((1, curves.most + 1)))
            on[name][curve] = count
            count += 1
    table = copy(view.jobs)
    table.curves = Curves(np.vstack(speedup), on={name: np.array(rows) for name, rows in on.items()})
    return structs.replace(view, jobs=table)


def _sort(cluster: Cluster, gpu: GpuAddress) -> GpuSort:
    """Return the properties of a GPU; those of an unnamed GPU if its server is unknown."""
    session = cluster.servers.sessions.get(gpu.server)
    whole = session.whole if session is not None else None
    known = whole is not None and gpu.index in whole.gpus and whole.sorts
    return (
        whole.sorts[whole.gpus.index(gpu.index)]
        if whole is not None and known
        else GpuSort(cluster.servers.gpu_name(gpu))
    )


def _limits(cluster: Cluster, seen: Snapshot, more: Sequence[Job]) -> dict[str, Any]:
    """Return the limits and placements of the view of `seen` with the jobs `more` as its last rows; none if every job
    may use every GPU."""
    view, begin = seen.view, seen.view.total_gpus
    placements = dict(view.placements)
    for row, job in enumerate(more, start=len(seen.jobs)):
        if count := len(job.own_gpus):
            placements[row] = ((1 << count) - 1) << begin
            begin += count
    own = [demand_of(job, cluster.servers.gpu_name) for job in (*(() if view.limits else seen.jobs), *more)]
    there = [
        *(sort for server in view.servers for sort in server.sorts),
        *(_sort(cluster, g) for j in more for g in j.own_gpus),
    ]
    sorts = dict.fromkeys(there)
    everything = tuple(sorts)
    if not view.limits and all(one.options(sorts) == (everything,) and not one.counts for one in own):
        return {"placements": placements}
    known = [limit.demand for limit in view.limits]
    demands = [*known, *(one for one in dict.fromkeys(own) if one not in known)]
    limits = (*view.limits, *(Limit(demand, ()) for demand in demands[len(known) :]))
    of_seen = view.limit_of.tolist() if view.limit_of is not None and view.limits else []
    limit_of = np.array([*of_seen, *(demands.index(one) for one in own)], dtype=np.int64)
    return {"placements": placements, "limits": limits, "limit_of": limit_of}


def _row(now: float, total: int, job: Job, estimated: Estimated, curve: int) -> dict[str, float]:
    """Return the values, by column, of a row for a job that the view does not contain."""
    spec, known = job.spec, estimated.known and not math.isnan(job.steps_left)
    most = max(1, min(spec.gpus.max, total, len(estimated.curve) - 1))
    left_s = job.steps_left / float(estimated.curve[1]) if known else UNKNOWN_S
    return {
        "submitted_s": job.submission.submitted_s,
        "min_gpus": spec.gpus.min,
        "max_gpus": max(1, peak(estimated.hull, min(spec.gpus.min, most), most)) if estimated.known else most,
        "requested_gpus": most,
        "priority": spec.priority,
        "share": len(job.own_gpus) if spec.gpus_per_server else 0,  # other jobs may start with another share
        "left_s": left_s,
        "told_s": left_s if known else math.nan,
        "done_s": 0.0,
        "attained_gpu_s": job.record.attained_gpu_s,
        "executed_s": job.record.executed_s,
        "waiting_since_s": now,
        "curve": curve,
        "still_until_s": 0.0,
        "changes": 0,
        "deadline_s": job.planned_by_s,
        "soft": int(not job.promised),
    }


def _with_curve(curves: Curves, speedup: Floats) -> Curves:
    """Return the curves with one more at the end. Shorter curves are extended by their last values."""
    width = max(curves.most + 1, len(speedup))
    rows = [np.pad(curves.speedup, ((0, 0), (0, width - curves.speedup.shape[1])), mode="edge")]
    rows.append(np.pad(speedup, (0, width - len(speedup)), mode="edge")[None, :])
    return Curves(np.vstack(rows))


# -- offers: deadlines that would hold


def _offer(wide: _Wide, steps: float, newcomer: Promise, found: Offer, terms: DeadlineTerms) -> CounterOffer:
    part = found.left_s / newcomer.left_s if newcomer.left_s > 0 else 0.0
    can = math.floor(steps * part)
    return CounterOffer(
        deadline_s=told_deadline_s(found.deadline_s, terms) if math.isfinite(found.deadline_s) else None,
        steps=can if can >= 1 else None,
        more_gpus=found.more_gpus,
        consent=tuple(wide.jobs[row].id for row in found.consent),
    )


def _sentence(now: float, job: Job, offer: CounterOffer, others: bool) -> str:
    """Return why a job is refused, and the deadlines or sizes that would hold. `others`: whether other promises exist."""
    instead = "; ".join(_instead(now, offer))
    beside = " beside the promises to other jobs" if others else ""
    what = f"its deadline in {span(job.deadline_s - now)} does not hold{beside}"
    return f"{what}; any of these would: {instead}" if instead else f"{what}, and nothing that could be changed helps"


def _instead(now: float, offer: CounterOffer, of_steps: float | None = None) -> list[str]:
    """Return the changes in words. of_steps: the steps left of a job that has begun; None: the job is new."""
    deadline = f"in {span(math.ceil(offer.deadline_s - now))}" if offer.deadline_s is not None else ""
    return changes(offer, deadline, f" of the {of_steps:,.0f} left" if of_steps is not None else "")


# -- promises that have been given


def _note(cluster: Cluster, now: float, job: Job, state: PromiseState, planned: Planned) -> None:
    before = job.record.promise
    if before is PromiseState.PROVISIONAL and job.profiling is not None:
        state, planned = before, Planned(waits_for=THROUGHPUT, final_by_s=job.planned.final_by_s)
    elif before is PromiseState.PROVISIONAL and state is PromiseState.BREAKS:
        state = PromiseState.NONE  # the promise was never final
    if not job.set_promise(state, planned):
        return
    cluster.jobs.mark_dirty(job)
    text = _event_text(now, job, state, before)
    if text:
        kind = EventKind.PROMISED if state is PromiseState.HOLDS else EventKind.ENDANGERED
        cluster.history.add(now, kind, job.id, text)


def _event_text(now: float, job: Job, state: PromiseState, before: PromiseState | None) -> str:
    """Return the text of the event about a promise's new state; "": no event is due."""
    planned = job.planned
    end = f"planned end in {span(planned.finish_s - now)}" if planned.finish_s is not None else "no end is in sight"
    deadline = f"deadline in {span(job.deadline_s - now)}" if job.deadline_s > now else "deadline passed"
    match state:
        case PromiseState.HOLDS:
            again = " again" if before in (PromiseState.BREAKS, PromiseState.NONE) else ""
            kept = f", {gpu_count(planned.least_gpus)} kept for it" if planned.least_gpus else ""
            return f"its deadline holds{again}: {end}, {deadline}{kept}"
        case PromiseState.BREAKS:
            rest = f"; {planned.saved_by}" if planned.saved_by else ""
            return f"its deadline will be missed, as things are: {end}, {deadline}{rest}"
        case PromiseState.NONE:
            because = f": {planned.saved_by}" if planned.saved_by else ""
            ways = "; or ".join(_instead(now, planned.offer, job.steps_left)) if planned.offer is not None else ""
            saves = f"; what would save it: {ways}" if ways else ""
            return f"its deadline cannot be promised{because}: {end}, {deadline}{saves}; it goes on as it can"
    return ""


def _share(kept: Kept, wide: _Wide, row: int) -> int:
    return int(kept.shares[row]) if row < len(kept.shares) else int(wide.view.jobs.share[row])


def _end_s(view: ClusterView, row: int, share: int) -> float | None:
    """Return when the job of `row` ends with `share` GPUs (Unix time); None: without GPUs."""
    rate = float(view.jobs.speedup(row, min(share, view.jobs.curves.most))) if share else 0.0
    return view.now + float(view.jobs.left_s[row]) / rate if rate > 0 else None


def _saved_by(wide: _Wide, asked: Commitments, one: Promise) -> str:
    """Return the changes that would save a breaking promise, in words; "": no change would."""
    others = replace(asked, promised=[other for other in asked.promised if other.key != one.key])
    if others.plan() is None:
        return "others' promises break, too"
    job, found = wide.jobs[one.key], counter_offer(others, one)
    part = found.left_s / one.left_s if one.left_s > 0 else 0.0
    ways = []
    if found.more_gpus is not None:
        ways.append(f"{gpu_count(found.more_gpus)} more in the cluster")
    if found.consent:
        ways.append(f"{', '.join(wide.jobs[row].id for row in found.consent)} going on without a promise")
    if math.floor(job.steps_left * part) >= 1:
        ways.append(f"at most {math.floor(job.steps_left * part):,} of the {job.steps_left:,.0f} steps left")
    return f"what would save it: {'; or '.join(ways)}" if ways else ""


def _offered(
    wide: _Wide, kept: Kept, row: int, terms: DeadlineTerms, most_gpu_s: float = math.inf
) -> CounterOffer | None:
    """Return changes with which the deadline of `row` would be promised beside the promises that hold.

    None: the deadline would be promised without changes, or there is no plan of those promises to add the job to.
    most_gpu_s: the GPU time that may still be promised to the job's user.

    The job counts as one that has to start first, as it does if it is submitted again with a later deadline.
    """
    found = []
    for number, one in choices_of(wide.view, row, terms).items():
        promised = [kept.promised[key] for key in kept.plan.found if kept.homes[key] == number and key != row]
        beside = replace(kept.these.each[number], promised=promised)
        one = structs.replace(one, share=0, lead_s=max(one.lead_s, terms.start_s))
        if beside.plan() is None:
            return None
        if math.isfinite(most_gpu_s):
            found.append((within(beside, one, most_gpu_s), one))
        elif beside.plan([one]) is None:
            found.append((counter_offer(beside, one), one))
        else:
            return None
    if not found:
        return None
    offer, one = min(found, key=lambda each: each[0].deadline_s)
    return _offer(wide, wide.jobs[row].steps_left, one, offer, terms)


def _last_looks(now: float, kept: Kept, terms: DeadlineTerms) -> Iterator[float]:
    """Yield the latest times to check each promise (Unix time): one margin and half a margin before its deadline."""
    for row in kept.plan.found:
        due_s = kept.promised[row].deadline_s  # a margin before the deadline
        yield from (at for at in (due_s, due_s + terms.margin_s / 2) if at > now)
