"""While nothing can be recorded, those who only look are answered from memory: with what was known when that began.

The machine whose turn could not be recorded knows more than the store does. What it has made of that turn has not happened, and
is not shown: jobs, cordons and events are taken back to what the store holds (`as_recorded`). Where that cannot be told, since
the store cannot be read either, nobody is answered. Of what the machine then wants nothing is
done but the answer, and for a log its agent is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..protocol.messages import GetEnded, GetEvents, GetJob, GetJobs, GetLog, GetServers, LogPiece, ReadLog, Request
from ..protocol.model import JobId, ServerId
from .cluster import Cluster
from .events import Action, AgentMessage, ClientRequest, Event, Fetch, Fetched, ReplyClient, SendAgent
from .jobs.archive import PREFIX as ARCHIVE
from .jobs.stored import States, is_head, living
from .machine import ControllerMachine
from .records import (
    ADOPTED,
    JOBS,
    OVERRULED,
    POLICY_KEY,
    REMOVED,
    SUBMISSION,
    OverruleRecord,
    event_key,
    job_of_state,
    state_key,
)
from .store.interface import Delete, Put, Store, StoreUnavailable

LOOKING = (GetJobs, GetEnded, GetJob, GetServers, GetEvents, GetLog)
_UNTOLD = (POLICY_KEY, ADOPTED, REMOVED, ARCHIVE)  # what changes these is not taken back
MOST_FETCHES = 8  # one after the other, for one answer

Read = Callable[[str], bytes | None]  # what is recorded under a key. Raises StoreUnavailable


def only_looks(request: Request) -> bool:
    """Is it answered from memory?"""
    return isinstance(request, LOOKING)


def as_recorded(cluster: Cluster, store: Store, writes: Sequence[Put | Delete]) -> bool:
    """Take back what could not be recorded, as far as those who look see it. False: it is not known what is recorded."""
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
            elif key.startswith(JOBS) and key.endswith(SUBMISSION):
                if read(key) is None and (job := cluster.jobs.pop(_job(key, SUBMISSION), None)) is not None:
                    cluster.index.forget(job)
            elif key.startswith(OVERRULED):
                server, value = ServerId(key.removeprefix(OVERRULED)), read(key)
                cluster.overruled.pop(server, None)
                if value is not None:
                    cluster.overruled[server] = msgspec.msgpack.decode(value, type=OverruleRecord)
                cluster.weigh(server)
        for name in changed:
            job, head = cluster.jobs.get(name), read(state_key(name))
            if job is not None and head is not None:
                parts = store.list(state_key(name) + "/").records if is_head(head) else ()
                records = [(state_key(name), head), *((part.key, part.value) for part in parts)]
                state = States(records).get(name)
                assert state is not None, "there is a head"
                job.restore(state.record, living(state))
    except StoreUnavailable:
        return False
    lost = set(keys)
    for event in [event for event in cluster.events if event_key(event.number) in lost]:
        cluster.events.remove(event)
    return True


def _job(key: str, ending: str) -> JobId:
    return JobId(key.removeprefix(JOBS).removesuffix(ending))


def answers(machine: ControllerMachine, event: Event, read: Read) -> list[ReplyClient | SendAgent]:
    """What comes of somebody's looking, or of a piece of a log that somebody has asked for; nothing of anything else.

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
