"""Helpers for controllers that share a store: their presence records, the agents they hear, the secret of jobs' keys."""

from __future__ import annotations

import logging
from pathlib import Path

from .. import __version__
from ..protocol.errors import OperatorError
from ..protocol.messages import Controllers, ControllerView
from ..protocol.times import HEARD_WITHIN, HEARS_FEWER_FOR
from ..runtime.directories import write_secret
from ..runtime.keys import HIDDEN_FILE, JobKeys
from .config import ControllerConfig
from .election.candidacy import Candidacy
from .election.reachability import Reachability
from .election.records import JOB_KEYS_KEY, PresenceRecord
from .sealing import FOREIGN, Seals
from .store import If, Put
from .store.etcd import EtcdStore

log = logging.getLogger(__name__)

REMOVE = "remove it there (`etcdctl del`), after which running jobs take no new workers"


def presence_of(options: ControllerConfig, since_s: float) -> PresenceRecord:
    """Return the record that presents this controller to the others. `since_s`: its start (Unix time)."""
    return PresenceRecord(
        name=options.own_name,
        version=__version__,
        since_s=since_s,
        clients_at=options.clients_at,
        agents_at=options.agents_at,
    )


def hearing_of(options: ControllerConfig) -> Reachability:
    """Return the counter of heard agents.

    By its times, a leader cut off from agents resigns before their servers are lost.
    """
    lease_s = options.server_lease_s
    return Reachability(lease_s * HEARD_WITHIN, lease_s * HEARS_FEWER_FOR)


def shared_job_keys(store: EtcdStore, seals: Seals, state: Path) -> JobKeys:
    """Return the job keys in the store; `seals` hide their secret from its readers.

    If there are none, the secret in the directory `state` is written to the store: if the cluster had a single
    controller before, running jobs use the keys of that secret. A secret that an earlier version has stored in the
    clear is stored hidden. Then the file `jobs.hidden` in `state` records that: a secret in the clear, found later, was
    not written by a controller.

    Raises OperatorError, StoreUnavailable, Deposed, Compacted.
    """
    pages = store.pages_as_stored(JOB_KEYS_KEY, f"{JOB_KEYS_KEY}\0")
    stored = next((record.value for page in pages for record in page.records), None)
    secret = seals.opened(JOB_KEYS_KEY, stored) if stored is not None else None
    note = state / HIDDEN_FILE
    if secret is None or stored == secret:
        if secret is not None and note.exists():
            raise OperatorError(f"{JOB_KEYS_KEY}: {FOREIGN}; {REMOVE}")
        conditions = (If(JOB_KEYS_KEY, 0),) if secret is None else ()
        secret = secret or JobKeys.kept_in(state).secret
        if store.commit(conditions, (Put(JOB_KEYS_KEY, secret),)) is None:
            raise OperatorError(f"{JOB_KEYS_KEY}: the record in the store does not count; {REMOVE}")
    if not note.exists():
        write_secret(note, b"")
    return JobKeys(secret, f"{JOB_KEYS_KEY} in the store")


def controllers_of(candidacy: Candidacy, now: float) -> Controllers:
    """Return the answer to a request for the list of controllers."""
    leader = candidacy.name if candidacy.leads() else candidacy.held
    views = tuple(
        ControllerView(
            name=one.name,
            leads=one.name == leader,
            version=one.version,
            since_s=one.since_s,
            clients_at=one.clients_at,
            agents_at=one.agents_at,
        )
        for one in candidacy.present
    )
    return Controllers(
        controllers=views, asked=candidacy.name, term=candidacy.term, time_s=now, trouble=candidacy.trouble
    )
