"""What a controller needs that shares its store with others: what it says of itself, whom it hears, the secret of jobs' keys."""

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
    """What others are told of this controller. since_s: of its start (Unix time)."""
    return PresenceRecord(
        name=options.own_name,
        version=__version__,
        since_s=since_s,
        clients_at=options.clients_at,
        agents_at=options.agents_at,
    )


def hearing_of(options: ControllerConfig) -> Hearing:
    """A leader that is cut off from agents has given its leadership back before their servers are lost."""
    lease_s = options.server_lease_s
    return Hearing(lease_s * HEARD_WITHIN, lease_s * HEARS_FEWER_FOR)


def shared_job_keys(store: Store, state: Path, records: Sequence[tuple[str, bytes]]) -> JobKeys:
    """Those in the store, of which these are the records. If there are none the secret of `state` goes there: running jobs have
    its keys, where the cluster has had one controller before. Raises OperatorError, StoreUnavailable, Deposed."""
    secret = next((value for key, value in records if key == JOB_KEYS_KEY), None)
    if secret is None:
        secret = JobKeys.kept_in(state).secret
        if store.commit((If(JOB_KEYS_KEY, 0),), (Put(JOB_KEYS_KEY, secret),)) is None:
            raise OperatorError("the store has a secret for the keys of jobs that its records do not hold")
    return JobKeys(secret, f"{JOB_KEYS_KEY} in the store")


def controllers_of(candidacy: Candidacy, now: float) -> Controllers:
    """The answer to whoever asks which controllers there are."""
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
