"""What is recorded of a cluster besides its jobs, and the keys of all records in the store. Of a job: `jobs.records`."""

from __future__ import annotations

from typing import Any

from ..protocol.model import CordonKind, JobId, Server, ServerId, Value

POLICY_KEY = "/policy"
CLUSTER_KEY = "/cluster"
LEADER_KEY = "/leader"
ADOPTED = "/adopted/"
OVERRULED = "/overruled/"
REMOVED = "/removed/"
JOBS = "/jobs/"
REQUESTS = "/requests/"
SUBMISSION, STATE = "/spec", "/state"  # after a job's id


def submission_key(job: JobId) -> str:
    """Of what was submitted: written once."""
    return JOBS + job + SUBMISSION


def state_key(job: JobId) -> str:
    """Of what has become of it."""
    return JOBS + job + STATE


def job_of_state(key: str) -> JobId | None:
    """The job whose state, or a part of it (`jobs.stored`), stands under `key`; None: something else stands there."""
    job, there, rest = key.removeprefix(JOBS).partition(STATE) if key.startswith(JOBS) else ("", "", "")
    return JobId(job) if there and (not rest or rest.startswith("/")) else None


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


class Cordon(Value, frozen=True, kw_only=True):
    """An operator wants no new work on a GPU, or on a whole server; `kind`: and what of the work that is there."""

    gpu: int | None  # index on its server; None: the whole server
    reason: str
    by: str
    since_s: float
    kind: CordonKind = CordonKind.CORDON
    drained_s: float | None = None  # of a drain: when nothing ran there any more (Unix time)
    loan: str = ""  # it is lent to somebody outside the cluster (`requests.lending`): which loan
    until_s: float | None = None  # of a loan: it ends then (Unix time)

    def covers(self, gpu: int) -> bool:
        """Is this GPU meant?"""
        return self.gpu is None or self.gpu == gpu


class Trusted(Value, frozen=True, kw_only=True):
    """An operator wants a GPU, or a whole server, to be used in spite of a trouble: of this code, that came at this time."""

    gpu: int | None
    code: str
    since_s: float


class OverruleRecord(Value, frozen=True, kw_only=True, rename={"cordons": "excluded"}):
    """What operators have decided about a server and its GPUs. In the store a cordon is called as in the first versions."""

    cordons: tuple[Cordon, ...] = ()
    trusted: tuple[Trusted, ...] = ()

    @property
    def drains(self) -> tuple[Cordon, ...]:
        """The cordons whose work is to go."""
        return tuple(cordon for cordon in self.cordons if cordon.kind.drains)


class RemovalRecord(Value, frozen=True, kw_only=True):
    """An operator has removed a server whose agent still ran: that agent is not taken in before it is started anew."""

    agent: str  # its identity
    incarnation: str  # of the agent: new for each of its starts
    by: str
    since_s: float


class PolicyRecord(Value, frozen=True, kw_only=True):
    """What is recorded of a policy that has been set at run time. There is none while the configuration decides."""

    document: dict[str, Any]  # a policy file (`scheduler.scheduler`)
    source: str  # where it came from, for people
    user: str
    since_s: float
