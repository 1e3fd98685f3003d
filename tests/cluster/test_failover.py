"""Three controllers on etcd: whatever happens to the one that leads, another one does, and training does not notice.

A leader that is stopped and goes on is in `make test-cluster`: it shows a failover with real processes, and the refusal of orders
of a former term. The other causes of a failover are in `make test-survival`; tests/controller/election tests what is decided.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticd.controller.store.interface import Delete, Put, StoreUnavailable
from elasticd.ctl.client import Client
from elasticd.protocol.errors import ClusterUnreachable, ElasticError, RequestRefused
from elasticd.protocol.messages import Answer, GetJob, JobFound, Ping, Request, Scale, Submit, Submitted
from elasticd.protocol.model import GpuRange, JobSpec

from ..etcds import Endpoint, Etcd, needed
from .controllers import CONTROLLERS, Several
from .test_smoke import alone, assert_same_bits, load

pytestmark = pytest.mark.cluster

EPOCHS = ("--epochs", "12")  # of 32 steps
PACE = ("--pace", "0.5", "--enough")  # more than three minutes, unless it is enough
# Waits for all GPUs, of which the other one keeps one at least.
LATER = JobSpec(name="later", command=("true",), gpus=GpuRange(min=4, max=4), virtual_workers=4, workdir="/")


class Training:
    """A job that trains, and what its result has to be."""

    def __init__(self, cluster: Several, directory: Path) -> None:
        self.cluster = cluster
        self.output, self._reference = directory / "out.pt", directory / "alone.pt"
        self.touched, self._enough = directory / "touched", directory / "enough"
        arguments = (str(self.output), *EPOCHS, *PACE, str(self._enough), "--touched", str(self.touched))
        self.job = cluster.submit(*arguments)
        cluster.until_step(self.job, 3)
        cluster.until_share(self.job, 4)
        self.workers = cluster.until("4 workers run", self._all)

    def _all(self) -> dict[str, int] | None:
        found = self.cluster.pids(self.job)
        return found if len(found) == 4 else None

    def goes_on(self) -> None:
        """It takes samples, whoever manages it."""
        before = self.touched.stat().st_size
        self.cluster.until("training goes on", lambda: self.touched.stat().st_size > before)

    def has_kept_its_workers(self) -> None:
        """Whoever leads now finds those that have run before."""
        self.cluster.until("the workers of before run", lambda: self._all() == self.workers)

    def ends_well(self) -> None:
        """With the bits of an undisturbed run."""
        self._enough.touch()
        self.cluster.until_final(self.job)
        assert_same_bits(load(self.output), alone(self._reference, *EPOCHS))


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


def asked_at(cluster: Several, name: str, request: Request, timeout_s: float = 3.0) -> Answer | ElasticError:
    """What this controller alone says; one that stands by is asked again and again for so long."""
    client = Client(cluster.clients_of(name))
    try:
        return client.ask(request, timeout_s=timeout_s)
    except ElasticError as error:
        return error
    finally:
        client.close()


@pytest.mark.campaign  # `make bench-failover` kills ten leaders
def test_a_killed_leader_is_followed_by_a_standby(several: Callable[..., Several], tmp_path: Path) -> None:
    cluster = several()
    first = cluster.leader()
    training = Training(cluster, tmp_path)
    cluster.kill(first.name)
    second = cluster.next_leader(first.term)
    assert second.name != first.name
    cluster.until("the servers are there again", cluster.there)
    training.has_kept_its_workers()
    assert isinstance(cluster.client.ask(Submit(spec=LATER), timeout_s=60.0), Submitted)
    cluster.start(first.name)
    training.ends_well()

    def told() -> bool:
        found = {one.name: one.leads for one in cluster.told_by(first.name).controllers}
        return found == {name: name == second.name for name in CONTROLLERS}

    cluster.until("the one that was killed stands by, and knows who leads", told)


def test_a_leader_that_was_stopped_is_not_obeyed_when_it_goes_on(
    several: Callable[..., Several], tmp_path: Path
) -> None:
    cluster = several()
    first = cluster.leader()
    training = Training(cluster, tmp_path)
    cluster.stop(first.name)
    answers: list[Answer | ElasticError] = []
    scale = Scale(job=training.job, share=1)
    asking = threading.Thread(target=lambda: answers.append(asked_at(cluster, first.name, scale, 30.0)))
    asking.start()  # it waits in the socket of the one that is stopped
    second = cluster.next_leader(first.term)
    cluster.until("the servers are there again", cluster.there)
    training.has_kept_its_workers()
    cluster.go_on(first.name)
    asking.join()
    assert isinstance(answers[0], ClusterUnreachable), answers
    leads = f"the leader is {second.name}"  # of which it may have learnt nothing yet when the request's time was over
    cluster.until("it names the leader", lambda: leads in str(asked_at(cluster, first.name, Ping())))
    cluster.until("it stands by", lambda: f"term {first.term} is over" in cluster.log_of(first.name))
    training.ends_well()


@pytest.mark.campaign
def test_a_leader_that_is_cut_off_from_the_store_stands_by(several: Callable[..., Several], tmp_path: Path) -> None:
    cluster = several()
    first = cluster.leader()
    training = Training(cluster, tmp_path)
    cluster.cut_from_etcd(first.name)
    second = cluster.next_leader(first.term)
    assert second.name != first.name
    cluster.until("the servers are there again", cluster.there)
    training.has_kept_its_workers()

    def says_why() -> bool:
        return "the store does not answer" in str(asked_at(cluster, first.name, Ping()))

    cluster.until("it says why it stands by", says_why)
    cluster.mend_to_etcd(first.name)
    cluster.until("it knows who leads", lambda: not cluster.told_by(first.name).trouble)
    training.ends_well()


@pytest.mark.campaign
def test_a_leader_that_agents_do_not_reach_lets_a_standby_lead(several: Callable[..., Several], tmp_path: Path) -> None:
    cluster = several(server_lease_s=20.0)
    first = cluster.leader()
    training = Training(cluster, tmp_path)
    cluster.to_controller[first.name].cut()
    second = cluster.next_leader(first.term)
    assert second.name != first.name
    cluster.until("the servers are there again", cluster.there)
    training.has_kept_its_workers()
    cluster.until("it says why", lambda: "it hears 0 agents" in cluster.log_of(first.name))
    training.ends_well()


@pytest.mark.campaign
def test_a_member_of_the_store_may_die(several: Callable[..., Several], tmp_path: Path) -> None:
    cluster = several(members=3)
    training = Training(cluster, tmp_path)
    cluster.etcd.leader().kill()
    assert isinstance(_patiently(cluster, Submit(spec=LATER)), Submitted)
    training.has_kept_its_workers()
    training.ends_well()


@pytest.mark.campaign
def test_the_store_may_be_away_and_come_back(several: Callable[..., Several], tmp_path: Path) -> None:
    cluster = several()
    training = Training(cluster, tmp_path)
    promised = cluster.client.ask(Submit(spec=LATER), timeout_s=60.0)
    assert isinstance(promised, Submitted)
    for member in cluster.etcd.members:
        member.kill()

    def all_stand_by() -> bool:
        return all("the store does not answer" in str(asked_at(cluster, name, Ping())) for name in CONTROLLERS)

    cluster.until("all stand by", all_stand_by)
    training.goes_on()
    with pytest.raises(ElasticError, match="store"):
        cluster.client.ask(Submit(spec=LATER), timeout_s=10.0)
    for member in cluster.etcd.members:
        member.start()
    cluster.leader()
    cluster.until("the servers are there again", cluster.there)
    training.has_kept_its_workers()
    found = cluster.client.ask(GetJob(job=promised.job), timeout_s=60.0)
    assert isinstance(found, JobFound)
    training.ends_well()


@pytest.mark.campaign
def test_a_store_without_space_refuses_and_goes_on_when_it_has_room(
    several: Callable[..., Several], tmp_path: Path
) -> None:
    cluster = several(etcd_options=("--quota-backend-bytes", str(24 << 20)))
    training = Training(cluster, tmp_path)
    fill = _filled(cluster)
    reason = cluster.until("requests are refused", lambda: _refusal(cluster, Submit(spec=LATER)))
    assert "NOSPACE" in reason
    training.goes_on()
    cluster.store.claim((), tuple(Delete(key) for key in fill))
    _make_room(cluster.etcd)
    assert isinstance(_patiently(cluster, Submit(spec=LATER)), Submitted)
    training.has_kept_its_workers()
    training.ends_well()


def _filled(cluster: Several) -> list[str]:
    """Write until the alarm. The keys."""
    keys: list[str] = []
    while True:
        keys.append(f"/zfill/{len(keys)}")
        try:
            cluster.store.claim((), (Put(keys[-1], bytes(1 << 20)),))
        except StoreUnavailable as error:
            if "NOSPACE" in str(error):
                return keys


def _make_room(etcd: Etcd) -> None:
    """As an operator does it: compact, defragment, disarm."""
    for member in etcd.members:
        at = Endpoint(member.endpoint, etcd.access())
        revision = at._client.kvstub.Range(at._rpc.RangeRequest(key=b"x"), timeout=10.0).header.revision
        at._client.compact(revision, physical=True)
        at._client.defragment()
        for alarm in list(at._client.list_alarms()):
            at._client.disarm_alarm(alarm.member_id)
        at.close()


def _refusal(cluster: Several, request: Request) -> str:
    """Why it is refused. The first one may not be answered: etcd does not say whether it was recorded."""
    try:
        cluster.client.ask(request, timeout_s=5.0)
    except RequestRefused as error:
        return str(error)
    except ClusterUnreachable:
        pass
    return ""


def _patiently(cluster: Several, request: Request) -> Answer:
    """The answer, however long nobody leads."""

    def probe() -> Answer | None:
        try:
            return cluster.client.ask(request, timeout_s=10.0)
        except (ClusterUnreachable, RequestRefused):
            return None

    return cluster.until("it is answered", probe)
