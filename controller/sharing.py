"""Helpers for controllers that share a store: their presence records, the agents they hear, the secret of jobs' keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..protocol.errors import OperatorError
from ..protocol.messages import Controllers, ControllerView
from ..protocol.times import HEARD_WITHIN, HEARS_FEWER_FOR
from ..runtime.keys import JobKeys
from .config import ControllerConfig
from .leading.candidacy import Candidacy
from .leading.hearing import Hearing
from .leading.records import JOB_KEYS_KEY, PresenceRecord
from .store import If, Put, Store

log = logging.getLogger(__name__)


def presence_of(options: ControllerConfig, since_s: float) -> PresenceRecord:
    """Return the record that presents this controller to the others. `since_s`: its start (Unix time)."""
    return PresenceRecord(
        name=options.own_name,
        version=__version__,
        since_s=since_s,
        clients_at=options.clients_at,
        agents_at=options.agents_at,
    )


def hearing_of(options: ControllerConfig) -> Hearing:
    """Return the count of agents heard, with times so short that a leader cut off from agents resigns before their servers
    are lost."""
    lease_s = options.server_lease_s
    return Hearing(lease_s * HEARD_WITHIN, lease_s * HEARS_FEWER_FOR)


def shared_job_keys(store: Store, state: Path, records: Sequence[tuple[str, bytes]]) -> JobKeys:
    """Return the job keys in the store, of which `records` are all records.

    If there are none, the secret in the directory `state` is written to the store: if the cluster had a single controller before,
    running jobs use the keys of that secret. Raises OperatorError, StoreUnavailable, Deposed.
    """
    secret = next((value for key, value in records if key == JOB_KEYS_KEY), None)
    if secret is None:
        secret = JobKeys.kept_in(state).secret
        if store.commit((If(JOB_KEYS_KEY, 0),), (Put(JOB_KEYS_KEY, secret),)) is None:
            raise OperatorError("the store has a secret for the keys of jobs that its records do not hold")
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
