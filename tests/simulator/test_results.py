"""Results as data: rows of jobs and events, several seeds, two results side by side, and simulations from Python."""

from __future__ import annotations

import csv
import gzip
import inspect
import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from elasticd.ctl.simulate import simulate as simulate_command
from elasticd.protocol.errors import UserError
from elasticd.simulator import simulate as replay
from elasticd.simulator.results import interval

TRACE = "vc,job,submit_s,duration_s,gpus,model\n" + "".join(
    f"A,job-{row},{20 * row},{100 + 37 * row % 211},{(1, 2, 4)[row % 3]},{('small', 'large')[row % 2]}\n"
    for row in range(40)
)
PROFILES = "model,gpus,iters_per_s\nsmall,1,1\nsmall,2,1.6\nsmall,4,2\nlarge,1,1\nlarge,2,1.9\nlarge,4,3.5\nlarge,8,6\n"
SMALL = ("trace.csv", "--profiles", "profiles.csv", "--servers", "2", "--processes", "1")
TWO = ("--policy", "fifo", "--policy", "afs-l")

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def simulate(tmp_path: Path, simulate_here: Command) -> Command:
    """The command in this process, in a directory with a trace and throughputs."""
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "profiles.csv").write_text(PROFILES)
    return simulate_here


def read(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


# -- rows


def test_a_row_for_each_job_agrees_with_the_figures_of_its_policy(simulate: Command) -> None:
    document = json.loads(simulate(*SMALL, *TWO, "--jobs", "jobs.csv", "--json", "-").stdout)
    rows = read("jobs.csv")
    assert len(rows) == 2 * 40
    for label, figures in document["policies"].items():
        mine = [row for row in rows if row["policy"] == label]
        assert [row["job"] for row in mine] == [f"job-{number}" for number in range(40)]
        jct_s = [float(row["jct_s"]) for row in mine]
        assert mean(jct_s) == pytest.approx(figures["avg_jct_s"])
        assert max(jct_s) == figures["max_jct_s"]
        assert mean(float(row["queueing_s"]) for row in mine) == pytest.approx(figures["avg_queueing_s"])
        assert mean(float(row["slowdown"]) for row in mine) == pytest.approx(figures["avg_slowdown"])
        assert sum(int(row["changes"]) for row in mine) == figures["reconfigurations"]
        used = sum(float(row["gpu_s"]) for row in mine) / (8 * figures["makespan_s"])
        assert used == pytest.approx(figures["gpu_utilization"])
        for row in mine:
            assert float(row["submitted_s"]) <= float(row["started_s"]) < float(row["ended_s"])
            assert row["deadline_s"] == ""


def test_a_job_that_never_ended_has_no_end(simulate: Command, tmp_path: Path) -> None:
    (tmp_path / "bounded.yaml").write_text("policy: fifo\nadmission: {name: bounded, parameters: {waiting_jobs: 1}}\n")
    document = json.loads(simulate(*SMALL, "--policy", "bounded.yaml", "--jobs", "jobs.csv", "--json", "-").stdout)
    dropped = [row for row in read("jobs.csv") if not row["ended_s"]]
    assert len(dropped) == document["policies"]["bounded"]["dropped"] > 0
    for row in dropped:
        assert (row["started_s"], row["jct_s"], row["queueing_s"], row["slowdown"]) == ("", "", "", "")
        assert (row["gpu_s"], row["changes"]) == ("0.0", "0")


def test_parquet_has_the_same_rows_with_types(simulate: Command) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    simulate(*SMALL, *TWO, "--jobs", "jobs.parquet", "--timeline", "line.parquet")
    simulate(*SMALL, *TWO, "--jobs", "jobs.csv", "--timeline", "line.csv")
    for name in ("jobs", "line"):
        table = parquet.read_table(f"{name}.parquet")
        rows = read(f"{name}.csv")
        assert table.column_names == list(rows[0])
        for column in table.column_names:
            texts = ["" if value is None else str(value) for value in table[column].to_pylist()]
            assert texts == [row[column] for row in rows]
    types = {field.name: str(field.type) for field in parquet.read_table("jobs.parquet").schema}
    assert (types["job"], types["requested_gpus"], types["jct_s"], types["deadline_s"]) == (
        "string",
        "int64",
        "double",
        "double",
    )


def test_the_timeline_holds_what_was_used_until_the_next_event(simulate: Command) -> None:
    document = json.loads(simulate(*SMALL, "--policy", "fifo", "--timeline", "line.csv", "--json", "-").stdout)
    rows, figures = read("line.csv"), document["policies"]["fifo"]
    times_s = [float(row["time_s"]) for row in rows]
    assert times_s == sorted(times_s)
    assert times_s[-1] == figures["makespan_s"]
    held = zip(rows, times_s, times_s[1:], strict=False)
    used_s = sum(int(row["used_gpus"]) * (after - before) for row, before, after in held)
    assert used_s / (8 * figures["makespan_s"]) == pytest.approx(figures["gpu_utilization"])
    assert rows[-1]["used_gpus"] == rows[-1]["waiting_jobs"] == "0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--jobs", "jobs.xls"), "--jobs: jobs.xls must end in .csv or .parquet"),
        (("--timeline", "nowhere/line.csv"), "--timeline: nowhere is not a directory that can be written to"),
        (("--sort", "speed"), "--sort: there is no column 'speed'; there are done, "),
        (("--seeds", "2", "--explain", "job-3"), "--seeds: a picture and an explanation are of one seed"),
    ],
)
def test_what_cannot_be_written_or_shown_is_said_before_anything_is_simulated(
    arguments: tuple[str, ...], said: str, simulate: Command, tmp_path: Path
) -> None:
    there = sorted(tmp_path.iterdir())
    assert simulate(*SMALL, *arguments, code=2).stderr.startswith(f"elasticctl: {said}")
    assert sorted(tmp_path.iterdir()) == there


