"""Authorisation of requests (trust).

All users, readers and operators see all jobs, servers, events and the policy; a reader does nothing else. A user acts on
the jobs that the user has submitted: scales, profiles and cancels them, and reads their logs and environments. An
operator acts on all jobs, and on the cluster. Servers use another socket, and may make no requests here.

A job belongs to the principal that has submitted it, by name. Two kinds of jobs belong to the operators: those of the
operator of a one-machine cluster (`LOCAL`), and those submitted before there were owners.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.errors import NotAllowed
from ...protocol.messages import (
    AdoptServer,
    CordonServer,
    EndLoan,
    GetControllers,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetOutlook,
    GetPolicy,
    GetQuotas,
    GetServers,
    GetUsage,
    LendGpus,
    Ping,
    RemoveServer,
    Request,
    SaveAll,
    SetPolicy,
    UncordonServer,
)
from ...protocol.model import JobSpec
from ...protocol.principals import CLIENT_ROLES, LOCAL, LOCAL_OPERATOR, Principal, Role
from ..jobs.job import Job

READS = (
    GetControllers,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetOutlook,
    GetPolicy,
    GetQuotas,
    GetServers,
    GetUsage,
    Ping,
)


def check(who: Principal, request: Request) -> None:
    """Check that `who` may make this request, regardless of the job. Raises NotAllowed."""
    if who.role is Role.OPERATOR:
        return
    if who.role not in CLIENT_ROLES or who.name in ("", LOCAL):
        raise NotAllowed(f"{who} is no user, reader or operator: nothing can be asked for under this name")
    if who.role is Role.READER and not isinstance(request, READS):
        raise NotAllowed(f"{who} may look at jobs and servers, and change nothing: a user's key can")
    match request:
        case SetPolicy(dry_run=False):
            raise NotAllowed("only operators may change the policy; --dry-run tells what it would change")
        case AdoptServer(server=server) | RemoveServer(server=server):
            what = "take over" if isinstance(request, AdoptServer) else "remove"
            raise NotAllowed(f"only operators may {what} a server, such as {server[:80]!r}")
        case SaveAll():
            raise NotAllowed("only operators may stop all jobs")
        case LendGpus() | EndLoan():
            raise NotAllowed("only operators may lend GPUs, or take them back")
        case CordonServer(server=server) | UncordonServer(server=server):
            what = "uncordon"
            if isinstance(request, CordonServer):
                what = "drain" if request.kind.drains else "cordon"
            raise NotAllowed(f"only operators may {what} a server or a GPU, such as {server[:80]!r}")


def check_job(who: Principal, job: Job, what: str) -> None:
    """Check that `who` may act on `job`. Raises NotAllowed.

    `what` names the act, such as "cancel" or "read the logs of".
    """
    if not may_act(who, job):
        owner = job.submission.owner
        others = f"{owner} and operators" if owner not in ("", LOCAL) else "operators"
        raise NotAllowed(f"{who.name} may not {what} {job.id}: only {others} may")


def may_act(who: Principal, job: Job) -> bool:
    """Return whether `who` has submitted the job or is an operator."""
    return who.role is Role.OPERATOR or (who.role is Role.USER and bool(who.name) and who.name == job.submission.owner)


def by(who: Principal) -> str:
    """Return the suffix that names the principal in an event, such as " by alice".

    The suffix is "" for the operator of a one-machine cluster.
    """
    if who == LOCAL_OPERATOR:
        return ""
    return f" by {who.name}" if who.role is Role.USER else f" by {who.role.value} {who.name}"


def signed(who: Principal, spec: JobSpec) -> JobSpec:
    """Return `spec` with the authenticated name of the user; in a one-machine cluster, with the name in the request."""
    if who == LOCAL_OPERATOR or spec.user == who.name:
        return spec
    return replace(spec, user=who.name)


def shown(who: Principal, job: Job) -> JobSpec:
    """Return a job's specification as `who` may see it.

    The environment, which may contain secrets, and the paths of secrets are left out unless `who` may act on the job.
    """
    hidden = job.spec.env or job.spec.secrets
    return job.spec if not hidden or may_act(who, job) else replace(job.spec, env={}, secrets={})
