"""`elasticctl keys` and `elasticctl login`, and the choice of a command's cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticd.ctl import context
from elasticd.protocol.errors import ClusterUnreachable, UserError
from elasticd.runtime import config
from elasticd.runtime.keys import KeyFile


def elasticctl(home: Path, *arguments: str, code: int = 0) -> str:
    """Output of the command; on an error, its message."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "elasticd.ctl.main", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home, timeout=120)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def test_keys_are_made_given_out_listed_and_revoked(tmp_path: Path) -> None:
    keys = ("--keys", str(tmp_path / "keys"))
    assert "public key" in elasticctl(tmp_path, "keys", "init", *keys)
    assert "is there already" in elasticctl(tmp_path, "keys", "init", *keys, code=2)
    elasticctl(tmp_path, "keys", "add", "user:alice", "--account", "al", "--address", "tcp://head:7700", *keys)
    elasticctl(tmp_path, "keys", "add", "server:s1", "--out", "s1.key", *keys)
    assert KeyFile.read(tmp_path / "user-alice.key").controller == "tcp://head:7700"
    assert "revoke" in elasticctl(tmp_path, "keys", "add", "user:alice", *keys, code=2)
    assert "not ROLE:NAME" in elasticctl(tmp_path, "keys", "add", "alice", *keys, code=2)
    assert "neither tcp" in elasticctl(tmp_path, "keys", "add", "user:x", "--address", "head", *keys, code=2)
    elasticctl(tmp_path, "keys", "revoke", "user:alice", *keys)
    assert "revoked already" in elasticctl(tmp_path, "keys", "revoke", "user:alice", *keys, code=2)
    known = json.loads(elasticctl(tmp_path, "keys", "list", "--json", *keys))["known"]
    assert [(each["principal"], each["account"], each["revoked_s"] is None) for each in known] == [
        ("user:alice", "al", False),
        ("server:s1", "", True),
    ]
    assert "user:alice" in elasticctl(tmp_path, "keys", "list", *keys)
    assert "keys init" in elasticctl(tmp_path, "keys", "list", "--keys", str(tmp_path / "none"), code=2)


def test_login_puts_the_key_where_later_commands_find_it(tmp_path: Path) -> None:
    keys = ("--keys", str(tmp_path / "keys"))
    elasticctl(tmp_path, "keys", "init", *keys)
    elasticctl(tmp_path, "keys", "add", "user:alice", *keys)
    elasticctl(tmp_path, "keys", "add", "server:s1", *keys)
    assert "not of a person" in elasticctl(tmp_path, "login", "server-s1.key", code=2)
    assert "does not say where" in elasticctl(tmp_path, "login", "user-alice.key", code=2)
    elasticctl(tmp_path, "--controller", "tcp://127.0.0.1:9", "login", "user-alice.key")
    home = tmp_path / ".config" / "elasticctl"
    assert (home / "key").stat().st_mode & 0o777 == 0o600
    assert "no controller answers at tcp://127.0.0.1:9" in elasticctl(tmp_path, "status", code=3)
    elasticctl(tmp_path, "--controller", "tcp://127.0.0.1:9,tcp://127.0.0.1:8", "login", "user-alice.key")
    complaint = elasticctl(tmp_path, "status", code=3)
    assert "asked were tcp://127.0.0.1:9 (no answer), tcp://127.0.0.1:8 (no answer)" in complaint
    (home / "key").chmod(0o644)
    assert "chmod 600" in elasticctl(tmp_path, "status", code=2)


def test_the_commented_example_is_right() -> None:
    example = Path(__file__).parents[2] / "configs" / "cluster.yaml"
    assert config.load(example, context.ClusterFile).controller == "ipc:///run/elasticctl/clients"
    assert all(f"{field}:" in example.read_text() for field in context.ClusterFile.__struct_fields__)


def test_a_command_goes_where_it_is_told_then_to_the_local_cluster_then_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(context, "SYSTEM", tmp_path / "etc")
    local = tmp_path / "local"

    def goes_to(controller: str | None = None, given: bool = False) -> str:
        return context.Context(local, controller, None, given).reached_by()[0]

    with pytest.raises(ClusterUnreachable, match="no cluster at"):
        goes_to()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "cluster.yaml").write_text("controller: ipc:///run/elasticctl/clients\n")
    assert goes_to() == "ipc:///run/elasticctl/clients"
    (tmp_path / "config" / "elasticctl").mkdir(parents=True)
    (tmp_path / "config" / "elasticctl" / "cluster.yaml").write_text("controller: ipc:///own\n")
    assert goes_to() == "ipc:///own"
    (tmp_path / "config" / "elasticctl" / "cluster.yaml").write_text("controller: [ipc:///one, ipc:///two]\n")
    assert goes_to() == "ipc:///one,ipc:///two"
    (tmp_path / "config" / "elasticctl" / "cluster.yaml").write_text("controller: ipc:///own\n")
    with pytest.raises(ClusterUnreachable):
        goes_to(given=True)
    local.mkdir()
    record = '{"controller": "ipc:///local", "agents": "ipc:///a", "servers": 1, "gpus": null, "policy": "max-min"'
    (local / "cluster.json").write_text(record + ', "daemons": {"controller": {"pid": 1, "start_ticks": 1}}}')
    assert goes_to() == goes_to(given=True) == "ipc:///local"
    (local / "cluster.json").write_text(record + "}")
    assert goes_to() == "ipc:///own", "a local cluster that has been stopped stands in nobody's way"
    with pytest.raises(ClusterUnreachable, match="is stopped"):
        goes_to(given=True)
    assert goes_to("ipc:///said") == "ipc:///said"
    (local / "cluster.json").unlink()
    (tmp_path / "config" / "elasticctl" / "cluster.yaml").write_text("contoller: ipc:///own\n")
    with pytest.raises(UserError, match="contoller"):
        goes_to()
