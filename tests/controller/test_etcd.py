"""The real controller with its store in a real etcd."""

from __future__ import annotations

import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elasticd.controller import config
from elasticd.controller.jobs.records import Submission
from elasticd.controller.records import submission_key
from elasticd.controller.seal import HEAD_BYTES
from elasticd.controller.store import etcd_api
from elasticd.controller.store.interface import Delete, Put
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import (
    Envelope,
    GetJob,
    GetJobs,
    Ping,
    Refused,
    StartWorker,
    Submit,
    Submitted,
    WorkerReport,
)
from elasticd.protocol.model import JobId, JobPhase, WorkerPhase

from ..etcds import PASSWORD, USER, Etcd, needed
from .test_daemon import PATIENCE_S, SPEC, Controller, status


class OnEtcd(Controller):
    """A controller with its store in `etcd`."""

    def __init__(self, directory: Path, etcd: Etcd) -> None:
        self.etcd = etcd
        super().__init__(directory)

    def start(self) -> None:
        options = yaml.safe_load(self.config.read_text())
        password = self.directory / "password"
        password.write_text(PASSWORD + "\n")
        password.chmod(0o600)
        options |= {
            "store": "etcd",
            "etcd": {
                "endpoints": [member.endpoint for member in self.etcd.members],
                "timeout_s": 2.0,
                "insecure": not self.etcd.tls,
            },
        }
        if self.etcd.tls:
            ca = str(self.etcd.directory / "ca.pem")
            options["etcd"] |= {"ca": ca, "user": USER, "password_file": "password"}
        self.config.write_text(yaml.safe_dump(options))
        super().start()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    needed()
    directory = tmp_path / "etcd"
    directory.mkdir()
    etcd = Etcd(directory, tls=True)
    yield etcd
    etcd.close()


@pytest.fixture
def controller(tmp_path: Path, etcd: Etcd) -> Iterator[Any]:
    controller = OnEtcd(tmp_path, etcd)
    _until_it_leads(controller)
    yield controller
    controller.close()


def test_a_job_in_etcd_lives_through_the_death_of_its_controller_and_of_etcd(controller: Any, etcd: Etcd) -> None:
    controller.hello()
    submitted = controller.ask(Submit(spec=SPEC), "first")
    assert isinstance(submitted, Submitted)
    start = controller.hear(StartWorker)
    controller.say(WorkerReport(status=status(start.job, WorkerPhase.TRAINING, 1, 5, 1)))
    controller.job_once(start.job, JobPhase.RUNNING)
    assert not (controller.directory / "state" / "cluster.db").exists()

    controller.process.send_signal(signal.SIGKILL)
    controller.process.wait()
    controller.start()
    _until_it_leads(controller)
    assert controller.ask(Submit(spec=SPEC), "first") == submitted
    controller.hello(status(start.job, WorkerPhase.TRAINING, 1, 9, 2))
    assert controller.ask(GetJob(job=start.job)).job.step == 9

    etcd.members[0].kill()
    second = Envelope(id="second", request=Submit(spec=SPEC))
    controller.client.send(msgspec.msgpack.encode(second))  # with an unknown outcome there is no answer yet
    until_s = time.monotonic() + PATIENCE_S
    while not isinstance(refused := controller.ask(Submit(spec=SPEC), secrets.token_hex(4)), Refused):
        assert time.monotonic() < until_s, controller.log()
    assert re.search(r"(cannot record anything: |does not answer \()etcd at 127.0.0.1", refused.reason)
    etcd.members[0].start()
    _until_it_leads(controller)
    controller.hello(status(start.job, WorkerPhase.TRAINING, 1, 11, 3))
    assert isinstance(controller.ask(Submit(spec=SPEC), "second"), Submitted)
    assert controller.ask(GetJob(job=start.job)).job.phase is JobPhase.RUNNING
    assert controller.process.poll() is None
    assert PASSWORD not in controller.log()


def test_a_controller_that_was_replaced_says_so_and_stands_for_election_again(controller: Any, etcd: Etcd) -> None:
    controller.hello()
    other = etcd.store("/elasticctl/test")
    other.begin()
    other.close()
    controller.client.send(msgspec.msgpack.encode(Envelope(id="x", request=Submit(spec=SPEC))))
    _until(controller, lambda: "another controller writes to the store now; stands by" in controller.log())
    _until(controller, lambda: "leads with term 2" in controller.log())
    assert "Traceback" not in controller.log()


def test_a_server_that_tells_of_later_reigns_again_and_again_is_believed_once(controller: Any) -> None:
    controller.hello()
    controller.say_hello(term=7)
    _until(controller, lambda: "server s1 has heard of term 7; stands by" in controller.log())
    _until(controller, lambda: "leads with term 8" in controller.log())
    controller.say_hello(term=9)
    _until(controller, lambda: "tells of term 9 and has told of a later reign before" in controller.log())
    controller.hello()  # the session continues in the same reign
    assert "leads with term 10" not in controller.log()
    assert not isinstance(controller.ask(Submit(spec=SPEC), "first"), Refused)


