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
from elasticd.simulator.traces import BACKWARDS, NO_GPUS, NO_SPAN, NO_TIME, Trace

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
