"""Bounds on tables and messages: the state of the cluster's processes at one instant, without any history."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elasticd.controller.answer_cache import KEPT_ANSWERS
from elasticd.controller.cluster import Cluster
from elasticd.controller.inbound.worker_ends import KEPT_BROKEN
from elasticd.controller.jobs.job import KEPT_PAST_WORKERS
from elasticd.controller.reconcile.orders import KEPT_ORDERS
from elasticd.controller.requests.pending import MAX_PENDING_LOGS
from elasticd.controller.state.history import KEPT_EVENTS

from .violation import Violation

MOST_WORKERS = 64  # of one job: more than all GPUs of the cluster
MOST = 256  # entries of a table of an agent or a worker
MOST_BYTES = 256 << 10  # of a record, of a message


def sizes(cluster: Cluster, servers: int) -> None:
    """Check that every table of the controller is bounded. `servers`: their number."""
    jobs = [job.record for job in cluster.jobs.values()]
    bounds = {
        "answers": (len(cluster.clients.answers), KEPT_ANSWERS),
        "events": (len(cluster.history.events), KEPT_EVENTS),
        "logs that are waited for": (len(cluster.clients.pending_logs), MAX_PENDING_LOGS),
        "servers": (len(cluster.servers.sessions), servers),
        "orders of a job": (max((len(job.orders) for job in jobs), default=0), KEPT_ORDERS),
        "broken generations of a job": (max((len(job.broken) for job in jobs), default=0), KEPT_BROKEN),
        "past workers of a job": (max((len(job.past) for job in jobs), default=0), KEPT_PAST_WORKERS),
        "workers of a job": (max((len(job.workers) for job in cluster.jobs.values()), default=0), MOST_WORKERS),
        "bytes of a record": (
            max((len(record) for record in map(msgspec.msgpack.encode, jobs)), default=0),
            MOST_BYTES,
        ),
        "processes that nobody wants": (
            max((len(s.orphans) for s in cluster.servers.sessions.values()), default=0),
            64,
        ),
    }
    over = [f"{count} {what}, at most {most}" for what, (count, most) in bounds.items() if count > most]
    if over:
        raise Violation("every table is bounded", "; ".join(over))


def bounded(who: str, sizes: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Check the table sizes of an agent or a worker. `most`: limits other than `MOST`."""
    over = [f"{size} {what}" for what, size in sizes.items() if size > most.get(what, MOST)]
    if over:
        raise Violation("every table is bounded", f"{who}: {'; '.join(over)}")


def weighed(message: msgspec.Struct) -> None:
    """Check the size of a message between the controller and an agent. Raises Violation above the limit."""
    size = len(msgspec.msgpack.encode(message))
    if size > MOST_BYTES:
        raise Violation("every message is bounded", f"{size} bytes, at most {MOST_BYTES}: {message}"[:200])