# -- which jobs, in which order


def test_jobs_that_are_too_large_are_left_out_where_that_is_asked_for(simulate: Command) -> None:
    tiny = ("trace.csv", "--servers", "1", "--gpus-per-server", "2")
    refused = simulate(*tiny, code=2).stderr
    assert "line 4, column gpus: 4 GPUs requested, and the cluster has 2 (13 of 40 jobs are too large)" in refused
    done = simulate(*tiny, "--drop-larger", "--jobs", "jobs.csv", "--json", "-")
    assert "left out 13 jobs that request more GPUs than the cluster has" in done.stderr
    document = json.loads(done.stdout)
    assert (document["jobs"], document["dropped_larger"]) == (27, 13)
    assert {row["requested_gpus"] for row in read("jobs.csv")} == {"1", "2"}
    (Path("large.csv")).write_text(TRACE.splitlines()[0] + "\nA,huge,0,100,8,small\n")
    none = simulate("large.csv", *tiny[1:], "--drop-larger", code=2).stderr
    assert "every job requested more GPUs than the 2 of the cluster" in none


def test_policies_are_ordered_by_a_column_the_best_first(simulate: Command) -> None:
    policies = ("--policy", "fifo", "--policy", "afs-l", "--policy", "srtf")
    for column, figure, most_first in (("avg-jct", "avg_jct_s", False), ("jain_index", "jain_index", True)):
        document = json.loads(simulate(*SMALL, *policies, "--sort", column, "--json", "-").stdout)
        values = [figures[figure] for figures in document["policies"].values()]
        assert values == sorted(values, reverse=most_first)
        table = simulate(*SMALL, *policies, "--sort", column).stdout
        assert re.findall(r"^(fifo|afs-l|srtf) ", table, re.MULTILINE)[:3] == list(document["policies"])


def test_the_tables_fit_into_80_columns_and_have_every_figure(simulate: Command) -> None:
    lines = simulate(*SMALL, "--policy", "elastic-tiresias").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    heads = " ".join(line for line in lines if line.startswith("POLICY"))
    for head in ("P95", "MAX", "SLOWDOWN", "UNFAIRNESS", "WORST", "JAIN", "QUEUEING", "MAKESPAN", "CHANGES"):
        assert head in heads


