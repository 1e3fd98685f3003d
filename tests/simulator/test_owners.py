"""Users and accounts of published traces, and results by user and account."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.simulator import groups, simulate, traces
from elasticd.simulator.fairness import finish_time_fairness, jain
from elasticd.simulator.owners import By, Owners
from elasticd.simulator.traces import Trace
from elasticd.simulator.workload import Workload

DAY = "2020-06-09"
TASKS = (
    "b1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC\n"
    "c2,worker,5.0,Terminated,1739192.0,1739300.0,600.0,29.3,100.0,T4\n"
)
JOBS = "b1,i1,alice,Terminated,1739162.0,1739200.0\nc2,i2,bob,Terminated,1739180.0,1739300.0\nz9,i3,bob,Failed,1,2\n"
VCS = "vc,job,submit_s,duration_s,gpus\n" + "".join(f"{vc},{at},{10 * at},60,2\n" for vc in "AB" for at in range(3))


def load(directory: Path, text: str, owners: Owners | None = None, **where: str) -> Trace:
    (directory / "trace").write_text(text)
    return traces.load(directory / "trace", {column: [value] for column, value in where.items()}, owners or Owners())


def test_helios_has_users_and_its_virtual_clusters_are_accounts(tmp_path: Path) -> None:
    text = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n" + (
        f"7,u1,vcA,1,1,1,COMPLETED,{DAY} 18:41:01,{DAY} 18:41:11,{DAY} 18:43:11,120,10\n"
        f"8,u2,vcA,0,4,1,COMPLETED,{DAY} 18:41:02,{DAY} 18:41:11,{DAY} 18:43:11,120,9\n"
        f"9,u1,vcB,16,64,2,FAILED,{DAY} 18:41:31,{DAY} 18:41:31,{DAY} 18:41:36,5,0\n"
    )
    trace = load(tmp_path, text)
    assert trace.owners == {By.USER: ["u1", "u1"], By.ACCOUNT: ["vcA", "vcB"]}
    assert trace.known_owners[By.USER] == ("u1", "u2")
    assert load(tmp_path, text, vc="vcB").owners == {By.USER: ["u1"], By.ACCOUNT: ["vcB"]}


def test_acme_has_users_and_no_accounts(tmp_path: Path) -> None:
    text = (
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
        "b,u9,1,8,128,Other,FAILED,2023-03-01 08:18:22,2023-03-01 08:18:32,2023-03-01 08:20:32,130,10,0\n"
    )
    assert load(tmp_path, text).owners == {By.USER: ["u9"]}


def test_phillys_virtual_clusters_are_accounts(tmp_path: Path) -> None:
    one = {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:09", "detail": [{"gpus": ["gpu0"]}]}
    job = {"jobid": "a", "vc": "v1", "user": "u5", "submitted_time": "2017-10-07 01:00:00", "attempts": [one]}
    assert load(tmp_path, json.dumps([job])).owners == {By.USER: ["u5"], By.ACCOUNT: ["v1"]}


def test_slurms_users_and_accounts_are_those_of_sacct(tmp_path: Path) -> None:
    text = (
        "JobID|User|Account|State|Submit|Start|End|Elapsed|AllocTRES|ReqTRES\n"
        "100|ann|physics|COMPLETED|2025-03-30T01:59:00|||00:01:00|gres/gpu=2|\n"
        "100.batch|||COMPLETED|2025-03-30T01:59:00|||00:01:00|gres/gpu=2|\n"
    )
    assert load(tmp_path, text).owners == {By.USER: ["ann"], By.ACCOUNT: ["physics"]}


def test_pais_users_stand_in_its_table_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "pai_job_table.csv").write_text(JOBS)
    assert load(tmp_path, TASKS).owners == {}
    for name in ("", "header"):
        header = "job_name,inst_id,user,status,start_time,end_time\n" if name else ""
        (tmp_path / "pai_job_table.csv").write_text(header + JOBS)
        trace = load(tmp_path, TASKS, owners=Owners(tmp_path / "pai_job_table.csv"))
        assert trace.owners == {By.USER: ["alice", "bob"]}
    assert list(load(tmp_path, TASKS, owners=Owners(tmp_path / "pai_job_table.csv"), user="bob").names) == ["c2"]


def test_the_simplest_trace_has_both_where_it_has_columns_for_them(tmp_path: Path) -> None:
    text = "job,submit_s,duration_s,gpus,user,account\na,0,9,1,ann,x\nb,1,9,1,,None\n"
    assert load(tmp_path, text).owners == {By.USER: ["ann", ""], By.ACCOUNT: ["x", ""]}


def test_parts_of_a_trace_can_be_accounts_of_one_cluster(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 traces in one file: pick one with --where vc=A"):
        load(tmp_path, VCS)
    trace = load(tmp_path, VCS, owners=Owners(account="vc"))
    assert list(trace.names) == ["A/0", "A/1", "A/2", "B/0", "B/1", "B/2"]
    assert trace.owners == {By.ACCOUNT: ["A"] * 3 + ["B"] * 3}
    assert list(load(tmp_path, VCS, owners=Owners(account="vc"), vc="B").names) == ["0", "1", "2"]
    backwards = VCS + "A,3,5,60,2\n"
    with pytest.raises(UserError, match=r"line 8, column submit_s: 5 is before 20 in line 4; jobs stand in the order"):
        load(tmp_path, backwards, owners=Owners(account="vc"))
    with pytest.raises(UserError, match=r"line 8, column job: 'B/1' stands in line 6 already"):
        load(tmp_path, VCS + "B,1,25,60,2\n", owners=Owners(account="vc"))


def test_an_account_column_of_its_own_does_not_excuse_jobs_out_of_order(tmp_path: Path) -> None:
    text = "job,submit_s,duration_s,gpus,account\na,5,9,1,x\nb,1,9,1,y\n"
    for owners in (Owners(), Owners(account="account")):
        with pytest.raises(UserError, match="line 3, column submit_s: 1 is before 5 in line 2"):
            load(tmp_path, text, owners=owners)


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (
            "job_name,owner\nb1,alice\n",
            r"users: line 1: wanted are columns job_name and user; there are job_name, owner",
        ),
        (
            "job_name,user\nb1,alice\nb1,bob\n",
            r"users: line 3, column user: the job b1 has the user 'bob' here and 'alice' in",
        ),
        (
            "job_name,user\nx1,alice\n",
            r"users: line 2, column job_name: neither 'x1' nor another one is a job of .*trace",
        ),
    ],
)
def test_a_table_of_users_that_does_not_match_is_refused(tmp_path: Path, users: str, said: str) -> None:
    (tmp_path / "users").write_text(users)
    with pytest.raises(UserError, match=said):
        load(tmp_path, TASKS, owners=Owners(tmp_path / "users"))


def test_jobs_without_names_have_no_table_of_users(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("job,user\nx1,alice\n")
    with pytest.raises(
        UserError, match=r"users: cannot say whose jobs are whose, since those of .*trace have no names"
    ):
        load(tmp_path, "timestamp,duration,num_gpus\n0,10,1\n", owners=Owners(tmp_path / "users"))


def test_an_unknown_column_of_accounts_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: no column 'team' that names accounts; there are vc, job, submit_s"):
        load(tmp_path, VCS, owners=Owners(account="team"))


# -- results


MIXED = "job,submit_s,duration_s,gpus,user,account\n" + "".join(
    f"j{at},{7 * at},{40 + 13 * at % 50},{(1, 2, 4)[at % 3]},{('ann', 'bob', 'cy')[at % 5 % 3]},{'xy'[at % 2]}\n"
    for at in range(30)
)


def test_results_by_user_and_account_are_those_of_their_jobs(tmp_path: Path) -> None:
    (tmp_path / "mixed.csv").write_text(MIXED)
    found = simulate(tmp_path / "mixed.csv", ["max-min", "fifo"], servers=1, gpus_per_server=4)
    for one in found.values():
        jobs = one.jobs()
        for by in ("user", "account"):
            rows = one.by(by)
            assert sorted(rows[by]) == sorted(set(jobs[by]))
            assert sum(rows["jobs"]) == sum(rows["finished"]) == 30
            assert rows["gpu_hours"] == sorted(rows["gpu_hours"], reverse=True)
            for at, name in enumerate(rows[by]):
                own = [row for row, owner in enumerate(jobs[by]) if owner == name]
                assert rows["jobs"][at] == len(own)
                for figure, column, of in (
                    ("avg_jct_s", "jct_s", np.mean),
                    ("p99_jct_s", "jct_s", lambda values: np.percentile(values, 99)),
                    ("avg_queueing_s", "queueing_s", np.mean),
                    ("gpu_hours", "gpu_s", lambda values: np.sum(values) / 3600),
                ):
                    assert rows[figure][at] == pytest.approx(of([jobs[column][row] for row in own])), figure


def test_the_data_frame_by_account_has_a_row_for_each_policy_and_account(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "mixed.csv").write_text(MIXED)
    frame = simulate(tmp_path / "mixed.csv", ["max-min", "fifo"], servers=1, seeds=2).by("account")
    assert list(frame.columns)[:3] == ["policy", "seed", "account"]
    assert len(frame) == 2 * 2 * 2
    assert frame.groupby(["policy", "seed"])["jobs"].sum().tolist() == [30] * 4


def test_results_by_what_the_trace_does_not_know_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vcs.csv").write_text(VCS)
    found = simulate(tmp_path / "vcs.csv", where={"vc": ["A"]})["max-min"]
    with pytest.raises(UserError, match="by: the trace names no users"):
        found.by("user")
    with pytest.raises(UserError, match="by: 'team' is not user or account"):
        found.by("team")


def test_the_bound_on_a_users_jobs_of_an_admission_holds_in_simulations(tmp_path: Path) -> None:
    (tmp_path / "many.csv").write_text(
        "job,submit_s,duration_s,gpus,user\n" + "".join(f"j{at},{at},100,1,{'ab'[at % 4 == 3]}\n" for at in range(8))
    )
    admission = {"policy": "fifo", "admission": {"name": "bounded", "parameters": {"user_jobs": 2}}}
    found = simulate(tmp_path / "many.csv", admission, servers=1)["fifo"]
    ended = dict(zip(found.jobs()["job"], found.jobs()["ended_s"], strict=True))
    assert [name for name, end_s in ended.items() if end_s is None] == ["j2", "j4", "j5", "j6"]
    assert found.metrics.refused == 4


def test_between_owners_gpus_are_divided_equally_among_those_with_jobs_and_then_among_the_jobs_of_each() -> None:
    """On 4 GPUs ann has three jobs from 0 to 60, and bob one from 20 to 60: his fair share is 2 GPUs, hers two thirds."""
    ones = np.ones(4, dtype=np.int64)
    speedup = np.arange(9, dtype=np.float64)
    load = Workload(
        names=[JobId(name) for name in "abcd"],
        submit_s=np.array([0.0, 0.0, 0.0, 20.0]),
        min_gpus=ones,
        max_gpus=8 * ones,
        requested_gpus=ones,
        work_s=np.full(4, 60.0),
        curve=0 * ones,
        curves=Curves(np.array([speedup])),
        models=("m",),
    )
    rho = finish_time_fairness(load, np.full(4, 60.0), 4, ["ann", "ann", "ann", "bob"])
    # ann's jobs have a third of all GPUs for 20 s, then a sixth for 40 s: of 3 * 20 + 6 * 40 parts in 60 s
    assert rho.tolist() == pytest.approx([60 / (60 / (4 / 5)), *[60 / (60 / (4 / 5))] * 2, 40 / (60 / 2)])
    same = finish_time_fairness(load, np.full(4, 60.0), 4, ["one"] * 4)
    assert same.tolist() == pytest.approx(finish_time_fairness(load, np.full(4, 60.0), 4).tolist())


def test_fairness_between_owners_is_that_of_a_sum_over_all_moments() -> None:
    rng = np.random.default_rng(3)
    count, owners = 60, [f"u{at}" for at in rng.integers(0, 5, 60)]
    submit_s = np.sort(rng.integers(0, 400, count)).astype(float)
    end_s = submit_s + rng.integers(1, 60, count)
    ones = np.ones(count, dtype=np.int64)
    load = Workload(
        [JobId(f"j{at}") for at in range(count)],
        submit_s,
        ones,
        64 * ones,
        ones,
        np.full(count, 50.0),
        0 * ones,
        Curves(np.array([np.arange(65, dtype=np.float64)])),
        ("m",),
    )
    rho = finish_time_fairness(load, end_s, 64, owners)
    for row in range(count):
        parts = 0
        for second in range(int(submit_s[row]), int(end_s[row])):
            there = [at for at in range(count) if submit_s[at] <= second < end_s[at]]
            parts += len({owners[at] for at in there}) * sum(owners[at] == owners[row] for at in there)
        jct_s = end_s[row] - submit_s[row]
        assert rho[row] == pytest.approx(jct_s / (50 / (64 / (parts / jct_s))))


def test_jains_index_is_that_of_the_groups_mean_finish_time_fairness(tmp_path: Path) -> None:
    (tmp_path / "mixed.csv").write_text(MIXED)
    one = simulate(tmp_path / "mixed.csv", "fifo", servers=1)["fifo"]
    measured = groups.measure(one.setup, one.result, By.USER)
    assert groups.jain_index(measured) == jain(np.array(one.by("user")["avg_finish_time_fairness"]))


# -- the command


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path, simulate_here: Command) -> Command:
    """`elasticctl simulate` in this process, in a directory with a trace."""
    (tmp_path / "mixed.csv").write_text(MIXED)
    return simulate_here


SMALL = ("mixed.csv", "--servers", "1", "--processes", "1")
TWO = ("--policy", "max-min", "--policy", "afs-l")


def test_the_table_and_the_json_by_account_have_the_figures_of_python(command: Command) -> None:
    done = command(*SMALL, *TWO, "--by", "account", "--by", "user", "--json", "out.json")
    found, document = simulate("mixed.csv", ["max-min", "afs-l"], servers=1), json.loads(Path("out.json").read_text())
    assert list(document["by"]) == ["account", "user"]
    for by, policies in document["by"].items():
        for label, one in policies.items():
            rows = found[label].by(by)
            assert list(one["groups"]) == rows[by]
            for at, figures in enumerate(one["groups"].values()):
                assert figures == {name: rows[name][at] for name in figures}
            assert f"{label} {one['jain_index']:.3f}" in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if line.startswith("POLICY")]
    assert ["POLICY", "ACCOUNT", "JOBS", "GPU-H", "AVG", "JCT", "P99", "QUEUEING", "UNFAIRNESS", "WORST"] in heads
    assert sum(bool(re.match(r"(max-min|afs-l)? +[xy] +15 ", line)) for line in lines) == 4


def test_only_the_largest_of_many_users_are_shown_and_all_are_in_the_json(command: Command) -> None:
    rows = "".join(f"j{at},{at},{10 + at},1,u{at}\n" for at in range(25))
    Path("many.csv").write_text("job,submit_s,duration_s,gpus,user\n" + rows)
    done = command("many.csv", "--servers", "1", "--by", "user", "--json", "out.json")
    assert "--by user: 5 more users with fewer GPU-hours: --json FILE has all" in done.stderr
    assert len(json.loads(Path("out.json").read_text())["by"]["user"]["max-min"]["groups"]) == 25
    shown = [line for line in done.stdout.splitlines() if re.match(r"(max-min)? +u\d", line)]
    assert [line.split()[0 if line[0] == " " else 1] for line in shown] == [f"u{at}" for at in range(24, 4, -1)]


def test_several_seeds_give_means_with_intervals_by_account(command: Command) -> None:
    Path("profiles.csv").write_text("model,gpus,iters_per_s\nm,1,1\nm,8,3\nn,1,1\nn,8,7\n")
    options = (*SMALL, "--profiles", "profiles.csv", "--policy", "afs-l", "--seeds", "3", "--by", "account")
    done = command(*options, "--json", "out.json")
    found = json.loads(Path("out.json").read_text())["by"]["account"]["afs-l"]
    assert found["groups"]["x"]["jobs"] == 15
    assert found["interval_95"]["x"]["avg_jct_s"] > 0
    assert "±" in done.stdout[done.stdout.index("ACCOUNT") :]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_results_by_account_are_compared_account_by_account(command: Command) -> None:
    Path("q.yaml").write_text("quotas: {users: {ann: {gpus: 2}}}\n")
    command(*SMALL, "--policy", "max-min", "--by", "account", "--json", "a.json")
    command(*SMALL, "--policy", "max-min", "--by", "account", "--quotas", "q.yaml", "--json", "b.json")
    done = command("compare", "a.json", "b.json", "--by", "account")
    assert "they differ in quotas: none, ann: 2 GPUs" in done.stderr
    a, b = (json.loads(Path(name).read_text())["by"]["account"]["max-min"]["groups"] for name in ("a.json", "b.json"))
    ratio = b["y"]["avg_jct_s"] / a["y"]["avg_jct_s"]
    assert re.search(rf"y +GPU-H .*\n +AVG JCT .* {ratio:.3f}\n", done.stdout)
    options = ("--by", "account", "--column", "jobs", "--json")
    document = json.loads(command("compare", "a.json", "b.json", *options).stdout)
    assert document["by"]["account"]["max-min"]["x"] == {"jobs": {"a": 15, "b": 15, "ratio": 1.0}}
    said = command("compare", "a.json", "b.json", "--by", "user", code=2).stderr
    assert said.startswith("elasticctl: a.json: has no results by user: they come from `elasticctl simulate --by user")
    said = command("compare", "a.json", "b.json", "--by", "team", code=2).stderr
    assert said.startswith("elasticctl: --by: 'team' is not user or account")
    said = command("compare", "a.json", "b.json", "--by", "account", "--column", "speed", code=2).stderr
    assert said.startswith("elasticctl: --column: there is no column 'speed'; there are jobs, dropped, gpu-h")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "team"), "--by: 'team' is not user or account"),
        (("--quotas-by", "team"), "--quotas-by: 'team' is not user or account"),
        (("--quotas", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("--users", "nowhere.csv"), "nowhere.csv: no such file"),
        (("--account", "team"), "mixed.csv: line 1: no column 'team' that names accounts; there are job, "),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(command: Command, arguments: tuple[str, ...], said: str) -> None:
    refused = command(*SMALL, *arguments, code=2)
    assert refused.stderr.startswith(f"elasticctl: {said}")
    assert refused.stdout == ""


def test_a_trace_without_users_is_refused_before_it_is_simulated(command: Command) -> None:
    Path("bare.csv").write_text("job,submit_s,duration_s,gpus\na,0,10,1\n")
    refused = command("bare.csv", "--by", "user", code=2)
    assert refused.stderr.splitlines()[-1] == (
        "elasticctl: bare.csv: line 1: --by user needs a column user; there are job, submit_s, duration_s, gpus; "
        "--users FILE states each job's user"
    )


def test_the_story_of_a_refused_job_says_so(command: Command) -> None:
    Path("q.yaml").write_text("quotas: {default: {jobs: 1}}\n")
    shown = command(*SMALL, "--quotas", "q.yaml", "--explain", "j5").stdout
    assert shown.rstrip().endswith(
        "under max-min, since its submission:\n              refused by the admission, or by a quota"
    )