def test_a_controller_that_cannot_reach_etcd_says_so_and_waits_for_it(controller: Any, etcd: Etcd) -> None:
    controller.process.send_signal(signal.SIGTERM)
    assert controller.process.wait(PATIENCE_S) == 0
    etcd.members[0].kill()
    controller.start()
    refused = controller.ask(Ping())
    assert isinstance(refused, Refused)
    assert refused.standby
    _until(controller, lambda: f"etcd at {etcd.members[0].endpoint}" in controller.ask(Ping()).reason)
    etcd.members[0].start()
    _until_it_leads(controller)
    assert "Traceback" not in controller.log()


def test_alices_pending_job_that_was_rewritten_to_run_as_carol_does_not_run(controller: Any, etcd: Etcd) -> None:
    jobs = [JobId(controller.ask(Submit(spec=SPEC)).job) for _ in range(2)]
    controller.process.send_signal(signal.SIGTERM)
    assert controller.process.wait(PATIENCE_S) == 0
    with closing(etcd.store("/elasticctl/test")) as outside:
        outside.begin()
        found = outside.get(submission_key(jobs[0]))
        assert found is not None
        alices = msgspec.msgpack.decode(found.value[HEAD_BYTES:], type=Submission)
        carols = msgspec.msgpack.encode(msgspec.structs.replace(alices, owner="carol", account="carol"))
        for key in (submission_key(jobs[0]), submission_key(JobId("evil-9"))):
            outside.commit((), [Put(key, found.value[:HEAD_BYTES] + carols)])
    controller.start()
    _until_it_leads(controller)
    told = {each.job: each.reason for each in controller.ask(GetJobs()).refused}
    why = "its record in the store was written by another process than a controller: its seal does not fit its contents"
    assert told == {jobs[0]: why, "evil-9": why}
    for name in (jobs[0], JobId("evil-9")):
        assert controller.ask(GetJob(job=name)).reason == f"{name} is refused, and does not run: {why}"
    assert not isinstance(controller.ask(GetJob(job=jobs[1])), Refused)
    controller.hello()
    assert controller.hear(StartWorker).job == jobs[1]
    assert f"'{submission_key(jobs[0])}' (its seal does not fit its contents)" in controller.log()
    assert controller.ask(Submit(spec=SPEC)).job not in jobs
    with closing(etcd.store("/elasticctl/test")) as outside:
        outside.begin()
        assert any(b"records-refused" in record.value for record in outside.list("/events/").records)
        outside.commit((), [Delete(submission_key(JobId("evil-9")))])
    _until(controller, lambda: [each.job for each in controller.ask(GetJobs()).refused] == [jobs[0]])
    assert controller.ask(GetJob(job="evil-9")).reason == "there is no job 'evil-9'"


def _until_it_leads(controller: Any) -> None:
    _until(controller, lambda: not isinstance(controller.ask(Ping()), Refused))


def _until(controller: Any, probe: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not probe():
        assert time.monotonic() < until_s, controller.log()
        time.sleep(0.1)


# --------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("store: etcd", "etcd.endpoints: is missing"),
        ("store: postgres", "store"),
        ("store: etcd\netcd: {endpoints: []}", "etcd.endpoints"),
        ("store: etcd\netcd: {endpoints: [here]}", "is not HOST:PORT"),
        ("store: etcd\netcd: {endpoints: ['h:1'], root: nowhere}", "etcd.root"),
        ("store: etcd\netcd: {endpoints: ['h:1'], user: me, password_file: p}", "etcd.ca is missing"),
        ("store: etcd\netcd: {endpoints: ['h:1'], ca: ca, user: me}", "go together"),
        ("store: etcd\netcd: {endpoints: ['h:1'], ca: none.pem}", "etcd.ca: "),
        ("store: etcd\netcd: {endpoints: ['h:1'], ca: ca, user: me, password_file: open}", "chmod 600"),
        ("store: etcd\netcd: {endpoints: ['h:1'], timeout_s: 60}", "etcd.timeout_s"),
        ("store: etcd\netcd: {endpoints: ['h:1'], prefix: /a}", "prefix"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, text: str, words: str) -> None:
    try:
        etcd_api.load()
    except OperatorError as error:
        pytest.skip(str(error))
    (tmp_path / "ca").write_text("")
    (tmp_path / "open").write_text("secret")
    (tmp_path / "open").chmod(0o644)
    file = tmp_path / "controller.yaml"
    file.write_text(text)
    (mistake,) = config.mistakes(file)
    assert words in mistake
    assert mistake.startswith(f"{file}: ")


def test_where_the_store_is_and_how_one_is_let_in_is_configured(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text("cluster: lab")
    assert config.etcd_of(config.load(file), file) is None
    for name in ("ca", "p"):
        (tmp_path / name).write_text("secret\n")
        (tmp_path / name).chmod(0o600)
    file.write_text("cluster: lab\nstore: etcd\netcd: {endpoints: ['h:1', 'i:2'], ca: ca, user: me, password_file: p}")
    options = config.load(file)
    assert options.etcd is not None
    assert options.etcd.root_of("lab") == "/elasticctl/lab"
    access = config.etcd_of(options, file)
    assert access is not None
    assert (access.endpoints, access.ca, access.user, access.password) == (
        ("h:1", "i:2"),
        tmp_path / "ca",
        "me",
        "secret",
    )
    assert "secret" not in repr(access)
