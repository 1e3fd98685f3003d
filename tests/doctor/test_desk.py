"""Checks of a user's machine, each with its fault brought about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd import __version__
from elasticd.ctl.doctor import targets
from elasticd.ctl.doctor.checks import Outcome
from elasticd.ctl.reach import Reach, Step
from elasticd.protocol.messages import PROTOCOL_VERSION, Pong, ServerState, ServerView
from elasticd.protocol.model import Server, ServerId, Storage
from elasticd.runtime.keys import KeyDirectory

PONG = Pong(version=__version__, protocol=PROTOCOL_VERSION, cluster="lab", policy="max-min", servers=1, pid=1)
FAR = "tcp://controller.lab:7700"


def there(**given: Any) -> Reach:
    return Reach(address=FAR, step=Step.THERE, round_trip_s=0.01, **{"pong": PONG, "ahead_s": 0.0, **given})


def view(name: str, state: ServerState, version: str = __version__, trouble: str = "") -> ServerView:
    server = Server(server=ServerId(name), address="10.0.0.1", gpus=(), version=version)
    alive = state is ServerState.ALIVE
    return ServerView(server=server, alive=alive, last_heard_s=0.0, used={}, state=state, trouble=trouble)


def test_a_package_that_is_too_old_is_named(bench: Any, tmp_path: Path) -> None:
    old = tmp_path / "old" / "rich-1.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: rich\nVersion: 1.0\n")
    text = bench.run("--only", "packages", PYTHONPATH=str(old.parent))
    assert "rich 1.0 is older than 13.7" in text
    assert bench.look("packages", bench.desk()).outcome is Outcome.OK


def test_without_a_cluster_it_says_how_to_get_to_one(bench: Any, tmp_path: Path) -> None:
    text = bench.run("--only", "cluster", code=0, HOME=str(tmp_path))
    assert "no cluster at" in text
    assert "elasticctl login" in text
    config = tmp_path / ".config" / "elasticctl"
    config.mkdir(parents=True)
    (config / "cluster.yaml").write_text("controler: tcp://a:1\n")
    line = [sys.executable, "-m", "elasticd.ctl.main", "doctor", "--only", "cluster"]
    done = subprocess.run(line, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, capture_output=True, text=True)
    assert "controler: is unknown" in " ".join(done.stdout.split())
    assert done.returncode == 1
    key = tmp_path / "my.key"
    key.write_text("")
    key.chmod(0o644)
    (config / "cluster.yaml").write_text(f"controller: tcp://127.0.0.1:9\nkey: {key}\n")
    text = bench.run("--only", "controller", "--only", "key", HOME=str(tmp_path), desk=True)
    assert text.count("is open to others (mode 0644); `chmod 600` it") == 2


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys = KeyDirectory(tmp_path / "keys")
    keys.make()
    os.umask(0o022)
    keys.add("user:alice", "alice", tmp_path / "alice.key")
    return tmp_path / "alice.key"


def test_a_key_that_is_missing_open_or_a_servers_is_refused(bench: Any, key: Path, tmp_path: Path) -> None:
    def look(path: Path | None) -> Any:
        return bench.look("key", bench.desk(address=FAR, key=path))

    assert look(key).outcome is Outcome.OK
    assert "there is no key" in look(None).found
    assert "no such file" in look(tmp_path / "other.key").found
    key.chmod(0o644)
    assert "is open to others" in look(key).found
    key.chmod(0o600)
    tmp_path.chmod(0o777)
    assert "put a key of theirs there" in look(key).found
    tmp_path.chmod(0o700)
    KeyDirectory(tmp_path / "keys").add("server:s1", "", tmp_path / "s1.key")
    assert "is the key of a server" in look(tmp_path / "s1.key").found
    key.write_text("{")
    assert "is not a key file" in look(key).found


def test_versions_of_desk_and_controller_are_compared(bench: Any) -> None:
    def look(**given: Any) -> Any:
        return bench.look("version", bench.desk(reach=there(pong=msgspec.structs.replace(PONG, **given))))

    assert look().outcome is Outcome.OK
    assert look(version="9.9.9").outcome is Outcome.WARNING
    assert "install elasticctl 9.9.9 here" in look(version="9.9.9").remedy
    assert look(protocol=99).outcome is Outcome.FAILURE


def test_clocks_are_compared_and_the_way_there_is_allowed_for(bench: Any) -> None:
    def look(ahead_s: float, round_trip_s: float = 0.01) -> Any:
        reached = msgspec.structs.replace(there(ahead_s=ahead_s), round_trip_s=round_trip_s)
        return bench.look("clock", bench.desk(reach=reached))

    assert look(0.3).outcome is Outcome.OK
    assert look(1.4, round_trip_s=1.0).outcome is Outcome.OK
    assert "3.0 s behind" in look(-3.0).found
    assert look(-3.0).outcome is Outcome.WARNING
    assert look(7200.0).outcome is Outcome.FAILURE
    assert "2h00m ahead" in look(7200.0).found


def test_servers_that_are_lost_or_of_another_version_are_named(bench: Any) -> None:
    def look(*views: ServerView) -> Any:
        return bench.look("servers", bench.desk(reach=there(servers=views)))

    assert look(view("s1", ServerState.ALIVE)).outcome is Outcome.OK
    assert "has no server yet" in look().found
    lost = look(view("s1", ServerState.ALIVE), view("s2", ServerState.LOST))
    assert (lost.outcome, lost.found) == (Outcome.FAILURE, "lost: s2")
    assert "s1 is unfit: the disk is full" in look(view("s1", ServerState.UNFIT, trouble="the disk is full")).found
    assert f"not elasticctl {__version__}, as the controller: s1" in look(view("s1", ServerState.ALIVE, "0.0.9")).found


def test_without_an_answer_nothing_is_said_of_the_cluster(bench: Any) -> None:
    reached = Reach(address=FAR, step=Step.CONNECTION, found="nothing listens", remedy="start it")
    for name in ("version", "clock", "servers", "server-clocks", "shared-directory"):
        assert bench.look(name, bench.desk(reach=reached)).outcome is Outcome.ABSENT, name
    assert bench.look("controller", bench.desk(reach=reached)).outcome is Outcome.FAILURE


def test_an_interpreter_without_torch_or_elasticctl_is_told(bench: Any, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    found = bench.look("interpreter", bench.desk(python=str(bare)))
    assert found.outcome is Outcome.WARNING
    assert "has no elasticctl" in found.found
    assert "No module named 'torch'" in found.found
    bare.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    assert "broken" in bench.look("interpreter", bench.desk(python=str(bare))).found
    assert "is no program" in bench.look("interpreter", bench.desk(python="/nowhere/python")).found


def test_a_daemon_of_up_that_has_died_is_named_with_its_log(bench: Any, tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    (tmp_path / "cluster.json").write_text(
        msgspec.json.encode(
            {"controller": "ipc:///x", "daemons": {"local-1": {"pid": process.pid, "start_ticks": 1}}}
        ).decode()
    )
    found = bench.look("local-daemons", bench.desk(directory=tmp_path))
    assert found.outcome is Outcome.FAILURE
    assert str(process.pid) in found.found
    assert str(tmp_path / "log" / "local-1.log") in found.found
    assert bench.look("local-daemons", bench.desk(directory=tmp_path / "none")).outcome is Outcome.ABSENT


def test_daemons_of_a_cluster_that_down_has_stopped_are_not_looked_at(tmp_path: Path) -> None:
    """A forgotten local trial cluster would be reported as failures of a server with installed daemons."""
    for name in ("controller", "local-1"):
        (tmp_path / f"{name}.yaml").write_text("")

    def looked_at(daemons: str) -> list[tuple[Path, str]]:
        (tmp_path / "cluster.json").write_text(f'{{"controller": "ipc:///x", "daemons": {daemons}}}')
        return [(file, kind) for file, kind in targets._usual(tmp_path) if file.parent == tmp_path]

    of_up = [(tmp_path / "controller.yaml", "controller"), (tmp_path / "local-1.yaml", "agent")]
    assert looked_at('{"controller": {"pid": 1, "start_ticks": 1}}') == of_up, "whether it runs or has died"
    assert looked_at("{}") == []
    assert looked_at("broken") == of_up, "nobody can tell that it was stopped"


def at(name: str, storage: Storage | None, clock_ahead_s: float | None = None) -> ServerView:
    found = view(name, ServerState.ALIVE)
    server = msgspec.structs.replace(found.server, checkpoints=storage)
    return msgspec.structs.replace(found, server=server, clock_ahead_s=clock_ahead_s)


def test_servers_that_see_different_directories_are_told_apart(bench: Any) -> None:
    def look(*views: ServerView) -> Any:
        return bench.look("shared-directory", bench.desk(reach=there(servers=views)))

    nas = Storage(path="/data", kind="nfs4", place="nas:/data", shared=True)
    other = Storage(path="/data", kind="nfs4", place="nas2:/data", shared=True)
    own = Storage(path="/data", kind="ext4", place="boot-a 8:1 /data")
    own_too = Storage(path="/data", kind="ext4", place="boot-b 8:1 /data")
    assert look(at("s1", nas), at("s2", nas)).found == "2 servers see the same nfs4 (nas:/data)"
    assert look(at("s1", own), at("s2", own)).outcome is Outcome.OK, "two agents of one machine"
    each = look(at("s1", own), at("s2", own_too))
    assert (each.outcome, "no job survives its last server" in each.found) == (Outcome.WARNING, True)
    for third in (own, other):
        found = look(at("s1", nas), at("s2", nas), at("s3", third))
        assert found.outcome is Outcome.FAILURE
        assert "s1, s2: nfs4 nas:/data; s3: " in found.found
    hangs = look(at("s1", nas), at("s2", Storage(path="/data")))
    assert (hangs.outcome, "does not answer on s2" in hangs.found) == (Outcome.FAILURE, True)
    assert look(at("s1", nas), at("s2", None)).outcome is Outcome.ABSENT


def test_a_server_with_a_wrong_clock_is_named(bench: Any) -> None:
    def look(*views: ServerView) -> Any:
        return bench.look("server-clocks", bench.desk(reach=there(servers=views)))

    assert look(at("s1", None, 0.02), at("s2", None, -0.01)).outcome is Outcome.OK
    assert look(at("s1", None)).outcome is Outcome.ABSENT
    found = look(at("s1", None, 0.02), at("s2", None, -340.0))
    assert (found.outcome, found.found) == (Outcome.FAILURE, "the clock of s2 is 5m40s behind")
