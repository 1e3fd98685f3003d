"""What is recorded of a cluster besides its jobs, and the keys of all records in the store. Of a job: `jobs.records`."""

from __future__ import annotations

from typing import Any

from ..protocol.model import JobId, Server, ServerId, Value

POLICY_KEY = "/policy"
CLUSTER_KEY = "/cluster"
LEADER_KEY = "/leader"
ADOPTED = "/adopted/"
OVERRULED = "/overruled/"
JOBS = "/jobs/"
REQUESTS = "/requests/"
SUBMISSION, STATE = "/spec", "/state"  # after a job's id


def submission_key(job: JobId) -> str:
    """Of what was submitted: written once."""
    return JOBS + job + SUBMISSION


def state_key(job: JobId) -> str:
    """Of what has become of it."""
    return JOBS + job + STATE


def request_key(request: str) -> str:
    return REQUESTS + request


def event_key(number: int) -> str:
    return f"/events/{number:012d}"


def server_key(server: ServerId) -> str:
    return f"/servers/{server}"


class ServerRecord(Value, frozen=True, kw_only=True):
    """What is recorded of a server."""

    server: Server
    agent: str = ""  # its agent's identity


class ClusterRecord(Value, frozen=True, kw_only=True):
    """What is recorded of the cluster itself."""

    id: str  # random: tells it from a cluster that has had the same servers
    first_job: int = 1  # lower numbers may have been used by jobs that the store has lost


class LeaderRecord(Value, frozen=True, kw_only=True):
    """Who reigns, or has reigned last. A term is recorded before anything is sent under it."""

    term: int  # of the reign (`protocol.terms`)
    name: str = ""  # of the controller, where there are several
    agents_at: tuple[str, ...] = ()  # where agents reach it, likewise
    clients_at: tuple[str, ...] = ()  # where clients do


class RequestRecord(Value, frozen=True, kw_only=True):
    """A request has submitted a job: a repetition gets the same answer."""

    job: JobId


class AdoptionRecord(Value, frozen=True, kw_only=True):
    """An operator has decided that a server is to be taken over."""

    agent: str  # its agent's identity


class Exclusion(Value, frozen=True, kw_only=True):
    """An operator wants no new work on a GPU, or on a whole server."""

    gpu: int | None  # index on its server; None: the whole server
    reason: str
    by: str
    since_s: float


class Trusted(Value, frozen=True, kw_only=True):
    """An operator wants a GPU, or a whole server, to be used in spite of a trouble: of this code, that came at this time."""

    gpu: int | None
    code: str
    since_s: float


class OverruleRecord(Value, frozen=True, kw_only=True):
    """What operators have decided about a server and its GPUs."""

    excluded: tuple[Exclusion, ...] = ()
    trusted: tuple[Trusted, ...] = ()


class PolicyRecord(Value, frozen=True, kw_only=True):
    """What is recorded of a policy that has been set at run time. There is none while the configuration decides."""

    document: dict[str, Any]  # a policy file (`scheduler.scheduler`)
    source: str  # where it came from, for people
    user: str
    since_s: float