# -- several seeds


def test_several_seeds_give_the_mean_and_its_interval(simulate: Command) -> None:
    random = (*SMALL, *TWO, "--random-models")
    document = json.loads(simulate(*random, "--seed", "4", "--seeds", "3", "--json", "-").stdout)
    assert document["seeds"] == [4, 5, 6]
    alone = [json.loads(simulate(*random, "--seed", str(seed), "--json", "-").stdout) for seed in (4, 5, 6)]
    for label in ("fifo", "afs-l"):
        values = [one["policies"][label]["avg_jct_s"] for one in alone]
        assert [one["avg_jct_s"] for one in document["by_seed"][label]] == values
        assert document["policies"][label]["avg_jct_s"] == pytest.approx(mean(values))
        assert document["interval_95"][label]["avg_jct_s"] == interval(values)
    assert "±" in simulate(*random, "--seeds", "3").stdout


def test_it_is_said_where_no_seed_changes_anything(simulate: Command) -> None:
    done = simulate(*SMALL, *TWO, "--seeds", "2")
    assert "--seeds: every seed gave the same result" in done.stderr
    assert "±" not in done.stdout


def test_an_interval_is_that_of_students_t() -> None:
    # mean 5, standard deviation 2.160 of 4 values: 3.182 * 2.160 / 2
    assert interval([2.0, 5.0, 6.0, 7.0]) == pytest.approx(3.182 * math.sqrt(14 / 3) / 2, rel=1e-9)
    assert interval([3.0]) is None
    for count, point in ((21, 2.086), (31, 2.042), (121, 1.980)):  # t for 20, 30, 120 degrees of freedom
        values = [float(number % 2) for number in range(count)]
        spread = math.sqrt(sum((value - mean(values)) ** 2 for value in values) / (count - 1))
        assert interval(values) == pytest.approx(point * spread / math.sqrt(count), rel=1e-3)


# -- side by side


def test_two_results_are_set_side_by_side(simulate: Command) -> None:
    simulate(*SMALL, *TWO, "--json", "a.json")
    simulate(*SMALL, "--policy", "afs-l", "--policy", "srtf", "--overhead", "stop-resume", "--json", "b.json")
    done = simulate("compare", "a.json", "b.json")
    assert "they differ in overhead: none, stop-resume" in done.stderr
    assert "only one of them has fifo, srtf" in done.stderr
    document = json.loads(simulate("compare", "a.json", "b.json", "--json", "--column", "avg-jct").stdout)
    a, b = (json.loads(Path(name).read_text())["policies"]["afs-l"]["avg_jct_s"] for name in ("a.json", "b.json"))
    assert document["policies"] == {"afs-l": {"avg_jct_s": {"a": a, "b": b, "ratio": b / a}}}
    assert f"{b / a:.3f}" in done.stdout
    assert list(document["differences"]) == ["overhead"]


def test_what_is_no_result_is_refused(simulate: Command) -> None:
    simulate(*SMALL, "--policy", "fifo", "--json", "a.json")
    for text, said in (
        (None, "b.json: no such file"),
        ("{}", "b.json: is not a result of `elasticctl simulate --json`"),
        ('{"policies": {"fifo": {"avg_jct_s": 3}}}', "b.json: is not a result"),
        ("nothing", "b.json: is not JSON"),
    ):
        if text is not None:
            Path("b.json").write_text(text)
        assert simulate("compare", "a.json", "b.json", code=2).stderr.startswith(f"elasticctl: {said}"), text


def test_results_without_a_common_policy_are_refused(simulate: Command) -> None:
    simulate(*SMALL, "--policy", "fifo", "--json", "a.json")
    simulate(*SMALL, "--policy", "srtf", "--json", "b.json")
    assert "have no policy in common: fifo; srtf" in simulate("compare", "a.json", "b.json", code=2).stderr


# -- from Python


