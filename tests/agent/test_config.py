"""The agent's configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticd.agent import config
from elasticd.protocol.errors import OperatorError
from elasticd.runtime.directories import private_directory


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


def test_the_commented_example_loads_and_is_the_default() -> None:
    example = Path(__file__).parents[2] / "configs" / "agent.yaml"
    assert config.load(example) == config.AgentConfig()


def test_every_option_is_in_the_commented_example() -> None:
    example = (Path(__file__).parents[2] / "configs" / "agent.yaml").read_text()
    assert all(f"# {field}:" in example for field in config.AgentConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sever: a", "sever"),
        ("cpu_slots: 0", "cpu_slots"),
        ("cpu_slots: many", "cpu_slots"),
        ("server: ../x", "server"),
        ("heartbeat_interval_s: 0", "heartbeat_interval_s"),
        ("log_level: LOUD", "log_level"),
        ("controller: 127.0.0.1:7701", "controller"),
        ("controller: tcp://10.0.0.1:7701", "needs keys"),
        ("controller: [ipc:///run/one, tcp://10.0.0.1:7701]", "needs keys"),
        ("controller: [ipc:///run/one, ipc:///run/one]", "named twice"),
        ("controller: []", "no address is named"),
        ("controller: [1]", "controller"),
    ],
)
def test_a_mistake_is_named_with_file_and_field(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(OperatorError) as raised:
        config.load(path)
    assert str(path) in str(raised.value)
    assert complaint in str(raised.value)


def test_the_socket_directory_stays_the_same_when_the_environment_changes(tmp_path: Path) -> None:
    options = config.AgentConfig(server="s", state_directory=str(tmp_path / "state"))
    private_directory(options.state)
    (tmp_path / "run").mkdir()
    first = config.socket_directory(options, {"XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert first.is_relative_to(tmp_path / "run")
    assert config.socket_directory(options, {}) == first
    assert first.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    os.chmod(tmp_path / "open", 0o777)
    with pytest.raises(OperatorError, match="nobody else"):
        private_directory(tmp_path / "open")


def test_a_link_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OperatorError, match="must be a directory"):
        private_directory(tmp_path / "link")
