"""From a trace and throughputs to a workload: durations equal the trace's, and models fit the requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticd.protocol.errors import UserError
from elasticd.scheduler.profiles import curves as profiles
from elasticd.simulator import simulate, traces
from elasticd.simulator.assign import Assigned, assign

PROFILES = (
    "model,gpus,iters_per_s,in_afs_table4\n"
    "small,1,1,1\nsmall,2,1.5,1\nsmall,4,1.2,1\n"
    "large,1,1,1\nlarge,8,6,1\nlarge,16,9,1\n"
    "other,1,1,0\nother,64,60,0\n"
)
RAW = "job_id,submission_time,duration,num_gpu\n"


def make(
    directory: Path,
    trace: str,
    measured: str | None = PROFILES,
    gpus: int = 64,
    seed: int = 0,
    cap_at_request: bool = False,
    random_models: bool = False,
) -> Assigned:
    (directory / "trace.csv").write_text(trace)
    found = None
    if measured is not None:
        (directory / "profiles.csv").write_text(measured)
        found = profiles.load(directory / "profiles.csv")
    return assign(traces.load(directory / "trace.csv"), gpus, found, seed, cap_at_request, random_models)


def test_a_job_takes_as_long_as_in_the_trace_with_the_gpus_it_requested(tmp_path: Path) -> None:
    load = make(tmp_path, "job,submit_s,duration_s,gpus,model\na,10,100,2,small\nb,12,100,8,large\n").workload
    assert load.work_s.tolist() == [150.0, 600.0]
    rates = load.curves.speedup[load.curve, load.requested_gpus]
    assert (load.work_s / rates).tolist() == [100.0, 100.0]
    assert load.submit_s.tolist() == [0.0, 2.0]
    assert [load.models[row] for row in load.curve] == ["small", "large"]


def test_jobs_may_grow_to_the_greatest_throughput_within_the_cluster(tmp_path: Path) -> None:
    text = "job,submit_s,duration_s,gpus,model\na,0,9,1,small\nb,0,9,4,small\nc,0,9,8,large\n"
    load = make(tmp_path, text).workload
    assert load.min_gpus.tolist() == [1, 1, 1]
    assert load.max_gpus.tolist() == [2, 2, 16]
    assert load.requested_gpus.tolist() == [1, 4, 8]
    assert make(tmp_path, text, gpus=12).workload.max_gpus.tolist() == [2, 2, 12]
    assert make(tmp_path, text, cap_at_request=True).workload.max_gpus.tolist() == [1, 2, 8]


def test_requests_beyond_what_was_measured_are_as_fast_as_the_last_point(tmp_path: Path) -> None:
    load = make(tmp_path, "job,submit_s,duration_s,gpus,model\na,0,10,32,large\n").workload
    assert load.work_s.tolist() == [90.0]
    assert load.curves.most >= 32


def test_jobs_without_a_model_get_one_that_scales_to_their_request(tmp_path: Path) -> None:
    rows = "".join(f"{row},{row},100,{1 if row % 2 else 8}\n" for row in range(400))
    load = make(tmp_path, RAW + rows).workload
    models = np.array([load.models[row] for row in load.curve])
    assert set(models[load.requested_gpus == 8]) == {"large"}
    ones = models[load.requested_gpus == 1]
    assert 50 < (ones == "small").sum() < 150
    assert set(ones) == {"small", "large"}  # the third is not one of AFS' nine


def test_where_none_scales_so_far_those_are_taken_that_scale_furthest(tmp_path: Path) -> None:
    load = make(tmp_path, RAW + "a,0,100,48\n").workload
    assert load.models == ("large",)


def test_the_same_seed_gives_the_same_models_and_another_seed_others(tmp_path: Path) -> None:
    text = RAW + "".join(f"{row},{row},100,1\n" for row in range(100))
    first, again, other = (make(tmp_path, text, seed=seed).workload for seed in (1, 1, 2))
    assert first.models == again.models
    assert (first.curve == again.curve).all()
    assert [first.models[row] for row in first.curve] != [other.models[row] for row in other.curve]


def test_without_throughputs_jobs_scale_linearly_up_to_their_request(tmp_path: Path) -> None:
    load = make(tmp_path, RAW + "a,0,100,2\nb,0,100,4\n", None).workload
    assert load.max_gpus.tolist() == [2, 4]
    assert load.work_s.tolist() == [200.0, 400.0]
    assert load.curves.speedup[load.curve].tolist() == [[0, 1, 2, 2, 2], [0, 1, 2, 3, 4]]


def test_jobs_stand_in_the_order_of_submission_and_deadlines_with_them(tmp_path: Path) -> None:
    made = make(tmp_path, "timestamp,duration,num_gpus\n30,1,1\n10,2,1\n20,3,1\n", None)
    assert made.workload.submit_s.tolist() == [0.0, 10.0, 20.0]
    assert made.workload.work_s.tolist() == [2.0, 3.0, 1.0]
    assert made.workload.names == ("job-1", "job-2", "job-0")
    made = make(tmp_path, "job_id,submit_time,duration,num_gpu,ddl\na,5,10,1,25\nb,9,10,1,19\n", None)
    assert made.deadline_s.tolist() == [20.0, 14.0]


def test_pollux_jobs_work_for_their_iterations(tmp_path: Path) -> None:
    load = make(
        tmp_path,
        "name,time,application,num_replicas,batch_size\na,0,ncf,1,256\n",
        "model,batch_size,gpus,iters_per_s\nncf,256,1,100\nncf,256,2,150\n",
    ).workload
    assert load.work_s.tolist() == pytest.approx([1941.74])
    assert load.models == ("ncf",)  # without the batch size, as in files of costs


def test_easyscale_jobs_host_whole_virtual_workers(tmp_path: Path) -> None:
    load = make(
        tmp_path,
        "name,time,application,max_parallelism,batch_size,epochs\na,0,bert,4,8,2\n",
        "model,bs,gpu,ddp_nondeterminism\nBert,8,v100,0.5\n",
    ).workload
    assert load.work_s.tolist() == pytest.approx([2 * 87_599 * 0.5 / 8])
    assert load.curves.speedup.tolist() == [[0, 1, 2, 2, 4]]
    assert load.max_gpus.tolist() == [4]


@pytest.mark.parametrize(
    ("trace", "measured", "message"),
    [
        (
            "job,submit_s,duration_s,gpus\na,0,9,65\n",
            None,
            "line 2, column gpus: 65 GPUs requested, and the cluster has 64",
        ),
        (
            "job,submit_s,duration_s,gpus,model\na,0,9,1,small\nb,0,9,1,vgg\n",
            PROFILES,
            "line 3, column model: no model 'vgg' in",
        ),
        (
            "name,time,application,num_replicas,batch_size\na,0,ncf,1,256\n",
            None,
            "has no durations, so throughputs are needed",
        ),
        (
            "name,time,application,num_replicas,batch_size\na,0,small,1,256\n",
            PROFILES,
            "line 2, column application: how far 'small' trains is not known, only of bert",
        ),
        (
            "name,time,application,max_parallelism,epochs\na,0,small,1,2\n",
            PROFILES,
            "line 2, column application: only how small scales is known, not how fast it is on one GPU",
        ),
    ],
)
def test_what_cannot_be_simulated_is_named(tmp_path: Path, trace: str, measured: str | None, message: str) -> None:
    with pytest.raises(UserError) as refused:
        make(tmp_path, trace, measured)
    assert str(refused.value).startswith(f"{tmp_path / 'trace.csv'}: {message}")


def test_models_that_nobody_has_measured_can_be_left_aside_and_others_drawn_at_random(tmp_path: Path) -> None:
    """Tiresias' sample has its own model names."""
    rows = "".join(f"{row},{1 + row % 4},{row},606,vgg19,164,30\n" for row in range(40))
    text = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n" + rows
    with pytest.raises(
        UserError, match=r"trace.csv: line 2, column model_name: no model 'vgg19' in .*; it has small, large"
    ):
        make(tmp_path, text)
    load = make(tmp_path, text, random_models=True, seed=3).workload
    assert {load.models[row] for row in load.curve} == {"small", "large"}
    rates = load.curves.speedup[load.curve, load.requested_gpus]
    assert (load.work_s / rates).tolist() == pytest.approx([164.0] * 40)
    assert np.array_equal(make(tmp_path, text, random_models=True, seed=3).workload.curve, load.curve)
    assert not np.array_equal(make(tmp_path, text, random_models=True, seed=4).workload.curve, load.curve)


