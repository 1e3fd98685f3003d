"""Throughputs: every published table becomes curves; gaps and errors are handled as the module states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.errors import UserError
from elasticd.scheduler.profiles import curves as profiles
from elasticd.simulator.lengths import POLLUX

DATA = Path(__file__).parents[3] / "shared" / "data"


def load(directory: Path, text: str, gpu_type: str | None = None) -> profiles.Profiles:
    path = directory / "profiles.csv"
    path.write_text(text)
    return profiles.load(path, gpu_type)


@pytest.mark.parametrize(
    "text",
    [
        "model,gpus,samples_per_s\nm,1,10\nm,2,15\nm,4,20\n",
        "model,gpus,iters_per_s\nm,1,1\nm,2,1.5\nm,4,2\n",
        "model,gpus,us_per_iter\nm,1,3000\nm,2,2000\nm,4,1500\n",
        "job_type,scale_factor,steps_per_s,worker_type\nm,1,1,v100\nm,2,1.5,v100\nm,4,2,v100\n",
    ],
)
def test_every_measure_becomes_speedup_over_one_gpu(tmp_path: Path, text: str) -> None:
    (curve,) = load(tmp_path, text).curves
    assert curve.speedup.tolist() == pytest.approx(
        [0.0, 1.0, 1.5, 1.75, 2.0]
    )  # three GPUs: interpolated between two and four


def test_rates_with_one_gpu_are_kept_in_iterations_and_samples(tmp_path: Path) -> None:
    (curve,) = load(tmp_path, "model,batch_size,gpus,samples_per_s\nm,32,1,64\nm,32,2,100\n").curves
    assert (curve.iterations_per_s, curve.samples_per_s) == (2.0, 64.0)
    (curve,) = load(tmp_path, "model,global_batch,gpus,us_per_iter\nm,32,1,500000\n").curves
    assert (curve.iterations_per_s, curve.samples_per_s) == (2.0, 64.0)


@pytest.mark.parametrize("missing", ["", "nan", "0", "0.0"])
def test_missing_points_lie_between_their_neighbours_or_stay_at_the_last(tmp_path: Path, missing: str) -> None:
    text = f"gpu_type,model,gpus,iters_per_s\nT4,m,1,1\nT4,m,2,{missing}\nT4,m,4,2.5\nT4,m,8,{missing}\n"
    (curve,) = load(tmp_path, text).curves
    assert curve.speedup.tolist() == pytest.approx([0.0, 1.0, 1.5, 2.0, 2.5])


def test_measurements_that_begin_with_several_gpus_count_as_linear_below(tmp_path: Path) -> None:
    (curve,) = load(tmp_path, "model,gpus,iters_per_s\nm,4,8\nm,8,12\n").curves
    assert curve.speedup[:5].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert curve.iterations_per_s == 2.0


def test_noise_stays_and_repeated_measurements_count_by_their_median(tmp_path: Path) -> None:
    text = "model,gpus,iters_per_s\nm,1,1\nm,2,1.9\nm,2,1.7\nm,2,9\nm,3,1.5\n"
    (curve,) = load(tmp_path, text).curves
    assert curve.speedup.tolist() == [0.0, 1.0, 1.9, 1.5]
    assert curve.best(3) == 2
    assert curve.best(1) == 1


def test_models_are_found_by_name_and_batch_in_any_spelling(tmp_path: Path) -> None:
    text = "gpu_type,model,batch_size,gpus,iters_per_s\nA,Bert,64,1,1\nA,Bert,128,1,2\nB,Bert,64,1,3\nB,vgg,8,1,4\n"
    found = load(tmp_path, text)
    assert found.find("bert", 128).iterations_per_s == 2.0
    assert found.find("BERT", 64).gpu_type == "A"
    assert found.find("vgg", None).gpu_type == "B"
    assert load(tmp_path, text, "B").find("bert", 64).iterations_per_s == 3.0
    assert [curve.name for curve in found.pool()] == ["Bert/64", "Bert/128"]
    with pytest.raises(UserError, match=r"no model 'ncf' in .*profiles.csv; it has Bert, vgg"):
        found.find("ncf", 64)
    with pytest.raises(UserError, match=r"bert with a batch of 256 is not in .*profiles.csv; it has 64, 128"):
        found.find("bert", 256)
    with pytest.raises(UserError, match="no GPU type 'C'; there are A, B"):
        load(tmp_path, text, "C")


def test_models_outside_afs_table_4_are_not_chosen_at_random(tmp_path: Path) -> None:
    found = load(tmp_path, "model,global_batch,gpus,us_per_iter,interpolated,in_afs_table4\na,8,1,5,0,1\nb,8,1,5,0,0\n")
    assert [curve.model for curve in found.pool()] == ["a"]
    assert found.find("b", None).model == "b"


def test_placements_become_strong_scaling_on_the_fewest_servers(tmp_path: Path) -> None:
    text = (
        "app,gpu,local_bsz,step_time,sync_time,placement\n"
        "yolov3,t4,4,1.0,0.0,1\nyolov3,t4,8,2.0,0.0,1\n"
        "yolov3,t4,4,1.2,0.2,2\nyolov3,t4,8,2.2,0.2,2\n"
        "yolov3,t4,4,9.0,8.0,11\n"
    )
    curve = load(tmp_path, text).find("yolov3", 16)
    # one GPU: two halves of 8 samples; two GPUs of one server: 8 samples each
    assert curve.iterations_per_s == pytest.approx(1 / 4.0)
    assert curve.speedup.tolist() == pytest.approx([0.0, 1.0, 4.0 / 2.2])


def test_easyscale_workers_scale_without_loss(tmp_path: Path) -> None:
    curve = load(tmp_path, "model,bs,gpu,ddp_nondeterminism\nNeuMF,1024,v100,0.5\n").find("ncf", None)
    assert curve.samples_per_s == 2048.0
    assert curve.speedup[32] == 32.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,gpus\nm,1\n", "line 1: not a table of throughputs: no column samples_per_s or iters_per_s"),
        ("gpus,iters_per_s\n1,1\n", "line 1: not a table of throughputs: no column model or job_type"),
        ("model,gpus,iters_per_s\nm,1,fast\n", "line 2, column iters_per_s: 'fast' is not a number"),
        ("model,gpus,iters_per_s\nm,1,1\nm,2,-1\n", "line 3, column iters_per_s: -1 is below 0"),
        ("model,gpus,iters_per_s\nm,0,1\n", "line 2, column gpus: 0 is below 1"),
        ("model,gpus,iters_per_s\nm,1.5,1\n", "line 2, column gpus: 1.5 is not a whole number"),
        ("model,gpus,iters_per_s\nm,1000000,1\n", "line 2, column gpus: 1000000 GPUs, more than 65536"),
        ("model,gpus,iters_per_s\n,1,1\n", "line 2, column model: empty"),
        ("model,gpus,iters_per_s\nm,1,\n", "no measured throughput"),
        (
            "app,gpu,local_bsz,step_time,sync_time,placement\nncf,t4,256,1,0,1x\n",
            "line 2, column placement: '1x' is not a digit above 0 for each server",
        ),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'profiles.csv'}: {message}")


@given(st.dictionaries(st.integers(1, 64), st.floats(0.001, 1e6), min_size=1, max_size=8))
def test_a_curve_passes_through_what_was_measured(measured: dict[int, float]) -> None:
    speedup = profiles.speedups(measured)
    assert len(speedup) == max(measured) + 1
    assert (speedup[0], speedup[1]) == (0.0, 1.0)
    least = min(measured)
    for share, rate in measured.items():
        assert speedup[share] / speedup[least] == pytest.approx(rate / measured[least])


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no published measurements at {DATA}")
@pytest.mark.parametrize(
    ("name", "curves"),
    [
        ("afs_models_gtx1080.csv", 11),
        ("elasticflow_throughputs.csv", 26),
        ("gavel_simulation_throughputs.csv", 156),
        ("easyscale_overhead.csv", 24),
        ("sia_pollux_placements.csv.gz", 100),
        ("sia_pollux_scalability.csv.gz", 100),
    ],
)
def test_published_measurements_become_curves(name: str, curves: int) -> None:
    found = profiles.load(DATA / name)
    assert len(found.curves) >= curves
    for curve in found.curves:
        assert np.isfinite(curve.speedup).all()
        assert (curve.speedup[1:] > 0).all()
        assert curve.speedup[1] == pytest.approx(1.0)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no published measurements at {DATA}")
def test_lengths_of_pollux_applications_are_those_of_its_validation_runs() -> None:
    from elasticd.scheduler.profiles.tables import read

    runs = read(DATA / "sia_pollux_validation.csv.gz")
    last: dict[tuple[str, float], float] = {}
    for app, batch, iteration in zip(
        runs.texts("app"), runs.numbers("global_batch"), runs.numbers("iteration"), strict=True
    ):
        last[app, float(batch)] = max(float(iteration), last.get((app, float(batch)), 0.0))
    checked = [(app, batch) for app, batch in last if app in POLLUX]
    assert len(checked) > 30
    for app, batch in checked:
        assert POLLUX[app].iterations_with(batch) == pytest.approx(last[app, batch], rel=0.03)
