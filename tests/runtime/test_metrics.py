"""Metrics over HTTP: no reader can block or end the loop of a daemon. Real daemons serve all documented metrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.figures import MOST_VALUES, Buckets, Figure, Kind, counter, gauge, histogram, labelled
from elasticd.runtime import metrics
from elasticd.runtime.config import host_and_port
from elasticd.runtime.metrics import MOST_READERS, PREFIX, Exporter
from verification.ports import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
PROCESS = "process_"  # metrics of the standard client


def until(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def read(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def values(text: str) -> dict[str, float]:
    """Each sample by its name and labels."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Loop:
    """Publishes as soon as it is woken, as a daemon's loop does; or does not."""

    def __init__(self, figures: list[Figure], stuck: bool = False) -> None:
        self.figures, self.stuck, self.published = figures, stuck, 0
        self.exporter = Exporter("127.0.0.1:0", self.wake)

    def wake(self) -> None:
        if not self.stuck:
            threading.Thread(target=self._turn).start()

    def _turn(self) -> None:
        if self.exporter.wanted:
            self.published += 1
            self.exporter.publish(self.figures)


@pytest.fixture
def made() -> Iterator[Callable[..., Loop]]:
    loops: list[Loop] = []

    def make(*figures: Figure, stuck: bool = False) -> Loop:
        loops.append(Loop(list(figures), stuck))
        return loops[-1]

    yield make
    for loop in loops:
        loop.exporter.close()


# ---------------------------------------------------------------------------------------------------------------- one exporter


def test_all_kinds_of_figures_are_read_as_they_are(made: Callable[..., Loop]) -> None:
    pauses = Buckets((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        pauses.add(value)
    loop = made(
        counter("steps", "Steps.", 3),
        gauge("depth", "Depth.", -1.5),
        histogram("pause_seconds", "Pauses.", pauses),
        labelled(Kind.GAUGE, "jobs", "Jobs.", "phase", {'of "x"\n': 2.0}),
    )
    found = values(read(loop.exporter.port))
    assert found[PREFIX + "steps_total"] == 3
    assert found[PREFIX + "depth"] == -1.5
    assert found[PREFIX + "pause_seconds_bucket,le=0.1"] == 2
    assert found[PREFIX + "pause_seconds_bucket,le=1.0"] == 3
    assert found[PREFIX + "pause_seconds_bucket,le=+Inf"] == 4
    assert found[PREFIX + "pause_seconds_sum"] == pytest.approx(7.65)
    assert found[PREFIX + 'jobs,phase=of "x"\n'] == 2


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics/x", "/debug", "/%6detrics"])
def test_one_path_is_answered_and_others_are_not(made: Callable[..., Loop], path: str) -> None:
    loop = made(counter("steps", "Steps.", 3))
    with pytest.raises(urllib.error.HTTPError) as refused:
        read(loop.exporter.port, path)
    assert refused.value.code == 404
    assert PREFIX not in refused.value.read().decode()
    assert PREFIX + "steps_total" in values(read(loop.exporter.port))


def test_figures_are_for_those_who_send_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-long-word\n")
    file.chmod(0o600)
    exporter = Exporter("127.0.0.1:0", lambda: None, metrics.read_token(str(file)))
    exporter.publish([counter("steps", "Steps.", 3)])
    try:
        for header in ({}, {"Authorization": "Bearer a-long-wor"}, {"Authorization": "Basic a-long-word"}):
            asked = urllib.request.Request(f"http://127.0.0.1:{exporter.port}/metrics", headers=header)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(asked, timeout=PATIENCE_S)
            assert refused.value.code == 401
            assert PREFIX not in refused.value.read().decode()
        header = {"Authorization": "Bearer a-long-word"}
        asked = urllib.request.Request(f"http://127.0.0.1:{exporter.port}/metrics", headers=header)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            assert PREFIX + "steps_total" in answer.read().decode()
    finally:
        exporter.close()


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("two words", 0o600), ("word", 0o644)])
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(OperatorError, match="metrics_token_file"):
        metrics.read_token(str(file))
    assert metrics.read_token(None) == ""


def test_a_label_with_very_many_values_is_bounded() -> None:
    figure = labelled(Kind.GAUGE, "jobs", "Jobs.", "job", {f"j{number}": 1.0 for number in range(10 * MOST_VALUES)})
    assert len(figure.samples) == MOST_VALUES


def test_a_loop_that_is_stuck_is_not_waited_for_for_long(
    made: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FRESH_S", 0.0)
    monkeypatch.setattr(metrics, "PATIENCE_S", PATIENCE_S)
    loop = made(counter("steps", "Steps.", 3))
    assert values(read(loop.exporter.port))[PREFIX + "figures_age_seconds"] < PATIENCE_S
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.1)
    loop.stuck = True
    time.sleep(0.3)
    found = values(read(loop.exporter.port))
    assert found[PREFIX + "steps_total"] == 3, "the last figures are still served"
    assert found[PREFIX + "figures_age_seconds"] > 0.3


