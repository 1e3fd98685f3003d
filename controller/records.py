"""Records of a cluster besides those of its jobs (`jobs.records`), and the keys of all records in the store."""

from __future__ import annotations

from typing import Any

from ..protocol.model import CordonKind, JobId, Server, ServerId, Value

POLICY_KEY = "/policy"
CLUSTER_KEY = "/cluster"
LEADER_KEY = "/leader"
ADOPTED = "/adopted/"
OVERRULED = "/overruled/"
REMOVED = "/removed/"
SLOW = "/slow/"
JOBS = "/jobs/"
REQUESTS = "/requests/"
SUBMISSION, STATE = "/spec", "/state"  # parts of keys that follow a job's id


def submission_key(job: JobId) -> str:
    """Return the key of a job's submission, which is written once."""
    return JOBS + job + SUBMISSION


def job_of_submission(key: str) -> JobId | None:
    """Return the job whose submission is under `key`; None: another record is there."""
    named = key.startswith(JOBS) and key.endswith(SUBMISSION)
    return JobId(key.removeprefix(JOBS).removesuffix(SUBMISSION)) if named else None


def state_key(job: JobId) -> str:
    """Return the key of a job's state."""
    return JOBS + job + STATE


def job_of_state(key: str) -> JobId | None:
    """Return the job with its state, or a part of it (`jobs.stored`), under `key`; None: it is a key of another kind."""
    job, there, rest = key.removeprefix(JOBS).partition(STATE) if key.startswith(JOBS) else ("", "", "")
    return JobId(job) if there and (not rest or rest.startswith("/")) else None


def request_key(request: str) -> str:
    return REQUESTS + request


def event_key(number: int) -> str:
    return f"/events/{number:012d}"


def server_key(server: ServerId) -> str:
    return f"/servers/{server}"


class ServerRecord(Value, frozen=True, kw_only=True):
    """Record of a server."""

    server: Server
    agent: str = ""  # identity of the server's agent


class ClusterRecord(Value, frozen=True, kw_only=True):
    """Record of the cluster's identity."""

    id: str  # random: distinguishes the cluster from another one that has had the same servers
    first_job: int = 1  # lower numbers may have been used by jobs that the store has lost


class LeaderRecord(Value, frozen=True, kw_only=True):
    """Record of the present leader, or the last one. A term is recorded before any message is sent under it."""

    term: int  # term of the reign (`protocol.terms`)
    name: str = ""  # name of the controller; "" if there is only one
    agents_at: tuple[str, ...] = ()  # addresses for agents; empty if there is only one controller
    clients_at: tuple[str, ...] = ()  # addresses for clients, likewise


class RequestRecord(Value, frozen=True, kw_only=True):
    """Record of a request that has submitted a job, so that a repeated request gets the same answer."""

    job: JobId


class AdoptionRecord(Value, frozen=True, kw_only=True):
    """Record of an operator's decision to take a server over from another cluster."""

    agent: str  # identity of the server's agent


class Cordon(Value, frozen=True, kw_only=True):
    """Order of an operator that a GPU, or a whole server, takes no new work. `kind`: what happens to the present work."""

    gpu: int | None  # index on its server; None: the whole server
    reason: str
    by: str
    since_s: float
    kind: CordonKind = CordonKind.CORDON
    drained_s: float | None = None  # when a drain was over (Unix time)
    loan: str = ""  # id of the loan, if the GPUs are lent to a user outside the cluster (`requests.lending`)
    until_s: float | None = None  # end of a loan (Unix time)

    def covers(self, gpu: int) -> bool:
        """Return whether the cordon covers the GPU with this index."""
        return self.gpu is None or self.gpu == gpu


class Trusted(Value, frozen=True, kw_only=True):
    """Order of an operator to use a GPU, or a whole server, in spite of the trouble with this code and time (Unix time)."""

    gpu: int | None
    code: str
    since_s: float


class OverruleRecord(Value, frozen=True, kw_only=True, rename={"cordons": "excluded"}):
    """Decisions of operators about a server and its GPUs. The store calls cordons by a name of the
    first versions."""

    cordons: tuple[Cordon, ...] = ()
    trusted: tuple[Trusted, ...] = ()

    @property
    def drains(self) -> tuple[Cordon, ...]:
        """The cordons that also drain: their present work has to leave."""
        return tuple(cordon for cordon in self.cordons if cordon.kind.drains)


class SlowFinding(Value, frozen=True, kw_only=True):
    """A job has left a GPU, since its worker there was slow."""

    gpu: int  # index on its server
    job: JobId
    owner: str  # principal that submitted the job
    slowdown: float  # how many times longer than the others the worker took for a virtual worker
    samples: int
    found_s: float  # Unix time
    cause: str = ""  # what the agent noted about the GPU then, such as heat


class SlowRecord(Value, frozen=True, kw_only=True):
    """Record of the slow GPUs of a server, the newest finding last."""

    findings: tuple[SlowFinding, ...]


class RemovalRecord(Value, frozen=True, kw_only=True):
    """Record of a server that an operator has removed while its agent ran: the agent is refused until it is restarted."""

    agent: str  # the agent's identity
    incarnation: str  # random word of the agent's start
    by: str
    since_s: float


class PolicyRecord(Value, frozen=True, kw_only=True):
    """Record of a policy that was set at run time; there is no such record while the configured policy decides."""

    document: dict[str, Any]  # a policy file (`scheduler.scheduler`)
    source: str  # the policy's origin, for people
    user: str
    since_s: float
