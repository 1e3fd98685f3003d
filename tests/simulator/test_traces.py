"""Job traces: every public format is read, and errors name file, line, column and reason."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from elasticd.protocol.errors import UserError
from elasticd.simulator import traces

DATA = Path(__file__).parents[3] / "shared" / "data"

PHILLY = "vc,job,submit_s,duration_s,gpus,model,service_1gpu_s\n"
GOOD = {
    "philly": PHILLY + "0e4a51,0,5,100,1,Vgg,100.0\n0e4a51,1,7,60,4,Resnet,180.0\n",
    "elasticflow": "cluster,job_id,submission_time,duration,num_gpu,model_name,batch_size,num_iteration,deadline\n"
    "c1,a,5,100,1,Vgg,32,10,200\nc1,b,7,60,4,Resnet,64,10,300\n",
    "elasticflow as published": "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    "a,5,10,Vgg,200,32,1,100\nb,7,10,Resnet,300,64,4,60\n",
    "elasticflow raw": "job_id,submission_time,duration,num_gpu\na,5,100,1\nb,7,60,4\n",
    "elasticflow artifact": "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"
    "0,5,10,Vgg,200,32,1,100\n1,7,10,Resnet,300,64,4,60\n",
    "tiresias": "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    "0,1,5,606,Vgg,100,30\n1,4,7,133,Resnet,60,23\n",
    "philly raw": "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "1970-01-01 00:00:05,100.0,1,100.0,c1\n1970-01-01 00:00:07,60.0,4,240.0,c1\n",
    "philly raw in seconds": "timestamp,duration,num_gpus,gpu_time,cluster\n5,100.0,1,100.0,c1\n7,60.0,4,240.0,c2\n",
}


def write(directory: Path, text: str, name: str = "trace.csv") -> Path:
    path = directory / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
@pytest.mark.parametrize("form", GOOD)
def test_every_format_is_told_by_its_header(tmp_path: Path, form: str, name: str) -> None:
    trace = traces.load(write(tmp_path, GOOD[form], name))
    assert trace.submit_s.tolist() == [5.0, 7.0]
    assert trace.gpus.tolist() == [1, 4]
    assert trace.duration_s is not None
    assert trace.duration_s.tolist() == [100.0, 60.0]
    assert len(set(trace.names)) == 2
    assert trace.models is None or list(trace.models) == ["Vgg", "Resnet"]
    assert trace.deadline_s.tolist() == [200.0, 300.0] or all(math.isnan(each) for each in trace.deadline_s)


def test_formats_without_durations_say_how_far_jobs_train(tmp_path: Path) -> None:
    pollux = traces.load(
        write(
            tmp_path,
            "set,workload,name,time,application,num_replicas,batch_size\nw,1,cifar10-0,110,cifar10,16,4096\nw,1,ncf-1,110,ncf,1,32768\n",
        )
    )
    assert pollux.form is traces.POLLUX
    assert pollux.duration_s is None
    assert pollux.batches is not None
    assert pollux.batches.tolist() == [4096.0, 32768.0]


def test_easyscale_rows_may_lack_the_nameless_column_and_repeat_a_name(tmp_path: Path) -> None:
    text = (
        "name,time,application,max_parallelism,batch_size,epochs,enable_heterogeneous_deterministic,preferred_gpu,\n"
        "bert-1,20,bert,16,8,4,40,v100,0.4\nswin-2,10,swintransformer,32,32,90,1,v100\nbert-1,30,bert,16,8,4,40,v100,0.4\n"
    )
    trace = traces.load(write(tmp_path, text))
    assert trace.form is traces.EASYSCALE
    assert trace.names == ("bert-1", "swin-2", "bert-1#2")
    assert trace.gpus.tolist() == [16, 32, 16]


def test_columns_may_stand_in_any_order_and_more_of_them_do_no_harm(tmp_path: Path) -> None:
    trace = traces.load(write(tmp_path, "gpus,user,submit_s,job,duration_s\n2,me,0,a,10\n"))
    assert trace.form is traces.PHILLY
    assert trace.gpus.tolist() == [2]


def test_byte_order_mark_windows_line_ends_quotes_and_empty_lines_are_fine(tmp_path: Path) -> None:
    text = '\ufeffjob_id,submission_time,duration,num_gpu\r\n"a, the first",1,10,2\r\n\r\nb,2,10,2\r\n\r\n'
    assert traces.load(write(tmp_path, text)).names == ("a, the first", "b")


def test_the_nameless_index_that_pandas_writes_is_ignored(tmp_path: Path) -> None:
    text = ",job,submit_s,duration_s,gpus\n0,a,1,10,2\n1,b,2,10,2\n"
    assert traces.load(write(tmp_path, text)).names == ("a", "b")
    with pytest.raises(UserError, match="line 3: 4 values for 5 columns"):
        traces.load(write(tmp_path, text.replace("1,b", "b")))


def test_where_picks_rows_by_one_or_several_values(tmp_path: Path) -> None:
    path = write(tmp_path, PHILLY + "A,0,0,9,1,m,9\nB,0,1,8,1,m,8\nA,1,2,7,1,m,7\n")
    assert traces.load(path, {"vc": ["A"]}).submit_s.tolist() == [0.0, 2.0]
    assert traces.load(path, {"vc": ["A"], "job": ["1", "0"]}).names == ("0", "1")


def test_an_error_among_picked_rows_names_the_line_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, PHILLY + "B,0,0,9,1,m,9\nA,0,0,9,1,m,9\nA,1,2,x,1,m,7\n")
    with pytest.raises(UserError, match=r"trace\.csv: line 4, column duration_s: 'x' is not a number"):
        traces.load(path, {"vc": ["A"]})


def test_several_traces_in_one_file_must_be_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path, PHILLY + "A,0,0,9,1,m,9\nB,0,1,8,1,m,8\n")
    with pytest.raises(UserError, match=r"2 traces in one file: pick one with --where vc=A \(or B\)"):
        traces.load(path)
    with pytest.raises(UserError, match="column vc: no row has C; there are A, B"):
        traces.load(path, {"vc": ["C"]})
    with pytest.raises(UserError, match="no column 'cluster' to pick rows by; there are vc, job"):
        traces.load(path, {"cluster": ["A"]})


def test_unordered_formats_are_taken_as_they_come(tmp_path: Path) -> None:
    trace = traces.load(
        write(tmp_path, "timestamp,duration,num_gpus\n2017-10-09 07:01:55,66.0,1\n2017-10-09 06:13:03,9,2\n")
    )
    assert trace.submit_s[0] - trace.submit_s[1] == 48 * 60 + 52


ROW = "0e4a51,0,5,100,1,Vgg,100.0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: empty"),
        ("\n\n", "line 1: empty"),
        (PHILLY, "line 1: a header, and no rows"),
        ("a,b,c\n1,2,3\n", "line 1: not a job trace that is known: its columns are a, b, c"),
        ("job,job,submit_s,duration_s,gpus\n1,1,1,1,1\n", "line 1: two columns are named 'job'"),
        ("job,,submit_s,duration_s,gpus\n1,1,1,1,1\n", "line 1: column 2 has no name"),
        (PHILLY + ROW + "0e4a51,1,7\n", "line 3: 3 values for 7 columns"),
        (PHILLY + ROW.strip() + ",more\n", "line 2: 8 values for 7 columns"),
        (PHILLY + ROW + "0e4a51,1,,60,4,Vgg,1\n", "line 3, column submit_s: empty"),
        (PHILLY + ROW + "0e4a51,1,7,,4,Vgg,1\n", "line 3, column duration_s: empty"),
        (PHILLY + ROW + "0e4a51,1,7,60,,Vgg,1\n", "line 3, column gpus: empty"),
        (PHILLY + ROW + "0e4a51,1,7,60,4,,1\n", "line 3, column model: empty"),
        (PHILLY + ROW + "0e4a51,,7,60,4,Vgg,1\n", "line 3, column job: empty"),
        (PHILLY + "0e4a51,1,-7,60,4,Vgg,1\n", "line 2, column submit_s: -7 is below 0"),
        (PHILLY + "0e4a51,1,7,-60,4,Vgg,1\n", "line 2, column duration_s: -60 is below 0"),
        (PHILLY + "0e4a51,1,7,0,4,Vgg,1\n", "line 2, column duration_s: 0 seconds; a job takes longer than that"),
        (PHILLY + "0e4a51,1,7,60,0,Vgg,1\n", "line 2, column gpus: 0 is below 1"),
        (PHILLY + "0e4a51,1,7,60,1.5,Vgg,1\n", "line 2, column gpus: 1.5 is not a whole number"),
        (PHILLY + "0e4a51,1,7,soon,1,Vgg,1\n", "line 2, column duration_s: 'soon' is not a number"),
        (
            PHILLY + "0e4a51,1,7,nan,1,Vgg,1\n",
            "line 2, column duration_s: 'nan' is not a number that can be reckoned with",
        ),
        (
            PHILLY + "0e4a51,1,inf,5,1,Vgg,1\n",
            "line 2, column submit_s: 'inf' is not a number that can be reckoned with",
        ),
        (
            PHILLY + "0e4a51,1,7,1e300,1,Vgg,1\n",
            "line 2, column duration_s: '1e300' is not a number that can be reckoned",
        ),
        (PHILLY + ROW + "0e4a51,0,7,60,4,Vgg,1\n", "line 3, column job: '0' stands in line 2 already"),
        (
            PHILLY + ROW + "0e4a51,1,4,60,4,Vgg,1\n",
            "line 3, column submit_s: 4 is before 5 in line 2; jobs stand in the order",
        ),
        (PHILLY + '0e4a51,"1,7,60,4,Vgg,1\n', "line 2: not CSV"),
        (
            "timestamp,duration,num_gpus\n2017-10-09 07:01:55,6,1\n2017-13-09 07:01:55,6,1\n",
            "line 3, column timestamp: '2017-13-09",
        ),
        ("timestamp,duration,num_gpus\nyesterday,6,1\n", "line 2, column timestamp: 'yesterday' is not a number"),
        (
            "timestamp,duration,num_gpus\n2017/10/09 07:01,6,1\n",
            "line 2, column timestamp: '2017/10/09 07:01' is not a number of seconds; either all times are, or all",
        ),
        (
            "timestamp,duration,num_gpus\n5,6,1\n2017-10-09 07:01:55,6,1\n",
            "line 3, column timestamp: '2017-10-09 07:01:55' is not a number of seconds; either all times are, or all",
        ),
        (
            "job_id,submission_time,duration,num_gpu,deadline\na,5,100,1,4\n",
            "line 2, column deadline: 4 is before the job's submission",
        ),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as refused:
        traces.load(path)
    assert str(refused.value).startswith(f"{path}: {message}")
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such file"):
        traces.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a directory"):
        traces.load(tmp_path)
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(GOOD["philly"].encode())[:-12])
    with pytest.raises(UserError, match="damaged gzip"):
        traces.load(cut)
    bad = tmp_path / "bad.csv"
    bad.write_bytes(PHILLY.encode() + b"\xff\xfe\n")
    with pytest.raises(UserError, match=r"bad\.csv: line 2: not text"):
        traces.load(bad)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no published traces at {DATA}")
@pytest.mark.parametrize(
    ("name", "where", "jobs"),
    [
        ("philly_jobs.csv.gz", {"vc": ["0e4a51"]}, 2465),
        ("philly_jobs.csv.gz", {"vc": ["6214e9"]}, 51258),
        ("elasticflow_jobs.csv.gz", {"cluster": ["cluster08"]}, 13047),
        ("elasticflow_fig8a_195jobs.csv", {}, 195),
        ("elasticflow_fig8b_philly_103959.csv", {}, 876),
        ("easyscale_workload_67jobs.csv", {}, 68),
        ("pollux_workloads.csv.gz", {"set": ["workloads"], "workload": ["6"]}, 160),
        ("tiresias_60job.csv.gz", {}, 60),
    ],
)
def test_published_traces_are_read(name: str, where: dict[str, list[str]], jobs: int) -> None:
    assert len(traces.load(DATA / name, where)) == jobs