def test_a_loop_that_never_had_a_turn_has_no_figures(
    made: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.1)
    found = values(read(made(stuck=True).exporter.port))
    assert not [name for name in found if name.startswith(PREFIX)]
    assert "process_cpu_seconds_total" in found


def test_many_readers_cost_the_loop_no_more_than_one(
    made: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FRESH_S", 1000.0)
    loop = made(counter("steps", "Steps.", 3))
    for _ in range(20):
        read(loop.exporter.port)
    assert loop.published == 1


def test_readers_that_say_nothing_are_turned_away_and_others_are_served(
    made: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "READER_S", 0.5)
    loop = made(counter("steps", "Steps.", 3))
    silent = [socket.create_connection(("127.0.0.1", loop.exporter.port)) for _ in range(4 * MOST_READERS)]

    def served() -> bool:
        try:
            return "steps_total" in read(loop.exporter.port)
        except (OSError, urllib.error.URLError):
            return False

    until(served, "nobody is served while others say nothing")
    assert len([each for each in threading.enumerate() if "process_request_thread" in each.name]) <= MOST_READERS
    for connection in silent:
        connection.close()


def test_a_reader_that_says_one_letter_after_the_other_is_cut_off(
    made: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "READER_S", 0.5)
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.1)
    loop = made(counter("steps", "Steps.", 3))
    slow = socket.create_connection(("127.0.0.1", loop.exporter.port))
    slow.settimeout(0.1)

    def cut_off() -> bool:
        try:
            slow.sendall(b"G")
            return slow.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    until(cut_off, "it may speak as slowly as it likes")
    slow.close()


def test_what_is_no_request_harms_nobody(made: Callable[..., Loop]) -> None:
    loop = made(counter("steps", "Steps.", 3))
    for sent in (b"\x00" * 100_000, b"GET /" + b"x" * 100_000, b"POST / HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", loop.exporter.port)) as connection:
            try:
                connection.sendall(sent)
                connection.recv(100)
            except OSError:
                pass
    assert "steps_total" in read(loop.exporter.port)