def test_simulations_from_python_give_what_the_command_gives(simulate: Command, tmp_path: Path) -> None:
    document = json.loads(simulate(*SMALL, *TWO, "--jobs", "jobs.csv", "--json", "-").stdout)
    found = replay("trace.csv", ["fifo", {"policy": "afs-l"}], profiles="profiles.csv", servers=2)
    assert list(found) == ["fifo", "afs-l"]
    for label, one in found.items():
        assert one.metrics.avg_jct_s == document["policies"][label]["avg_jct_s"]
        rows = [row for row in read("jobs.csv") if row["policy"] == label]
        assert [str(value) for value in one.jobs()["jct_s"]] == [row["jct_s"] for row in rows]
        assert one.timeline()["time_s"][-1] == one.metrics.makespan_s


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "research.md").read_text()
    found = re.search(r"```python\n(from elasticd\.simulator import simulate\n.*?)```", page, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    Path("philly_jobs.csv.gz").write_bytes(gzip.compress(TRACE.replace("A,job", "0e4a51,job").encode()))
    Path("afs_models_gtx1080.csv").write_text(PROFILES)
    names: dict[str, Any] = {}
    exec(compile(found[1], "research.md", "exec"), names)
    assert len(names["found"]["afs-l"].jobs()["jct_s"]) == 40
    assert names["ratio"] == names["found"]["afs-l"].metrics.avg_jct_s / names["found"]["max-min"].metrics.avg_jct_s


def test_arguments_in_python_have_the_names_of_the_options() -> None:
    options = set(inspect.signature(simulate_command).parameters)
    for_output = {"sort", "jobs", "timeline", "as_json", "plot", "by"}
    assert options - for_output == set(inspect.signature(replay).parameters)


def test_data_frames_documents_and_files_give_equal_results_in_python(simulate: Command) -> None:
    pandas = pytest.importorskip("pandas")
    Path("mine.yaml").write_text("policy: tiresias-l\nparameters: {thresholds_gpu_s: [50, 500]}\n")
    Path("cluster.yaml").write_text("servers: [{gpus: 4, count: 2}]\n")
    parameters = {"thresholds_gpu_s": [50, 500]}
    document = {"policy": "tiresias-l", "parameters": parameters}
    files = replay("trace.csv", "mine.yaml", profiles="profiles.csv", cluster="cluster.yaml", seeds=2)
    values = replay(
        pandas.read_csv("trace.csv"),
        {"mine": document},
        profiles=pandas.read_csv("profiles.csv"),
        cluster={"servers": [{"gpus": 4}, {"gpus": 4}]},
        seeds=2,
    )
    clocks = ["wall_s", "avg_decision_s", "p99_decision_s"]
    drop = [name for clock in clocks for name in (clock, f"{clock}_interval_95")]
    assert files.summary().drop(columns=drop).equals(values.summary().drop(columns=drop))
    assert files.jobs().equals(values.jobs())
    assert list(files.jobs()["seed"].unique()) == [0, 1]
    two = [document, {**document, "parameters": {"thresholds_gpu_s": [500, 5000]}}]
    labels = ["tiresias-l thresholds_gpu_s=[50, 500]", "tiresias-l thresholds_gpu_s=[500, 5000]"]
    assert list(replay("trace.csv", two, servers=2)) == labels
    explained = replay("trace.csv", ["fifo"], servers=2, explain="job-7").explain()
    assert explained["gpus"].iloc[-1] == 2
    with pytest.raises(UserError, match="trace: line 2, column gpus: 0 is below 1"):
        replay({"job": ["a", "b"], "submit_s": [0, 1], "duration_s": [1, 1], "gpus": [1, 0]})


def test_values_of_notebooks_mean_what_their_texts_mean(simulate: Command) -> None:
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    Path("failures.csv").write_text("fail_s,server,gpu,repair_s\n5,server-0,,20\n")
    jobs = pandas.read_csv("trace.csv")
    files = replay("trace.csv", "fifo", servers=2, where={"vc": ["A"]}, failures="failures.csv", explain="job-7")
    frame = pandas.DataFrame({"fail_s": [5], "server": ["server-0"], "gpu": [None], "repair_s": [20]})
    jobs["duration_s"] = pandas.to_timedelta(jobs["duration_s"], unit="s")
    values = replay(jobs, "fifo", servers=numpy.int64(2), where={"vc": "A"}, failures=frame, explain="job-7")
    assert files["fifo"].metrics.failures == 1
    assert files.jobs().equals(values.jobs())
    numbered = pandas.read_csv("trace.csv").assign(job=range(40))
    story = replay(
        numbered, "fifo", servers=2, where={"gpus": 2}, explain=numbered["job"][numbered["gpus"] == 2].iloc[0]
    )
    assert len(story["fifo"].jobs()["job"]) == (numbered["gpus"] == 2).sum()
    assert len(story.explain())
    told = [replay("trace.csv", "elastic", servers=2, told=0.5, errors=one).jobs() for one in ("0.5,2", (0.5, 2))]
    assert told[0].equals(told[1])
    steep = [
        replay("trace.csv", {"policy": "elastic", "parameters": {"constancy": one}}, overhead=costs, servers=2).jobs()
        for one, costs in ((0.4, "background"), (numpy.float64(0.4), {"base": "background"}))
    ]
    assert steep[0].equals(steep[1])
    queues = {"policy": "tiresias-l", "parameters": {"thresholds_gpu_s": numpy.array([50, 500])}}
    assert repr(replay("trace.csv", queues, servers=2)).startswith(
        "{'tiresias-l': <Replay of 40 jobs: 40 finished, avg_"
    )


def test_compare_names_settings_in_words(simulate: Command) -> None:
    simulate(*SMALL, "--policy", "fifo", "--json", "a.json")
    options = ("--told", "0.5", "--overhead", "stop-resume", "--cap-at-request", "--where", "vc=A", "--packing")
    simulate("trace.csv", "--servers", "3", *options, "--policy", "fifo", "--json", "b.json")
    said = simulate("compare", "a.json", "b.json").stderr
    for line in (
        "overhead: none, stop-resume",
        "told lengths: those of the trace, 50 % of the jobs, errors by a factor from 1 to 1, 0 % end early",
        "cap at request: no, yes",
        "where: all rows, vc=A",
        "packing: no, yes",
        "profiles: profiles.csv, none",
    ):
        assert f"elasticctl: they differ in {line}\n" in said
    assert not {"{", "None", "null", "True"} & set(re.findall(r"\{|None|null|True", said))


def test_bad_arguments_from_python_are_refused_in_one_sentence(simulate: Command) -> None:
    for arguments, said in (
        ({"policy": ["nonsense"]}, "policy: .*nonsense"),
        ({"policy": ["fifo", "fifo"]}, "policy: fifo is given twice"),
        ({"curves": "guessed"}, "curves: 'guessed' is not known or measured"),
        ({"placement": "nowhere"}, "placement: "),
        ({"overhead": "free"}, "overhead: there is no preset 'free'"),
        ({"policy": ["./missing.py"]}, "policy: .*missing.py"),
        ({"servers": 0}, "servers: 0 is not a whole number from 1 to 65536"),
        ({"servers": "4"}, "servers: '4' is not a whole number from 1 to 65536"),
        ({"servers": 2.5}, "servers: 2.5 is not a whole number from 1 to 65536"),
        ({"gpus_per_server": 2000}, "gpus_per_server: 2000 is not a whole number from 1 to 1024"),
        ({"policy": list}, r"policy: <class 'list'> is not a name, a file, or a document"),
        ({"overhead": {"base": "background", "pause_s": 1}}, "overhead: .*pause_s"),
        ({"seeds": 0}, "seeds: 0 is not a whole number from 1 to 1000"),
        ({"seed": -1}, "seed: -1 is not a whole number from 0 to"),
        ({"processes": 0}, "processes: 0 is not a whole number from 1 to"),
        ({"errors": (2,)}, r"--errors: '2' is not two factors like 0.5,2"),
    ):
        with pytest.raises(UserError, match=said):
            replay("trace.csv", **{"profiles": "profiles.csv", **arguments})  # type: ignore[arg-type]
