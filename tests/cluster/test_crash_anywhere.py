"""A real controller and a real agent kill themselves before or after one of their operations on what is durable, and start again.

What the simulated cluster does for each operation (`make crash-anywhere`) is done here for some of them, chosen evenly, with
SQLite and with etcd: a campaign (`make test-survival`). In `make test`, tests/cluster/test_smoke.py kills both daemons of a
training.
"""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from elasticd.protocol.errors import RequestRefused
from elasticd.protocol.messages import (
    Answer,
    Cancel,
    Cancelled,
    GetJob,
    GetJobs,
    JobFound,
    Jobs,
    JobView,
    Request,
    Scale,
    Scaled,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuRange, JobPhase, JobSpec

from ..etcds import Etcd, needed
from .conftest import Cluster
from .test_smoke import alone, assert_same_bits, load

pytestmark = pytest.mark.campaign

WRAPPER = Path(__file__).with_name("dying.py")
EPOCHS = ("--epochs", "5", "--size", "128")
SAMPLES = 5 * 128
ANSWERED_WITHIN_S = 120.0  # on a machine that does much else
RESTART_S = 0.3
POINTS = 10  # of each store


@dataclasses.dataclass(frozen=True)
class Strike:
    """Who dies at which of its operations."""

    who: str
    number: int
    how: str


NOBODY = Strike("", 0, "before")


class Dying(Cluster):
    """A cluster whose daemons are started again when they die. `strike`: of the first life of one of them."""

    def __init__(self, directory: Path, store: str, strike: Strike) -> None:
        self.strike, self._closing = strike, False
        self._supervised = threading.Lock()
        options: dict[str, object] = {"measuring": {"way_down": False}}
        self._etcd = None
        if store == "etcd":
            (directory / "etcd").mkdir()
            self._etcd = Etcd(directory / "etcd")
            options |= {
                "store": "etcd",
                "name": "c1",
                "leader_lease_s": 5,
                "etcd": {"endpoints": [self._etcd.members[0].endpoint], "insecure": True},
            }
        self._lives: collections.Counter[str] = collections.Counter()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._begun = threading.Event()
        self._supervisor.start()
        super().__init__(directory, 1, 3, "max-min", 60.0, options, agents_too={"warm_start": False})

    def log_of_operations(self, name: str) -> Path:
        return self.directory / f"{name}.operations"

    def start(self, name: str) -> None:
        self._lives[name] += 1
        first = self._lives[name] == 1
        strike = self.strike if first and self.strike.who == name else NOBODY
        module = "elasticd.controller" if name == "controller" else "elasticd.agent"
        log = self.log_of_operations(name) if first else self.directory / f"{name}.later"
        command = [sys.executable, str(WRAPPER), str(log), str(strike.number), strike.how, module]
        command += ["--config", str(self.directory / f"{name}.yaml")]
        with (self.directory / f"{name}.log").open("ab") as output, self._supervised:
            self.processes[name] = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self._begun.set()

    def _supervise(self) -> None:
        """As systemd does."""
        self._begun.wait()
        while not self._closing:
            time.sleep(RESTART_S)
            with self._supervised:
                dead = [name for name, process in self.processes.items() if process.poll() is not None]
            for name in dead if not self._closing else ():
                self.start(name)

    @property
    def restarts(self) -> int:
        return sum(self._lives.values()) - len(self._lives)

    def ask(self, request: Request) -> Answer:
        return self.client.ask(request, timeout_s=ANSWERED_WITHIN_S)

    def all_there(self) -> bool:
        try:
            return super().all_there()
        except Exception:  # it is just dead, or stands by
            return False

    def close(self) -> None:
        self._closing = True
        self._supervisor.join()
        super().close()
        if self._etcd is not None:
            self._etcd.close()


class SameId:
    """Gives a client's requests an id of our own, to repeat one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def asked(self, cluster: Dying, request: Request, name: str) -> Answer:
        with self._monkeypatch.context() as patched:
            patched.setattr("elasticd.ctl.client.secrets.token_hex", lambda size: name)
            return cluster.ask(request)


def live(cluster: Dying, tmp_path: Path, same: SameId) -> None:
    """A job's life and a cancelled one's, whoever dies at what; then all that was promised is so."""
    output, touched = tmp_path / "model.pt", tmp_path / "touched"
    command = (sys.executable, str(Path(__file__).with_name("train_small.py")), str(output), *EPOCHS, "--pace", "0.05")
    digits = JobSpec(
        name="digits", command=(*command, "--touched", str(touched)), gpus=GpuRange(min=1, max=2), virtual_workers=4,
        workdir=str(tmp_path), user="tester",
    )  # fmt: skip
    first = same.asked(cluster, Submit(spec=digits), "submits-digits")
    assert isinstance(first, Submitted)
    cluster.until("it trains", lambda: (view(cluster, first.job).step or 0) >= 3)
    scale(cluster, first.job, 1)
    sleeper = replace(digits, name="sleeper", command=("sleep", "600"), gpus=GpuRange(min=1, max=1))
    second = same.asked(cluster, Submit(spec=sleeper), "submits-sleeper")
    assert isinstance(second, Submitted)
    assert same.asked(cluster, Submit(spec=sleeper), "submits-sleeper") == second, "it was submitted once"
    cluster.until("it runs", lambda: view(cluster, second.job).phase is JobPhase.RUNNING)
    scale(cluster, first.job, 2)
    assert isinstance(cluster.ask(Cancel(job=second.job)), Cancelled)
    cluster.until("it ends", lambda: view(cluster, first.job).phase.final)
    assert view(cluster, first.job).phase is JobPhase.FINISHED, cluster.story()
    assert same.asked(cluster, Submit(spec=digits), "submits-digits") == first
    assert view(cluster, second.job).phase is JobPhase.CANCELLED
    jobs = cluster.ask(GetJobs(final_too=True))
    assert isinstance(jobs, Jobs)
    assert {job.job for job in jobs.jobs} == {first.job, second.job}, "one request makes one job"
    counts = collections.Counter(touched.read_text().splitlines())
    assert len(counts) == SAMPLES, "every sample is used"
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *EPOCHS))


def scale(cluster: Dying, job: str, share: int) -> None:
    """Set a share, unless the job has ended while nobody answered."""
    try:
        assert isinstance(cluster.ask(Scale(job=job, share=share)), Scaled)
    except RequestRefused as error:
        if "is over" not in str(error):
            raise


def view(cluster: Dying, job: str) -> JobView:
    answer = cluster.ask(GetJob(job=job))
    assert isinstance(answer, JobFound), answer
    return answer.job


MakeDying = Callable[[str, Strike], Dying]


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[MakeDying]:
    clusters: list[Dying] = []

    def make(store: str, strike: Strike) -> Dying:
        if store == "etcd":
            needed()
        clusters.append(Dying(tmp_path, store, strike))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


COUNTED: dict[str, list[tuple[str, int]]] = {}  # by store: the operations of an undisturbed life


def counted(store: str, directory: Path, same: SameId) -> list[tuple[str, int]]:
    """Who asks for which operation, without what comes after the end."""
    if store not in COUNTED:
        cluster = Dying(directory, store, NOBODY)
        try:
            live(cluster, directory, same)
            assert cluster.restarts == 0
            found = []
            for who in ("controller", "s1"):
                lines = cluster.log_of_operations(who).read_text().splitlines()
                found += [(who, number) for number in range(1, len(lines) - 1)]
            COUNTED[store] = found
        finally:
            cluster.close()
    return COUNTED[store]


@pytest.mark.parametrize(
    "strike", [Strike("controller", 6, "after"), Strike("s1", 4, "before")], ids=["controller", "agent"]
)
def test_who_dies_at_an_operation_loses_nothing(
    dying: MakeDying, strike: Strike, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = dying("sqlite", strike)
    live(cluster, tmp_path, SameId(monkeypatch))
    assert cluster.restarts == 1


@pytest.mark.parametrize("store", ["sqlite", "etcd"])
@pytest.mark.parametrize("part", range(POINTS))
def test_who_dies_at_any_operation_loses_nothing(
    dying: MakeDying,
    store: str,
    part: int,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if store == "etcd":
        needed()
    same = SameId(monkeypatch)
    operations = counted(store, tmp_path_factory.mktemp("counted"), same)
    who, number = operations[round(part * (len(operations) - 1) / (POINTS - 1))]
    cluster = dying(store, Strike(who, number, "before" if part % 2 else "after"))
    live(cluster, tmp_path, same)
    reached = len(cluster.log_of_operations(who).read_text().splitlines())
    assert cluster.restarts == 1 or (cluster.restarts == 0 and reached < number)
