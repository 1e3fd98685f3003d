"""`elasticctl simulate` as people and programs use it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elasticd

SOURCES = str(Path(elasticd.__file__).parents[1])
FIELDS = {
    "finished",
    "dropped",
    "avg_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "avg_queueing_s",
    "makespan_s",
    "deadline_ratio",
    "avg_queue_length",
    "avg_cluster_efficiency",
    "avg_blocking_index",
    "gpu_utilization",
    "reconfigurations",
    "migrations",
    "wall_s",
    "events",
}
CLOCKS = {"wall_s", "avg_decision_s", "p99_decision_s"}  # differ from run to run

TRACE = "vc,job,submit_s,duration_s,gpus,model\n" + "".join(
    f"A,job-{row},{20 * row},{100 + 37 * row % 211},{(1, 2, 4)[row % 3]},{('small', 'large')[row % 2]}\n"
    for row in range(40)
)
PROFILES = "model,gpus,iters_per_s\nsmall,1,1\nsmall,2,1.6\nsmall,4,2\nlarge,1,1\nlarge,2,1.9\nlarge,4,3.5\nlarge,8,6\n"

Simulate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def simulate(tmp_path: Path, simulate_here: Simulate) -> Simulate:
    """The command in this process, in a directory with a trace and throughputs."""
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(TRACE.encode()))
    (tmp_path / "profiles.csv").write_text(PROFILES)
    return simulate_here


SMALL = ("trace.csv", "--profiles", "profiles.csv", "--servers", "2", "--gpus-per-server", "4")
THREE = ("--policy", "fifo", "--policy", "max-min", "--policy", "afs-p")


def results(text: str) -> Any:
    """Results without measured times."""
    document = json.loads(text)
    for metrics in document["policies"].values():
        for name in CLOCKS:
            assert metrics.pop(name) >= 0
    return document


def test_json_has_every_field_and_nothing_else_is_on_stdout(simulate: Simulate) -> None:
    document = json.loads(simulate(*SMALL, *THREE, "--processes", "1", "--json", "-").stdout)
    assert (document["trace"], document["jobs"], document["gpus"]) == ("trace.csv", 40, 8)
    assert list(document["policies"]) == ["fifo", "max-min", "afs-p"]
    for metrics in document["policies"].values():
        assert set(metrics) >= FIELDS
        assert (metrics["finished"], metrics["dropped"]) == (40, 0)
        assert 0 < metrics["gpu_utilization"] <= 1
        assert metrics["p50_jct_s"] <= metrics["p99_jct_s"] <= metrics["makespan_s"]
        assert metrics["deadline_ratio"] is None


OWN = Path(__file__).parents[2] / "docs" / "research.md"


def test_the_policy_of_the_page_decides_like_the_built_in_one_that_it_resembles(
    simulate: Simulate, tmp_path: Path
) -> None:
    found = re.search(r"```python\n# shortest\.py\n(.*?)```", OWN.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "shortest.py").write_text(found[1])
    own = ("--policy", "./shortest.py", "--policy", "srtf", "--policy", "fifo")
    for processes in ("1", "2"):
        document = json.loads(simulate(*SMALL, *own, "--processes", processes, "--json", "-").stdout)
        assert list(document["policies"]) == ["shortest", "srtf", "fifo"]
        mine, _, fifo = document["policies"].values()
        assert (mine["finished"], mine["dropped"]) == (40, 0)
        assert mine["avg_jct_s"] < fifo["avg_jct_s"]


def test_a_policy_of_ones_own_that_fails_ends_the_simulation_with_file_and_line(
    simulate: Simulate, tmp_path: Path
) -> None:
    text = "from elasticd.scheduler.plugin import PolicyPlugin\n\n\nclass Mine(PolicyPlugin):\n"
    text += "    def shares(self, jobs, gpus, now, rng):\n"
    (tmp_path / "mine.py").write_text(text + "        return [0 // (len(jobs) - 3)] * len(jobs)\n")
    for processes in ("1", "2"):
        own = ("--policy", "./mine.py", "--policy", "fifo", "--processes", processes)
        assert "mine.py: line 6: ZeroDivisionError" in simulate(*SMALL, *own, code=2).stderr


def test_the_same_seed_gives_the_same_result_however_many_processes_there_are(simulate: Simulate) -> None:
    one = results(simulate(*SMALL, *THREE, "--seed", "3", "--processes", "1", "--json", "-").stdout)
    several = results(simulate(*SMALL, *THREE, "--seed", "3", "--processes", "2", "--json", "-").stdout)
    assert one == several
    assert one == results(simulate(*SMALL, *THREE, "--seed", "3", "--processes", "1", "--json", "-").stdout)


def test_gzip_where_and_a_file_of_servers_change_nothing_but_the_input(simulate: Simulate, tmp_path: Path) -> None:
    plain = results(simulate(*SMALL, "--json", "-").stdout)
    (tmp_path / "cluster.yaml").write_text("servers: [{count: 2, gpus: 4}]\n")
    other = ("trace.csv.gz", "--where", "vc=A", "--profiles", "profiles.csv", "--cluster", "cluster.yaml")
    found = results(simulate(*other, "--json", "-").stdout)
    assert found["policies"] == plain["policies"]
    assert simulate("trace.csv", "--where", "vc=B", code=2).stderr.startswith(
        "elasticctl: trace.csv: column vc: no row has B"
    )


def test_a_table_for_people_and_the_same_numbers_in_a_file(simulate: Simulate, tmp_path: Path) -> None:
    shown = simulate(*SMALL, *THREE, "--processes", "1", "--json", "out.json").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["POLICY", "fifo", "max-min", "afs-p"] * 3
    assert "DEADLINES" not in shown
    assert set(json.loads((tmp_path / "out.json").read_text())["policies"]) == {"fifo", "max-min", "afs-p"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "profiles.csv", "trace.csv", "trace.csv.gz"]


def test_policy_files_are_named_by_their_file(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "hourly.yaml").write_text("policy: afs-p\nparameters: {unit_s: 3600}\n")
    found = json.loads(simulate(*SMALL, "--policy", "hourly.yaml", "--json", "-").stdout)
    assert list(found["policies"]) == ["hourly"]


def test_costly_changes_take_time(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text("default: {start_s: 30, pause_s: 30}\n")

    def jct_s(overhead: str) -> float:
        found = json.loads(simulate(*SMALL, "--overhead", overhead, "--json", "-").stdout)
        return float(found["policies"]["max-min"]["avg_jct_s"])

    free, background, stop = jct_s("none"), jct_s("background"), jct_s("stop-resume")
    assert free < background < stop
    assert jct_s("./costs.yaml") == stop
    (tmp_path / "costs.yaml").write_text("models: {large: {start_s: 30, pause_s: 30}}\n")
    assert free < jct_s("./costs.yaml") < stop


def test_packing_rounds_shares(simulate: Simulate) -> None:
    loose = results(simulate(*SMALL, "--json", "-").stdout)
    packed = results(simulate(*SMALL, "--packing", "--json", "-").stdout)
    assert (loose["packing"], packed["packing"]) == (False, True)
    assert packed["policies"]["max-min"]["finished"] == 40
    assert packed["policies"] != loose["policies"]


def test_explain_tells_a_jobs_story_with_reasons(simulate: Simulate) -> None:
    shown = simulate(*SMALL, "--policy", "fifo", "--explain", "job-20").stdout
    story = shown[shown.index("job-20") :].splitlines()
    assert story[0].startswith("job-20: small, 4 GPUs requested, from 1 to 4 allowed")
    assert any("waits: " in line for line in story)
    assert any("has 4 GPUs" in line for line in story)
    assert story[-1].endswith("over")


def test_explain_tells_what_packing_has_lowered_and_raised(simulate: Simulate, tmp_path: Path) -> None:
    rows = "".join(f"A,{name},0,100,1,large\n" for name in "abc")
    (tmp_path / "three.csv").write_text("vc,job,submit_s,duration_s,gpus,model\n" + rows)
    options = ("three.csv", *SMALL[1:], "--packing", "--explain")
    assert "has 4 GPUs (3 GPUs from the policy, raised by packing)" in simulate(*options, "a").stdout
    assert (
        "has 2 GPUs (3 GPUs from the policy, lowered by packing): 2 GPUs in place of 3"
        in simulate(*options, "b").stdout
    )


def test_stages_are_chosen_for_all_policies_or_by_a_policys_own_file(simulate: Simulate) -> None:
    Path("own.yaml").write_text(
        "policy: max-min\nplacement: buddy\nadmission: {name: bounded, parameters: {waiting_jobs: 1}}\n"
    )
    options = ("--policy", "max-min", "--policy", "own.yaml", "--packing", "--processes", "1", "--json", "-")
    found = json.loads(simulate(*SMALL, *options).stdout)
    assert (found["packing"], found["placement"], found["admission"]) == (True, "fewest-servers", "all")
    assert found["own_stages"] == {"own": {"packing": True, "placement": "buddy", "admission": "bounded"}}
    assert found["policies"]["max-min"]["dropped"] == 0
    assert found["policies"]["own"]["dropped"] > 0
    assert found["policies"]["own"]["finished"] + found["policies"]["own"]["dropped"] == 40
    options = ("--policy", "max-min", "--packing", "--placement", "buddy", "--admission", "bounded", "--json", "-")
    alone = json.loads(simulate(*SMALL, *options).stdout)
    assert (alone["placement"], alone["admission"], alone["own_stages"]) == ("buddy", "bounded", {})
    assert alone["policies"]["max-min"]["finished"] == 40


def test_without_throughputs_it_says_what_it_assumes(simulate: Simulate) -> None:
    done = simulate("trace.csv", "--json", "-")
    assert done.stderr == (
        "elasticctl: no --profiles: every job scales linearly up to its request and not beyond it, "
        "so that no policy can show what elastic shares are worth\n"
    )
    assert json.loads(done.stdout)["profiles"] is None


def test_a_picture_is_drawn(simulate: Simulate, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    simulate(*SMALL, *THREE, "--processes", "1", "--plot", "out.png")
    picture = (tmp_path / "out.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 50_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.csv",), "nowhere.csv: no such file"),
        (("trace.csv", "--policy", "best"), "--policy: there is no policy 'best'; known are"),
        (("trace.csv", "--policy", "fifo", "--policy", "fifo"), "--policy: fifo is given twice"),
        (("trace.csv", "--policy", "none.yaml"), "none.yaml: no such file"),
        (("trace.csv", "--placement", "best"), "--placement: there is no placement 'best'; known are"),
        (("trace.csv", "--where", "vc"), "--where: 'vc' is not COLUMN=VALUE"),
        (("trace.csv", "--servers", "0"), "Invalid value for '--servers'"),
        (
            ("trace.csv", "--servers", "1", "--gpus-per-server", "2"),
            "trace.csv: line 4, column gpus: 4 GPUs requested, and",
        ),
        (("trace.csv", "--servers", "1", "--cluster", "c.yaml"), "--cluster says which servers there are"),
        (("trace.csv", "--cluster", "c.yaml"), "c.yaml: no such file"),
        (("trace.csv", "--overhead", "little"), "--overhead: there is no preset 'little'"),
        (("trace.csv", "--overhead", "./little.yaml"), "little.yaml: no such file"),
        (("trace.csv", "--profiles", "trace.csv"), "trace.csv: line 1: not a table of throughputs"),
        (("trace.csv", "--gpu-type", "A100"), "--gpu-type: says which rows of --profiles FILE to take"),
        (("trace.csv", "--json", "no/such/out.json"), "--json: no/such is not a directory that can be written to"),
        (("trace.csv", "--plot", "."), "--plot: . is a directory, not a file"),
        (("trace.csv", "--plot", "out.bmp"), "--plot: out.bmp must end in .png, .pdf, .svg"),
        (
            ("trace.csv", "--explain", "job-99"),
            "--explain: the trace has no job 'job-99'; the first is job-0, the last job-39",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence_and_nothing_is_written(
    simulate: Simulate, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    before = sorted(tmp_path.iterdir())
    done = simulate(*arguments, code=2)
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"elasticctl: {message}")
    assert sorted(tmp_path.iterdir()) == before


def test_a_malformed_line_leaves_an_older_result_alone(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(TRACE + "A,job-x,99999,soon,1,small\n")
    (tmp_path / "out.json").write_text("older")
    refused = simulate("bad.csv", "--json", "out.json", code=2).stderr
    assert refused == "elasticctl: bad.csv: line 42, column duration_s: 'soon' is not a number\n"
    assert (tmp_path / "out.json").read_text() == "older"


def test_help_does_not_load_numpy(tmp_path: Path) -> None:
    program = "import sys, elasticd.ctl.main; print([m for m in ('numpy', 'matplotlib', 'rich') if m in sys.modules])"
    environ = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_processes_are_started_from_the_installed_command(simulate: Simulate, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elasticd.ctl.main", "simulate", *SMALL, *THREE, "--processes", "2", "--json", "-"]
    environ = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["policies"]) == 3


def test_a_terminal_shows_a_bar_for_each_policy_with_the_jobs_that_are_over_and_the_time_left(
    simulate: Simulate, tmp_path: Path
) -> None:
    terminal, end = os.openpty()
    command = [sys.executable, "-m", "elasticd.ctl.main", "simulate", *SMALL, *THREE, "--processes", "1"]
    environ = {**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm", "COLUMNS": "100"}
    with open(terminal, "rb", buffering=0) as screen:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=end)
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while some := screen.read(4096):
                shown += some
        assert process.stdout is not None
        assert b"afs-p" in process.stdout.read()
        assert process.wait(timeout=300) == 0
    for name in (b"fifo", b"max-min", b"afs-p"):
        assert re.search(name + rb"[^\n]*40/40[^\n]*0:00:00", shown), shown


def test_policies_that_have_to_find_out_how_jobs_scale_change_more_and_are_repeated_to_the_bit(
    simulate: Simulate,
) -> None:
    slow = ("--overhead", "background", "--policy", "afs-p", "--processes", "1", "--json", "-")
    known = results(simulate(*SMALL, *slow).stdout)
    measured = [results(simulate(*SMALL, *slow, "--curves", "measured").stdout) for _ in range(2)]
    assert measured[0] == measured[1]
    assert (known["curves"], measured[0]["curves"]) == ("known", "measured")
    counts = [document["policies"]["afs-p"] for document in (known, measured[0])]
    assert counts[0]["finished"] == counts[1]["finished"] == 40
    assert counts[0]["events"] < counts[1]["events"]


def test_curves_that_are_neither_known_nor_measured_are_refused(simulate: Simulate) -> None:
    assert "--curves: 'guessed' is not one of known, measured" in simulate(*SMALL, "--curves", "guessed", code=2).stderr
