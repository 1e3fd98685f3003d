"""Policy in use, and its replacement while the cluster runs.

A policy set at run time is recorded in the store, and overrides the configuration until it is reset. So it survives a
change of the controller process. Running jobs continue. The new policy makes the next decision, and jobs change from
the old to the new shares as after any decision.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from ...protocol.errors import OperatorError, UserError
from ...protocol.messages import EventKind, PolicyInUse, PolicySet, SetPolicy, ShareForecast, StageView
from ...protocol.principals import LOCAL_OPERATOR
from ...scheduler.quotas.messages import changes, reservation_messages
from ...scheduler.scheduler import Scheduler, document, load_scheduler
from ..cluster import Cluster
from ..events import ClientRequest
from ..reconcile.deadline_admission import deadlines
from ..reconcile.deciding import decided
from ..reconcile.settle import settle
from ..reconcile.snapshot import snapshot
from ..reconcile.tainted import keep_off
from ..records import PolicyRecord
from ..state.planning import Decider
from .authority import by

MAX_DOCUMENT_BYTES = 64 << 10
MAX_DOCUMENT_DEPTH = 32  # of lists and mappings in one another; the interpreter's stack ends at a thousand calls
MAX_ORIGIN = 4096


def in_use(cluster: Cluster) -> PolicyInUse:
    """Return the policy that decides now, and the configured one."""
    decider = cluster.planning.decider
    view = _view(decider.scheduler, decider.since_s, decider.record, cluster.planning.configured)
    return replace(view, trouble=cluster.planning.policy_trouble)


def set_policy(cluster: Cluster, now: float, asked: ClientRequest, request: SetPolicy) -> PolicySet | None:
    """Switch the policy, or with `dry_run` return the changes that switching would cause.

    Return None if the controller has just started and cannot decide yet. Raises UserError, which names source and
    field, and PolicyFailed if the policy cannot decide about the present jobs.
    """
    if _depth(request.document) > MAX_DOCUMENT_DEPTH:
        raise UserError(f"{request.source[:200]}: a policy file has at most {MAX_DOCUMENT_DEPTH} levels")
    if request.document is not None and len(msgspec.msgpack.encode(request.document)) > MAX_DOCUMENT_BYTES:
        raise UserError(f"{request.source[:200]}: a policy file has at most {MAX_DOCUMENT_BYTES} bytes")
    if max(len(request.source), len(request.user)) > MAX_ORIGIN:
        raise UserError(f"the name of a policy's file or user has at most {MAX_ORIGIN} characters")
    user = request.user if asked.who == LOCAL_OPERATOR else asked.who.name
    if request.document is None:
        record, scheduler = None, cluster.planning.configured
    else:
        record = PolicyRecord(document=request.document, source=request.source, user=user, since_s=now)
        scheduler = _load(cluster, record)
    if cluster.servers.awaited:
        return None
    before = in_use(cluster)
    shares = _forecast(cluster, now, scheduler)
    if not request.dry_run:
        _switch(cluster, now, asked, Decider(scheduler, now, record), user)
    after = _view(scheduler, now, record, cluster.planning.configured)
    return PolicySet(before=before, after=after, shares=shares, time_s=now)


def _depth(values: object) -> int:
    """Return how many lists and mappings contain the innermost of these plain values."""
    depth, level = 0, [values]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
    return depth


def recover_policy(cluster: Cluster, record: PolicyRecord) -> str:
    """Resume a policy that was set at run time; return why this version cannot use it, or ""."""
    try:
        cluster.planning.recover(Decider(_load(cluster, record), record.since_s, record))
    except UserError as error:
        return f"the policy that was set at run time cannot be used, the configured one decides: {error}"
    return ""


def reconfigured(cluster: Cluster, now: float, configured: Scheduler) -> None:
    """Apply a configuration that was read again.

    A policy set at run time stays. Only the stages that it leaves to the configuration change.
    """
    cluster.planning.configure(configured)
    decider = Decider(configured, now)
    if (record := cluster.planning.decider.record) is not None:
        decider = Decider(_load(cluster, record), cluster.planning.decider.since_s, record)
    if document(decider.scheduler) == document(cluster.planning.decider.scheduler):
        return
    text = f"{_sentence(cluster.planning.decider.scheduler, decider)}; the configuration has changed"
    cluster.history.add(now, EventKind.POLICY, None, text)
    cluster.planning.use(decider)
    if not cluster.servers.awaited:
        settle(cluster, now, at_once=True)


def _load(cluster: Cluster, record: PolicyRecord) -> Scheduler:
    try:
        return load_scheduler(record.document, record.source, cluster.planning.configured.stages)
    except OperatorError as error:
        raise UserError(str(error)) from None


def _switch(cluster: Cluster, now: float, asked: ClientRequest, decider: Decider, user: str) -> None:
    who = by(asked.who) or (f" by {user}" if user else "")
    text = _sentence(cluster.planning.decider.scheduler, decider) + who
    cluster.history.add(now, EventKind.POLICY, None, text)
    cluster.clients.audit(now, asked, "set policy", decider.scheduler.policy.name, text)
    cluster.planning.use(decider)
    cluster.planning.record_policy(decider.record)
    settle(cluster, now, at_once=True)


def _sentence(before: Scheduler, decider: Decider) -> str:
    old, new = document(before), document(decider.scheduler)
    changed = [name for name in ("admission", "packing", "placement", "deadlines") if old[name] != new[name]]
    stages = "".join(f", {name} {_name(new[name])}" for name in changed)
    quotas = changes(before.stages.quotas, decider.scheduler.stages.quotas)
    stages += f", quotas: {quotas}" if quotas else ""
    reserved = reservation_messages(before.stages.reservations, decider.scheduler.stages.reservations)
    stages += f", reservations: {reserved}" if reserved else ""
    origin = f"from {decider.scheduler.source}" if decider.record is not None else "as configured"
    return f"{old['policy']} gives way to {new['policy']}{_values(new['parameters'])}{stages}, {origin}"


def _name(stage: str | Mapping[str, object]) -> object:
    return stage if isinstance(stage, str) else stage.get("name", _values(stage).strip())


def _values(parameters: Mapping[str, object]) -> str:
    return f" ({', '.join(f'{name}: {value}' for name, value in parameters.items())})" if parameters else ""


def _forecast(cluster: Cluster, now: float, scheduler: Scheduler) -> tuple[ShareForecast, ...]:
    """Return the jobs with changed shares, in the order of submission.

    No state changes, the random generator's included. Raises PolicyFailed.
    """
    seen = snapshot(cluster, now, scheduler=scheduler)
    chosen = decided(
        scheduler,
        seen,
        copy.copy(cluster.rng),
        lambda decision: keep_off(cluster, seen, decision),
        deadlines(cluster, seen, scheduler),
    )
    found = []
    for row, job in enumerate(seen.jobs):
        before, after = len(job.record.target), int(chosen.decision.shares[row])
        if after != before:
            reason = chosen.why(row)
            found.append(ShareForecast(job=job.id, before_gpus=before, after_gpus=after, reason=reason))
    return tuple(found)


def _view(scheduler: Scheduler, since_s: float, record: PolicyRecord | None, configured: Scheduler) -> PolicyInUse:
    chosen = document(scheduler)
    return PolicyInUse(
        policy=StageView(name=chosen["policy"], parameters=chosen["parameters"]),
        admission=StageView(**chosen["admission"]),
        packing=chosen["packing"],
        placement=StageView(**chosen["placement"]),
        needs_lengths=scheduler.policy.needs_lengths,
        at_run_time=record is not None,
        source=scheduler.source,
        user=record.user if record is not None else "",
        since_s=since_s,
        configured_policy=configured.policy.name,
        deadlines=chosen["deadlines"],
        quotas=chosen["quotas"],
        reservations=tuple(chosen["reservations"]),
    )
