"""Commands that run beside a running worker (`elasticctl exec`).

`Exec` asks whether the command may run, and is written into the audit log; the answer is remembered, with the worker
and a digest of the command. `ExecIO` names that request, and carries input and output. The controller passes it on to
the worker's agent only if the same principal was allowed the same command. The agent starts the command once, keeps its
output and its exit code (`agent.commands`). If the controller or the agent restarts, the permission is forgotten and
the command ends, since no client could receive its output any more.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex

import msgspec

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import Exec, ExecAllowed, ExecIO, RunCommand
from ...protocol.streams import MAX_COMMAND_BYTES, MAX_INPUT_BYTES, MAX_TERMINAL_NAME, Input
from ...protocol.texts import many
from ..cluster import Cluster
from ..events import ClientRequest
from ..jobs.job import Job
from ..jobs.records import WorkerRecord, WorkerState
from ..reconcile.processes import start_message
from .authority import check_job
from .finding import find_job
from .pages import Fetched
from .pending import pass_on

ACT = "run commands in"
MAX_SIZE = 10_000  # rows or columns of a terminal
MOST_TOLD = 200  # characters of a command in the audit log


def allow(cluster: Cluster, now: float, asked: ClientRequest, request: Exec, fetched: Fetched) -> ExecAllowed:
    """Return the worker beside which the command may run. Raises UserError, NotAllowed, RequestRefused."""
    job = find_job(cluster, asked.who, request.job, fetched)
    check_job(asked.who, job, ACT)
    words = request.command
    if not words or not words[0] or sum(len(word.encode()) + 1 for word in words) > MAX_COMMAND_BYTES:
        raise UserError(f"a command has a name, and at most {MAX_COMMAND_BYTES} bytes")
    if any("\0" in word for word in words):
        raise UserError("a command cannot contain a zero byte")
    entry = _worker(job, request.rank)
    session = cluster.servers.sessions.get(entry.gpu.server)
    if session is None or not session.alive:
        raise RequestRefused(f"{entry.worker} is on server {entry.gpu.server}, which is not there")
    text = f"beside {entry.worker} on {entry.gpu.server}: {shlex.join(words)}"
    cluster.clients.audit(now, asked, "exec", job.id, text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}...")
    return ExecAllowed(
        exec=asked.envelope.id,
        job=job.id,
        worker=entry.worker,
        server=entry.gpu.server,
        agent=session.incarnation,
        digest=_digest(words, request.terminal),
    )


def exchange(cluster: Cluster, now: float, asked: ClientRequest, request: ExecIO, fetched: Fetched) -> None:
    """Pass input on to the agent; its reply becomes the answer. Raises UserError, NotAllowed, RequestRefused."""
    exec_name = dataclasses.replace(
        asked, envelope=msgspec.structs.replace(asked.envelope, id=request.exec)
    ).name  # contains the principal, so a principal cannot name the request of another one
    allowed = cluster.clients.answers.get(exec_name)
    if not isinstance(allowed, ExecAllowed):
        raise RequestRefused(
            "this controller does not know the command, for it has begun after the command: it is ended"
        )
    job = find_job(cluster, asked.who, allowed.job, fetched)
    check_job(asked.who, job, ACT)
    _check_input(request.input)
    start = None
    if request.command:
        if _digest(request.command, request.input.terminal is not None) != allowed.digest:
            raise UserError("another command than the one that was allowed")
        entry = job.worker(allowed.worker)
        if entry is None or not _runs(job, entry):
            raise RequestRefused(f"{allowed.worker} has ended, and no command can start beside it")
        start = start_message(cluster, job, entry) if entry.gpu.server in cluster.servers.sessions else None
    session = cluster.servers.sessions.get(allowed.server)
    if session is None or not session.alive or session.incarnation != allowed.agent:
        raise RequestRefused(f"the agent of server {allowed.server} has ended or is out of reach: it ends the command")
    message = RunCommand(
        request=asked.name,
        name=exec_name,
        job=job.id,
        worker=allowed.worker,
        input=request.input,
        command=request.command,
        start=start,
        agent=allowed.agent,
        uid=job.uid,
    )
    pass_on(cluster, now, asked, allowed.server, message, "the command's output")


def _worker(job: Job, rank: int) -> WorkerRecord:
    """Return the running worker of this rank. Raises UserError, RequestRefused."""
    order = job.committed_order or job.newest
    running = [entry for entry in job.workers if _runs(job, entry)]
    if order is not None:
        ranks = {worker: number for number, worker in enumerate(order.roster.workers)}
        running = [entry for entry in running if entry.worker in ranks]
        found = next((entry for entry in running if ranks[entry.worker] == rank), None)
        if found is not None:
            return found
        if running:
            have = ", ".join(str(number) for number in sorted(ranks[entry.worker] for entry in running)[:20])
            raise UserError(f"--rank {rank}: {job.id} has {many(len(running), 'running worker')}, of rank {have}")
    raise RequestRefused(f"{job.id} is {job.record.phase.value}: no worker of it runs, beside which a command could")


def _runs(job: Job, entry: WorkerRecord) -> bool:
    return not job.final and entry.state is not WorkerState.ORDERED and not entry.stopping


def _check_input(given: Input) -> None:
    terminal = given.terminal
    if (
        len(given.data) > MAX_INPUT_BYTES
        or min(given.offset, given.received) < 0
        or max(given.offset, given.received) >= 2**62
    ):
        raise UserError(f"one message has at most {MAX_INPUT_BYTES} bytes of input")
    if terminal is not None and not (
        terminal.name.isascii()
        and terminal.name.isprintable()
        and len(terminal.name) <= MAX_TERMINAL_NAME
        and 0 <= terminal.rows <= MAX_SIZE
        and 0 <= terminal.columns <= MAX_SIZE
    ):
        raise UserError(f"a terminal has a name of at most {MAX_TERMINAL_NAME} characters, and at most {MAX_SIZE} rows")


def _digest(command: tuple[str, ...], terminal: bool) -> str:
    return hashlib.blake2b("\0".join((str(terminal), *command)).encode(), digest_size=16).hexdigest()