def test_models_can_be_drawn_only_where_there_are_some_and_the_trace_has_durations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--random-models: there is nothing to draw them from: --profiles FILE"):
        make(tmp_path, RAW + "a,0,9,1\n", measured=None, random_models=True)
    text = "name,time,application,num_replicas,batch_size\na,0,bert,1,12\n"
    with pytest.raises(UserError, match=r"trace.csv: has no durations, so how long jobs are depends on the models"):
        make(tmp_path, text, random_models=True)


def test_jobs_are_as_fast_as_on_the_one_type_that_the_cluster_has(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.trace"
    trace.write_text("ResNet\tpython3 main.py\t-step\t1\t600\t0.0\t1\n")
    speeds = {"worker_type": ["k80", "v100"], "job_type": ["ResNet"] * 2, "scale_factor": [1, 1], "steps_per_s": [1, 4]}

    def jct_s(gpu_type: str) -> float:
        cluster = {"servers": [{"gpus": 1, "gpu_type": gpu_type}]}
        return float(simulate(trace, "fifo", profiles=speeds, cluster=cluster)["fifo"].jobs()["jct_s"][0])

    assert (jct_s("k80"), jct_s("V100"), jct_s("")) == (600, 150, 600)
    with pytest.raises(UserError, match="no GPU type 'H100'; there are k80, v100"):
        jct_s("H100")
