"""Logs of clusters as they were published, and Gavel's traces: small samples in their forms, and what becomes of their jobs."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.simulator import simulate, traces
from elasticd.simulator.traces import BACKWARDS, EARLY, NO_GPUS, NO_SPAN, NO_TIME, Trace

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
SEREN = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
SACCT = "JobID|JobName|State|Submit|Start|End|Elapsed|AllocTRES|ReqTRES\n"


def load(directory: Path, text: str, name: str = "trace", **where: str) -> Trace:
    (directory / name).write_text(text)
    return traces.load(directory / name, {column: [value] for column, value in where.items()})


def check(trace: Trace, names: list[str], waited_s: list[float], gpus: list[int], duration_s: list[float]) -> None:
    """Compare the jobs with these: submission (relative to the first job's), GPUs and seconds."""
    assert list(trace.names) == names
    assert (trace.submit_s - trace.submit_s[0]).tolist() == waited_s
    assert trace.gpus.tolist() == gpus
    assert trace.duration_s is not None
    assert trace.duration_s.tolist() == duration_s


def test_helios_leaves_out_jobs_without_gpus_and_those_that_took_no_time(tmp_path: Path) -> None:
    day = "2020-06-09"
    text = HELIOS + (
        f"7,u1,vcA,1,1,1,COMPLETED,{day} 18:41:01,{day} 18:41:11,{day} 18:43:11,120,10\n"
        f"8,u1,vcA,0,4,1,COMPLETED,{day} 18:41:02,{day} 18:41:11,{day} 18:43:11,120,9\n"
        f"9,u2,vcB,16,64,2,FAILED,{day} 18:41:31,{day} 18:41:31,{day} 18:41:36,5,0\n"
        f"10,u2,vcB,8,64,1,CANCELLED,{day} 18:41:40,{day} 18:41:41,{day} 18:41:41,0,1\n"
        f"11,u2,vcB,8,64,1,CANCELLED,{day} 18:41:40,,,,\n"
    )
    trace = load(tmp_path, text)
    check(trace, ["7", "9"], [0, 30], [1, 16], [120, 5])
    assert trace.left_out == {NO_GPUS: 1, NO_TIME: 1, NO_SPAN: 1}
    assert list(load(tmp_path, text, vc="vcB").names) == ["9"]


def test_acme_counts_from_start_to_end_since_its_durations_include_the_queue_in_kalos(tmp_path: Path) -> None:
    rows = (
        "b,u,1,8,128,Other,FAILED,2023-03-01 08:18:22+08:00,2023-03-01 08:18:32+08:00,2023-03-01 08:20:32+08:00,130,10,0\n"
        "a,u,8,64,960,Other,FAILED,2023-03-01 00:18:00+00:00,2023-03-01 00:18:10+00:00,2023-03-01 00:18:18+00:00,18,10,0\n"
    )
    check(load(tmp_path, SEREN + rows), ["b", "a"], [0, -22], [8, 64], [120, 8])


def test_a_start_long_before_the_submission_is_a_start_that_was_not_recorded(tmp_path: Path) -> None:
    day = "2023-03-01"
    rows = (
        f"a,u,1,8,1,Other,FAILED,{day} 08:18:22+08:00,1970-01-01 08:00:00+08:00,{day} 08:20:32+08:00,130,0,0\n"
        f"b,u,1,8,1,Other,FAILED,{day} 08:18:22+08:00,{day} 08:18:20+08:00,{day} 08:20:32+08:00,130,0,0\n"
    )
    trace = load(tmp_path, SEREN + rows)
    check(trace, ["b"], [0], [8], [132])
    assert trace.left_out == {EARLY: 1}


def test_times_with_and_without_a_time_zone_do_not_mix(tmp_path: Path) -> None:
    rows = (
        "a,u,1,8,1,Other,FAILED,2023-03-01 08:18:22+08:00,2023-03-01 08:18:32,2023-03-01 08:20:32,0,0,0\n"
        "b,u,1,8,1,Other,FAILED,2023-03-01 08:18:22,2023-03-01 08:18:32,2023-03-01 08:20:32,0,0,0\n"
    )
    with pytest.raises(
        UserError, match=r"line 3, column submit_time: 2023-03-01 08:18:22 has no time zone, unlike .* 2"
    ):
        load(tmp_path, SEREN + rows)


def test_tasks_of_a_pai_job_count_as_one_and_fractions_are_summed_and_rounded_up(tmp_path: Path) -> None:
    rows = (
        "b1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC\n"
        "c2,ps,2.0,Terminated,1739180.0,1739400.0,600.0,29.3,,\n"
        "c2,worker,5.0,Terminated,1739192.0,1739300.0,600.0,29.3,50.0,T4\n"
        "a3,worker,1.0,Running,1739192.0,,600.0,29.3,100.0,V100\n"
        "c2,evaluator,1.0,Terminated,1739195.0,1739320.0,600.0,29.3,50.0,T4\n"
        "d4,ps,1.0,Failed,1739192.0,1739199.0,600.0,29.3,0.0,\n"
    )
    trace = load(tmp_path, rows, "pai_task_table.csv")
    check(trace, ["b1", "c2"], [0, 30], [1, 3], [38, 128])
    assert trace.left_out == {NO_GPUS: 1, NO_SPAN: 1}
    assert (trace.rounded_up, trace.demands) == (1, None)
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    assert load(tmp_path, header + rows).names == trace.names


def test_alibabas_pods_may_ask_for_types_and_fractions(tmp_path: Path) -> None:
    rows = (
        "p0,12000,16384,2,1000,,LS,Succeeded,100,200,110\n"
        "p1,6000,12288,1,460,V100M16|V100M32,LS,Running,90,300,95\n"
        "p2,6000,12288,0,0,,LS,Running,91,300,95\n"
        "p3,6000,12288,1,1000,T4,BE,Pending,92,300,\n"
        "p4,6000,12288,1,1000,,BE,Failed,93,90,95\n"
    )
    trace = load(tmp_path, OPENB + rows)
    check(trace, ["p0", "p1"], [0, -10], [2, 1], [90, 205])
    assert trace.left_out == {NO_GPUS: 1, NO_SPAN: 1, BACKWARDS: 1}
    assert trace.rounded_up == 1
    assert trace.demands is not None
    assert [one.types for one in trace.demands] == [(), ("V100M16", "V100M32")]
    assert trace.on_any_type().demands is None
    assert trace.on_any_type().untyped == 1


def test_attempts_of_a_philly_job_are_added(tmp_path: Path) -> None:
    def attempt(start: str | None, end: str | None, gpus: int = 2) -> dict[str, object]:
        day = "2017-10-07 "
        times = {"start_time": start and day + start, "end_time": end and day + end}
        return {**times, "detail": [{"ip": "m4", "gpus": [f"gpu{at}" for at in range(gpus)]}]}

    jobs = [
        {
            "jobid": name,
            "vc": vc,
            "status": "Pass",
            "user": "u",
            "submitted_time": f"2017-10-07 01:00:{at:02d}",
            "attempts": of,
        }
        for at, (name, vc, of) in enumerate(
            [
                (
                    "a",
                    "v1",
                    [attempt("01:12:09", "01:13:09"), attempt("01:20:00", None), attempt("02:00:00", "02:00:30", 4)],
                ),
                ("b", "v2", []),
                ("c", "v2", [attempt("01:12:09", "01:13:09"), attempt("01:20:00", None)]),
                (
                    "d",
                    "v2",
                    [
                        attempt("01:12:09", "01:12:19"),
                    ],
                ),
            ]
        )
    ]
    trace = load(tmp_path, json.dumps(jobs, indent=1), "cluster_job_log")
    check(trace, ["a", "d"], [0, 3], [2, 2], [90, 10])
    assert trace.left_out == {NO_SPAN: 2}
    assert list(load(tmp_path, json.dumps(jobs), vc="v2").names) == ["d"]
    del jobs[1]["attempts"]
    with pytest.raises(UserError, match=r"line 2: a job without attempts, unlike in Philly's cluster_job_log"):
        load(tmp_path, ",\n".join(map(json.dumps, jobs)).join("[]"))
    with pytest.raises(UserError, match="line 1: not JSON"):
        load(tmp_path, '[{"jobid": 1,]')


def test_slurms_jobs_have_the_gpus_of_their_tres_and_the_time_that_they_ran(tmp_path: Path) -> None:
    def row(name: str, state: str, elapsed: str, got: str, asked: str, at: int = 0, start: str = "") -> str:
        return f'{name}|my "job"|{state}|2025-03-30T01:59:{at:02d}|{start}|Unknown|{elapsed}|{got}|{asked}\n'

    two = "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1"
    rows = (
        row("100", "COMPLETED", "1-02:03:04", two, "cpu=8,gres/gpu:a100=2")
        + row("100.batch", "COMPLETED", "1-02:03:04", two, "")
        + row("100.extern", "COMPLETED", "1-02:03:04", two, "")
        + row("101_3", "CANCELLED by 1000", "05:06", "cpu=8,gres/gpu:a100=4,gres/gpu:v100=1", "", 5)
        + row("102", "PENDING", "00:00:00", "", "cpu=4,gres/gpu=1", 6)
        + row("103", "RUNNING", "00:10:00", two, "", 7)
        + row("104", "FAILED", "00:10:00", "cpu=4,mem=8G,node=1", "", 8)
        + row("105", "CANCELLED by 1000", "00:00:00", "", "cpu=4,gres/gpu=1", 9)
        + row("101_3", "TIMEOUT", "00:00:20", "cpu=8,gres/gpu=4", "", 10)
    )
    trace = load(tmp_path, SACCT + rows)
    check(trace, ["100", "101_3", "101_3#2"], [0, 5, 10], [2, 5, 4], [93784, 306, 20])
    assert trace.left_out == {NO_GPUS: 1, NO_SPAN: 2, NO_TIME: 1}
    assert trace.demands is not None
    assert [one.types for one in trace.demands] == [("a100",), (), ()]
    with pytest.raises(UserError, match="line 2, column Elapsed: 'soon' is not a duration like 1-02:03:04"):
        load(tmp_path, SACCT + row("1", "FAILED", "soon", two, ""))
    with pytest.raises(UserError, match="line 1: no column AllocTRES or ReqTRES; wanted is the output of sacct -aXP"):
        load(tmp_path, "JobID|Submit|Elapsed\n1|2025-03-30T01:59:00|00:01:00\n")


TWO = "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1"


def sacct(name: str, state: str = "COMPLETED", end: str = "2025-03-30T03:00:00", **columns: str) -> str:
    """A line in the columns of SACCT."""
    of = {"elapsed": "00:01:00", "got": TWO, "asked": TWO, **columns}
    return f"{name}|train|{state}|2025-03-30T01:00:00|2025-03-30T02:00:00|{end}|{of['elapsed']}|{of['got']}|{of['asked']}\n"


def test_components_of_a_heterogeneous_slurm_job_are_one_job(tmp_path: Path) -> None:
    rows = (
        sacct("7+0", got="cpu=2,mem=4G,node=1", asked="cpu=2")
        + sacct("7+0.batch")
        + sacct("7+1", got="gres/gpu:a100=4,gres/gpu=4", asked="gres/gpu:a100=4")
        + sacct("7+2", got="gres/gpu:v100=2,gres/gpu=2", asked="gres/gpu:v100=2")
        + sacct("8_3", got="gres/gpu=1")
        + sacct("9_[4-6%2]", "PENDING", "Unknown", elapsed="00:00:00", got="")
    )
    trace = load(tmp_path, SACCT + rows)
    check(trace, ["7", "8_3"], [0, 0], [6, 1], [60, 60])
    assert trace.demands is not None
    assert trace.demands[0].types == ("a100", "v100")


def test_a_requeued_slurm_job_ran_as_often_as_it_ended(tmp_path: Path) -> None:
    rows = sacct("5", "REQUEUED") + sacct("5", elapsed="00:02:00") + sacct("6", "REQUEUED", "Unknown")
    trace = load(tmp_path, SACCT + rows)
    check(trace, ["5", "5#2"], [0, 0], [2, 2], [60, 120])
    assert trace.left_out == {NO_SPAN: 1}


def test_a_part_of_a_gpu_that_slurm_shares_counts_as_a_gpu(tmp_path: Path) -> None:
    rows = (
        sacct("1", got="cpu=2,gres/mps=25,node=1", asked="cpu=2,gres/mps=25")
        + sacct("2", got="cpu=2,gres/shard:a6000=4,gres/shard=4", asked="")
        + sacct("3", got="cpu=2,gres/gpu=1,gres/mps=25", asked="")
        + sacct("4", got="cpu=2,gres/gpumem=0,gres/gpuutil=0", asked="")
    )
    trace = load(tmp_path, SACCT + rows)
    check(trace, ["1", "2", "3"], [0, 0, 0], [1, 1, 1], [60, 60, 60])
    assert (trace.rounded_up, trace.left_out) == (2, {NO_GPUS: 1})


def test_slurms_log_may_be_raw_or_saved_as_csv(tmp_path: Path) -> None:
    text = SACCT + sacct("1", got="gres/gpu=2") + sacct("2", elapsed="INVALID", got="gres/gpu=2")
    raw = load(tmp_path, text.replace("JobID", "JobIDRaw"))
    both = load(tmp_path, "".join(f"{at or 'JobIDRaw'}|{line}\n" for at, line in enumerate(text.splitlines())))
    csv = load(tmp_path, "\n".join(",".join(f'"{each}"' for each in line.split("|")) for line in text.splitlines()))
    for trace in (raw, csv):
        check(trace, ["1"], [0], [2], [60])
        assert trace.left_out == {NO_SPAN: 1}
    assert both.names == ("1",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (sacct("1") + sacct("2"), "line 1: no header with JobID; wanted is the output of sacct -aXP"),
        (
            SACCT + sacct("1", got="billing=8,cpu=8,gres/g+"),
            r"line 2, column AllocTRES: .* is cut off; .* of sacct -aXP",
        ),
        (
            '{"jobs": [{"job_id": 1}]}',
            r"line 1: JSON, but not a list of jobs, .*; Slurm's logs are read from .* sacct -aXP",
        ),
        ("JobID  JobName  State\n-----  -------  -----\n1  sh  COMPLETED\n", "line 1: not a job trace that is known"),
        (
            "ResNet\tpython3 main.py\t-step\t1\t1000\n",
            "line 1: 5 values separated by tabs; Gavel's traces have 7 or 10",
        ),
    ],
)
def test_other_forms_of_logs_are_refused_with_the_wanted_one(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(tmp_path, text)


def test_attempts_of_philly_may_lack_fields_and_end_before_they_start(tmp_path: Path) -> None:
    day = "2017-11-05"
    whole = {"start_time": f"{day} 01:50:00", "end_time": f"{day} 01:51:00", "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}
    of: dict[str, object] = {
        "a": [whole],
        "b": [{**whole, "end_time": f"{day} 01:10:00"}],  # the clock was set back at 2
        "c": [whole, {**whole, "end_time": f"{day} 01:10:00"}],
        "d": [{key: whole[key] for key in ("start_time", "detail")}],
        "e": [{**whole, "detail": None}],
        "f": None,
    }
    jobs = [{"jobid": name, "submitted_time": f"{day} 01:00:00", "attempts": each} for name, each in of.items()]
    trace = load(tmp_path, json.dumps(jobs))
    check(trace, ["a"], [0], [1], [60])
    assert trace.left_out == {NO_GPUS: 1, NO_SPAN: 2, BACKWARDS: 2}
    jobs[0]["attempts"] = [{**whole, "start_time": "yesterday"}]
    with pytest.raises(UserError, match=r"line 1, job a: attempts: .*yesterday"):
        load(tmp_path, json.dumps(jobs))


@pytest.mark.parametrize("columns", [7, 10])
def test_gavels_steps_take_the_time_that_its_throughputs_say(tmp_path: Path, columns: int) -> None:
    rows = [("ResNet", 600, 0.0, 1), ("ResNet", 600, 6.5, 2)]
    lines = {
        7: "{0}\tpython3 'main.py' %s\t-step\t1\t{1}\t{2:f}\t{3}\n",
        10: "{0}\tpython3 main.py\twork\t-step\t1\t{1}\t{3}\t1\t-1.000000\t{2:f}\n",
    }
    path = tmp_path / "jobs.trace"
    path.write_text("".join(lines[columns].format(*row) for row in rows))
    (tmp_path / "throughputs.csv").write_text(
        "worker_type,job_type,scale_factor,steps_per_s\nv100,ResNet,1,2\nv100,ResNet,2,3\n"
    )
    found = simulate(path, ["fifo"], servers=1, profiles=tmp_path / "throughputs.csv")["fifo"].jobs()
    assert found["submitted_s"] == [0, 6.5]
    assert found["jct_s"] == [300, 200]


def test_a_log_without_any_job_for_gpus_and_an_archive_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no job can be simulated: 1 without GPUs"):
        load(tmp_path, OPENB + "p2,6000,12288,0,0,,LS,Running,91,300,95\n")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("pai_task_table.csv"))
    (tmp_path / "pai.tar.gz").write_bytes(gzip.compress(packed.getvalue()))
    with pytest.raises(UserError, match=r"pai\.tar\.gz: a tar archive; unpack it first"):
        traces.load(tmp_path / "pai.tar.gz")


def test_an_invalid_value_of_a_log_is_named_by_line_and_column(tmp_path: Path) -> None:
    good = "p0,1,1,2,1000,,LS,Running,100,200,110\np1,1,1,0,0,,LS,Running,,200,110\n"
    with pytest.raises(UserError, match="line 4, column deletion_time: 'later' is not a number"):
        load(tmp_path, OPENB + good + "p2,1,1,2,1000,,LS,Running,100,later,110\n")


def test_jobs_with_and_without_deadlines_stand_in_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("job,submit_s,duration_s,gpus,deadline_s\na,0,100,1,150\nb,0,100,1,\nc,5,100,1,250\n")
    assert np.array_equal(traces.load(path).deadline_s, [150, np.nan, 250], equal_nan=True)
    for policy in ("edf", "elasticflow"):
        found = simulate(path, [policy], servers=1, gpus_per_server=1)[policy]
        assert found.jobs()["deadline_s"] == [150, None, 250]
        assert found.jobs()["ended_s"] == [100, 300, 200]
        assert found.metrics.deadline_ratio == 1
