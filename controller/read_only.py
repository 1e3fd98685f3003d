"""Read-only requests while the store cannot be written: they are answered from memory, with the last recorded state.

The machine with the failed commit is ahead of the store. The changes of that turn have not happened, and must not be shown: jobs,
cordons and events are set back to the records in the store (`as_recorded`). If the store cannot be read either, its records are
unknown, and requests are refused. Of the machine's actions only the replies are carried out, and requests to agents for logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..protocol.errors import OperatorError
from ..protocol.messages import GetEnded, GetEvents, GetJob, GetJobs, GetLog, GetServers, LogPiece, ReadLog, Request
from ..protocol.model import JobId, ServerId
from .cluster import Cluster
from .events import Action, AgentMessage, ClientRequest, Event, Fetch, Fetched, ReplyClient, SendAgent
from .jobs.archive import PREFIX as ARCHIVE
from .jobs.stored import States, is_head, living
from .machine import ControllerMachine
from .records import (
    ADOPTED,
    OVERRULED,
    POLICY_KEY,
    REMOVED,
    SLOW,
    OverruleRecord,
    SlowRecord,
    job_of_state,
    job_of_submission,
    state_key,
)
from .store.interface import Delete, Put, Store, StoreUnavailable

LOOKING = (GetJobs, GetEnded, GetJob, GetServers, GetEvents, GetLog)
_UNTOLD = (POLICY_KEY, ADOPTED, REMOVED, ARCHIVE)  # keys of records that `as_recorded` cannot reset
MOST_FETCHES = 8  # successive reads of the store for one answer

Read = Callable[[str], bytes | None]  # returns the record under a key; raises StoreUnavailable


def only_looks(request: Request) -> bool:
    """Return whether `request` is read-only, and so can be answered from memory."""
    return isinstance(request, LOOKING)


def as_recorded(cluster: Cluster, store: Store, writes: Sequence[Put | Delete]) -> bool:
    """Set `cluster` back to the records in the store, after the commit of `writes` has failed.

    Only the state that read-only requests show is set back. Returns False if that is impossible: the store cannot be read, has
    half of a commit of several transactions, or `writes` has records of other kinds.
    """
    keys = [write.key for write in writes]
    if any(key.startswith(_UNTOLD) for key in keys):
        return False

    def read(key: str) -> bytes | None:
        found = store.get(key)
        return found.value if found is not None else None

    changed: dict[JobId, None] = {}
    try:
        for key in keys:
            if (name := job_of_state(key)) is not None:
                changed[name] = None
            elif (name := job_of_submission(key)) is not None:
                if read(key) is None:
                    cluster.jobs.drop(name)
            elif key.startswith(OVERRULED):
                server, value = ServerId(key.removeprefix(OVERRULED)), read(key)
                record = msgspec.msgpack.decode(value, type=OverruleRecord) if value is not None else None
                cluster.servers.recover_overruled(server, record)
                cluster.servers.update_taints(server)
            elif key.startswith(SLOW):
                value = read(key)
                slow = msgspec.msgpack.decode(value, type=SlowRecord) if value is not None else None
                cluster.servers.recover_slow(ServerId(key.removeprefix(SLOW)), slow)
        for name in changed:
            job, head = cluster.jobs.get(name), read(state_key(name))
            if job is not None and head is not None:
                parts = store.list(state_key(name) + "/").records if is_head(head) else ()
                records = [(state_key(name), head), *((part.key, part.value) for part in parts)]
                state = States(records).get(name)
                assert state is not None, "there is a head"
                job.restore(state.record, living(state))
    except (StoreUnavailable, OperatorError):  # OperatorError: the commit, of several transactions, is half carried out
        return False
    cluster.history.drop(set(keys))
    return True


def answers(machine: ControllerMachine, event: Event, read: Read) -> list[ReplyClient | SendAgent]:
    """Return the messages that answer a read-only request, or that pass on an agent's piece of a log; for other events none.

    Raises StoreUnavailable if the archive cannot be read.
    """
    if isinstance(event, AgentMessage):
        return _sendable(machine.look(event)) if isinstance(event.message, LogPiece) else []
    if not isinstance(event, ClientRequest) or not only_looks(event.envelope.request):
        return []
    actions = machine.look(event)
    for _ in range(MOST_FETCHES):
        fetch = next((action for action in actions if isinstance(action, Fetch)), None)
        if fetch is None:
            break
        records = tuple((key, read(key)) for key in fetch.keys)
        actions = machine.look(Fetched(fetch.request, records))
    return _sendable(actions)


def _sendable(actions: Sequence[Action]) -> list[ReplyClient | SendAgent]:
    return [
        action
        for action in actions
        if isinstance(action, ReplyClient) or (isinstance(action, SendAgent) and isinstance(action.message, ReadLog))
    ]
