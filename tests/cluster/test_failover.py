"""Three controllers on etcd: whatever happens to the one that leads, another one does, and training does not notice."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticd.ctl.client import Client
from elasticd.protocol.errors import ClusterUnreachable, RequestRefused
from elasticd.protocol.messages import Cancel, GetJob, JobFound, Refused, Scale, Submit

from ..etcds import needed
from .controllers import CONTROLLERS, Several

pytestmark = pytest.mark.cluster


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Callable[..., Several]]:
    """A factory of clusters with three controllers."""
    needed()
    made: list[Several] = []

    def make(**options: object) -> Several:
        made.append(Several(tmp_path, **options))  # type: ignore[arg-type]
        made[-1].begin()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def test_a_killed_leader_is_followed_by_a_standby_and_the_job_trains_on(several: Callable[..., Several]) -> None:
    cluster = several()
    first = cluster.leader()
    job = cluster.submit("out.pt", "--pace", "0.05", "--epochs", "3", name="job")
    cluster.until_step(job, 5)
    workers = cluster.pids(job)
    cluster.kill(first.name)
    second = cluster.next_leader(first.term)
    assert second.name != first.name
    cluster.until("the servers are there again", cluster.there)
    cluster.until_step(job, cluster.job(job).step or 0)
    assert cluster.pids(job) == workers
    cluster.scale(job, 2)
    cluster.start(first.name)
    cluster.until_final(job)
    told = {one.name: one.leads for one in cluster.told_by(first.name).controllers}
    assert told == {name: name == cluster.leader().name for name in CONTROLLERS}
