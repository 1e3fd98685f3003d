"""`elasticctl config check`, and the reload of a changed configuration by daemons."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from elasticd.agent.config import AgentConfig
from elasticd.controller.config import RELOADED, ControllerConfig
from elasticd.protocol.errors import OperatorError
from elasticd.runtime import config

ROOT = Path(__file__).parents[2]
WRONG = """\
# a comment
polcy: max-min
measuring: {steps: 2, longest: 5}
server_lease_s: .inf
max_restarts: 3
history:
  jobs: -1
max_restarts: many
"""


def check(*arguments: str | Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "elasticd.ctl.main", "config", "check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_policy_file_with_deadlines_and_quotas_is_known_as_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("policy: elastic\ndeadlines: {margin_s: 60}\nquotas: {default: {jobs: 3}}\n")
    code, out, err = check(file)
    assert (code, err) == (0, "")
    assert "policy" in out


def test_all_mistakes_are_found_at_once(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text(WRONG)
    with pytest.raises(OperatorError) as refused:
        config.load(file, ControllerConfig)
    found = [line.removeprefix(f"{file}: ") for line in str(refused.value).splitlines()]
    expected = [
        "line 2: polcy: is unknown; policy is meant?",
        "line 3: measuring.steps: expected `int` >= 3",
        "line 3: measuring.longest: is unknown; longest_s is meant?",
        "line 4: server_lease_s: inf is not allowed: a finite number",
        "line 7: history.jobs: expected `int` >= 0",
        "line 8: max_restarts: is given twice",
        "line 8: max_restarts: expected `int`, got `str`",
    ]
    assert found == expected


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n"])
def test_a_file_that_holds_no_options_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(OperatorError, match="NAME: VALUE"):
        config.load(tmp_path / "x.yaml", ControllerConfig)


def test_the_command_checks_files_of_each_kind(tmp_path: Path) -> None:
    (tmp_path / "controller.yaml").write_text("policy: mine.yaml\npacking: tight\nprofiles: [table.csv]\n")
    (tmp_path / "mine.yaml").write_text("policy: fifo\nparameters: {x: 1}\n")
    (tmp_path / "server-7.yaml").write_text("cpu_slots: 2\nsever: s7\n")
    files = [tmp_path / name for name in ("controller.yaml", "mine.yaml", "server-7.yaml")]
    code, said, told = check(*files)
    assert (code, said) == (2, "")
    lines = told.splitlines()
    assert len(lines) == 4, told
    assert lines[0].startswith(f"elasticctl: {files[0]}: line 2: packing: there is no packing 'tight'")
    assert lines[1].startswith(f"elasticctl: {files[0]}: line 3: profiles: ")
    assert lines[2].startswith(f"elasticctl: {files[1]}: line 2: parameters.x: is unknown")
    assert lines[3] == f"elasticctl: {files[2]}: line 2: sever: is unknown; server is meant?"


def test_the_shipped_files_are_right() -> None:
    code, said, told = check("--json", *sorted((ROOT / "configs").rglob("*.yaml")))
    assert (code, told) == (0, "")
    rows = json.loads(said)["files"]
    assert {Path(row["file"]).name: row["kind"] for row in rows if row["kind"] != "policy"} == {
        "agent.yaml": "agent",
        "cluster.yaml": "cluster",
        "controller.yaml": "controller",
    }
    assert all(row["ok"] for row in rows)


def test_only_what_is_safe_changes_in_a_running_daemon(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = ControllerConfig(cluster="a", max_restarts=3)
    after = config.taken(before, ControllerConfig(cluster="b", max_restarts=5, log_level="DEBUG"), RELOADED)
    assert after == ControllerConfig(cluster="a", max_restarts=5, log_level="DEBUG")
    assert "cluster has changed in the configuration: that needs a restart" in caplog.text
    assert "max_restarts is 5 now, was 3" in caplog.text


def test_what_may_be_secret_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    new = AgentConfig(worker_environment={"WANDB_API_KEY": "hush"})
    assert config.taken(AgentConfig(), new, frozenset({"worker_environment"})) == new
    assert "worker_environment has changed" in caplog.text
    assert "hush" not in caplog.text