@pytest.mark.parametrize("address", ["9464", ":9464", "host:", "host:x", "::1:9464", "host:70000", "host:\uff19", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(OperatorError, match="metrics_address"):
        host_and_port("metrics_address", address)


@pytest.mark.parametrize("address", ["203.0.113.77:9464", "no-such-host.invalid:9464"])
def test_an_address_where_nobody_can_listen_is_refused(address: str) -> None:
    with pytest.raises(OperatorError, match="metrics_address"):
        Exporter(address, lambda: None)


def test_an_address_of_ipv6_is_taken() -> None:
    assert host_and_port("metrics_address", "[::1]:9464") == ("::1", 9464)


# ---------------------------------------------------------------------------------------------------------------- real daemons


class Daemon:
    """A controller or an agent that serves figures."""

    def __init__(self, kind: str, directory: Path, options: dict[str, object], *arguments: str) -> None:
        self.port = free_port()
        config, self.log = directory / f"{kind}.yaml", directory / f"{kind}.log"
        config.write_text(yaml.safe_dump({**options, "metrics_address": f"127.0.0.1:{self.port}"}))
        command = [sys.executable, "-m", f"elasticd.{kind}", "--config", str(config), *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def values(self) -> dict[str, float]:
        return values(read(self.port))

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(read(self.port))
        except (OSError, urllib.error.URLError):
            return False


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    base = tmp_path_factory.mktemp("m")
    state = base / "c"
    controller = Daemon("controller", base, {"state_directory": str(state)}, "--log-format", "json")
    until(controller.answers, "the controller serves no figures")
    options: dict[str, object] = {
        "server": "s1",
        "controller": f"ipc://{state}/agents",
        "state_directory": str(base / "a"),
        "cpu_slots": 2,
        "warm_start": False,
        "allow_root_jobs": True,
        "heartbeat_interval_s": 0.1,
        "log_format": "json",
    }
    agent = Daemon("agent", base, options)
    until(agent.answers, "the agent serves no figures")
    try:
        until(lambda: controller.values()[PREFIX + "servers,state=alive"] == 1, "the server does not join")
        ctl = [str(Path(sys.executable).with_name("elasticctl")), "--controller", f"ipc://{state}/clients"]
        subprocess.run([*ctl, "submit", "--name", "sleeper", "--gpus", "1", "--", "sleep", "600"], check=True, cwd=base)
        until(lambda: agent.values().get(PREFIX + "agent_worker_starts_total", 0) >= 1, "nothing is started")
        until(lambda: controller.values()[PREFIX + "gpus,state=used"] == 1, "the job does not run")
        yield controller, agent
    finally:
        for daemon in (agent, controller):
            daemon.process.send_signal(signal.SIGTERM)
            daemon.process.wait(PATIENCE_S)
        for process in psutil.process_iter():
            try:
                if str(base) in " ".join([*process.cmdline(), *process.environ().values()]):
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue


def test_a_cluster_at_work_is_seen(daemons: tuple[Daemon, Daemon]) -> None:
    controller, agent = (daemon.values() for daemon in daemons)
    user = next(name for name in controller if name.startswith(PREFIX + "user_gpus")).partition("user=")[2]
    assert controller[PREFIX + f"job_gpus,job=sleeper-1,user={user}"] == 1
    assert controller[PREFIX + "gpus,state=free"] == 1
    assert controller[PREFIX + "jobs_submitted_total"] == 1
    assert controller[PREFIX + "decision_seconds_count"] >= 1
    assert controller[PREFIX + "commit_seconds_count"] >= 1
    assert controller[PREFIX + "messages_received_total,kind=AgentHeartbeat"] >= 1
    assert controller[PREFIX + "messages_received_total,kind=Submit"] == 1
    assert controller[PREFIX + "events_total,kind=submitted"] == 1
    assert agent[PREFIX + "agent_gpus"] == 2
    assert agent[PREFIX + "agent_workers,phase=starting"] == 1
    assert agent[PREFIX + "agent_controller_answer_seconds_count"] >= 1
    assert agent[PREFIX + "agent_controller_silence_seconds"] < PATIENCE_S


def test_what_is_served_holds_no_secret(daemons: tuple[Daemon, Daemon]) -> None:
    labels = " ".join(re.findall(r'"([^"]*)"', "".join(read(daemon.port) for daemon in daemons)))
    assert "sleeper-1" in labels
    assert not re.search(r"[0-9a-f]{12}|/", labels), "identities, uids, requests and paths are not for everybody"


def test_each_line_of_the_log_about_a_job_names_it_and_its_generation(daemons: tuple[Daemon, Daemon]) -> None:
    for daemon, component, name, kind in (
        (daemons[0], "controller", "cluster", "ordered"),
        (daemons[1], "agent", "server", None),
    ):
        lines = [json.loads(line) for line in daemon.log.read_text().splitlines()]
        assert all(line["component"] == component and line[name] for line in lines)
        concerned = [line for line in lines if "sleeper-1" in json.dumps(line)]
        assert concerned
        assert all(line["job"] == "sleeper-1" for line in concerned)
        begun = [line for line in concerned if line.get("event") == kind]
        assert begun
        assert all(line["generation"] >= 1 for line in begun)


def exported(daemons: tuple[Daemon, Daemon]) -> dict[str, str]:
    """Names and kinds of all metrics of this project."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for daemon in daemons
        for family in text_string_to_metric_families(read(daemon.port))
        if family.name.startswith(PREFIX)
    }


def test_the_page_names_all_figures_and_no_others(daemons: tuple[Daemon, Daemon]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    told = dict(re.findall(r"^\| `(elasticctl_\w+)`(?: `\w+`)*(?:, `\w+`)* \| (\w+) \|", page, re.MULTILINE))
    assert told == exported(daemons)


def test_the_page_names_the_labels(daemons: tuple[Daemon, Daemon]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    told = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(elasticctl_\w+)`((?:,? `\w+`)*) \|", page, re.MULTILINE)
    }
    for daemon in daemons:
        for family in text_string_to_metric_families(read(daemon.port)):
            name = family.name + ("_total" if family.type == "counter" else "")
            for sample in family.samples if family.name.startswith(PREFIX) else ():
                assert set(sample.labels) - {"le"} == told[name], name


def test_the_dashboard_asks_only_for_figures_that_there_are(daemons: tuple[Daemon, Daemon]) -> None:
    dashboard = json.loads((ROOT / "configs" / "grafana" / "elasticctl.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert asked
    there = {
        sample.name
        for daemon in daemons
        for family in text_string_to_metric_families(read(daemon.port))
        for sample in (*family.samples, *_absent(family.name, family.type))
    }
    wanted = {name for expression in asked for name in re.findall(rf"\b(?:{PREFIX}|{PROCESS})\w+", expression)}
    assert wanted <= there, f"the dashboard asks for {sorted(wanted - there)}"
    ours = {re.sub(r"_(bucket|count|sum)$", "", name) for name in wanted if name.startswith(PREFIX)}
    assert ours == set(exported(daemons)), "a figure that nobody sees, or that is not there"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def _absent(name: str, kind: str) -> tuple[Named, ...]:
    """A labelled metric may have no sample yet."""
    return (Named(name + ("_total" if kind == "counter" else "")),)


def test_panels_of_the_dashboard_are_sound() -> None:
    dashboard = json.loads((ROOT / "configs" / "grafana" / "elasticctl.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel.get("targets", ()):
            assert target["expr"].count("(") == target["expr"].count(")"), target["expr"]
