"""A user's own policy in simulations: leases, reviews without end, wrong parameters, and a run in which no job gets a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticd.ctl.main import main
from elasticd.protocol.errors import UserError
from elasticd.simulator import simulate

PAGE = Path(__file__).parents[2] / "docs" / "research.md"
HEAD = "import numpy as np\nfrom elasticd.scheduler.plugin import PolicyPlugin, Shares\n\n\nclass Mine(PolicyPlugin):\n"
TWO = {"job": ["a", "b"], "submit_s": [0, 0], "duration_s": [100, 250], "gpus": [1, 1]}


def own(directory: Path, body: str) -> Path:
    """Write a policy whose method `shares` has this body."""
    path = directory / "mine.py"
    path.write_text(f"{HEAD}    def shares(self, jobs, gpus, now, rng):\n        {body}\n")
    return path


def test_the_leases_of_the_page_take_turns(tmp_path: Path) -> None:
    found = re.search(r"```python\n# leases\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "leases.py").write_text(found[1])
    policy = {"policy": str(tmp_path / "leases.py"), "parameters": {"lease_s": 60}}
    jobs = simulate(TWO, {"leases": policy}, servers=1, gpus_per_server=1)["leases"].jobs()
    # a: 0-60, 120-160; b: 60-120, then from 160 on
    assert jobs["ended_s"] == pytest.approx([160, 350], abs=0.1)
    assert jobs["started_s"] == pytest.approx([0, 60], abs=0.1)


def test_a_policy_that_asks_for_a_review_for_ever_ends_with_the_last_job(tmp_path: Path) -> None:
    path = own(tmp_path, "return Shares(np.minimum(jobs.max_gpus, 1), lambda row: None, now + 7)")
    one = simulate(TWO, path, servers=1)["mine"]
    assert one.jobs()["ended_s"] == [100, 250]
    assert one.metrics.events < 50


def test_a_policy_that_is_called_for_ever_and_gives_nothing_is_ended_with_the_reason(tmp_path: Path) -> None:
    path = own(tmp_path, "return Shares(0 * jobs.share, lambda row: None, now + 7)")
    with pytest.raises(
        UserError, match=r"mine\.py: was called 10,000 times in a row .* no GPU to any of 2 waiting jobs"
    ):
        simulate(TWO, path, servers=1)


def test_parameters_that_do_not_exist_are_refused_whatever_the_struct_allows(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    body = "    class Parameters(msgspec.Struct):\n        lease_s: float = 1.0\n\n    def shares(self, *given):\n        ...\n"
    path.write_text("import msgspec\n" + HEAD + body)
    with pytest.raises(UserError, match=r"parameters.leese_s: is unknown; known are lease_s"):
        simulate(TWO, {"policy": str(path), "parameters": {"leese_s": 2}})
    with pytest.raises(UserError, match=r"parameters.leese_s: is unknown"):
        simulate(TWO, {"policy": "fifo", "parameters": {"leese_s": 2}})


def test_a_run_in_which_no_job_gets_a_gpu_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own(tmp_path, "return [0] * len(jobs)")
    (tmp_path / "trace.csv").write_text("job,submit_s,duration_s,gpus\na,0,100,1\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["trace.csv", "--policy", "fifo", "--policy", "mine.py", "--processes", "1"]
    monkeypatch.setattr("sys.argv", ["elasticctl", "simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    output = capsys.readouterr()
    assert "elasticctl: mine: no job got a GPU\n" in output.err
    assert "fifo: no job" not in output.err
    assert "fifo" in output.out
