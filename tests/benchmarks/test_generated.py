"""Generated workloads: their stated properties, and the comparison of policies on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.generated import CURVES, GPUS, LENGTHS, LOADS, generate
from benchmarks.policies import Contender, compare, contenders, parser, summary
from elasticd.scheduler.profiles import curves as profiles
from elasticd.simulator.telling import Telling

TABLE = "model,gpus,samples_per_s\na,1,10\na,2,18\na,4,30\na,8,40\nb,1,5\nb,2,10\nb,8,40\n"


@pytest.fixture
def measured(tmp_path: Path) -> profiles.Profiles:
    (tmp_path / "table.csv").write_text(TABLE)
    return profiles.load(tmp_path / "table.csv")


def test_a_seed_stands_for_one_workload(measured: profiles.Profiles) -> None:
    one, again, other = (generate(seed, 50, measured) for seed in (3, 3, 7))
    assert one.what == again.what != other.what
    assert np.array_equal(one.workload.work_s, again.workload.work_s)
    assert np.array_equal(one.workload.submit_s, again.workload.submit_s)


def test_seeds_in_a_row_have_some_of_everything(measured: profiles.Profiles) -> None:
    found = [generate(seed, 5, measured).what for seed in range(20)]
    kinds = (*(f" {gpus} GPUs" for gpus in GPUS), *(f"load {load}," for load in LOADS), *LENGTHS, *CURVES)
    assert [kind for kind in kinds if not any(kind in what for what in found)] == []
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("seed", range(20))
def test_a_workload_can_be_simulated_and_its_curves_begin_at_one(seed: int, measured: profiles.Profiles) -> None:
    made = generate(seed, 30, measured)
    load = made.workload
    assert load.curves.speedup[:, 0] == pytest.approx(0.0)
    assert load.curves.speedup[:, 1] == pytest.approx(1.0)
    assert (np.diff(load.submit_s) >= 0).all()
    assert load.submit_s[0] == 0
    assert (load.work_s > 0).all()
    assert (load.max_gpus >= 1).all()
    assert (load.max_gpus <= min(made.gpus, load.curves.most)).all()
    assert (load.requested_gpus <= made.gpus).all()


def test_the_load_is_what_is_requested_over_what_there_is(measured: profiles.Profiles) -> None:
    made = generate(0, 20_000, measured)  # 64 GPUs, load 0.9
    load = made.workload
    at = np.minimum(load.requested_gpus, load.curves.most)
    requested_gpu_s = (load.requested_gpus * load.work_s / load.curves.speedup[load.curve, at]).sum()
    assert requested_gpu_s / (made.gpus * load.submit_s[-1]) == pytest.approx(0.9, rel=0.05)


def test_policies_are_compared_draw_by_draw(measured: profiles.Profiles) -> None:
    made = generate(1, 40, measured)
    who = {"afs-p": Contender("afs-p"), "half": Contender("elastic", Telling(0.5), "afs-p", 2)}
    found = compare(made.workload, who, gpus=made.gpus)
    assert {label: len(runs) for label, runs in found.items()} == {"afs-p": 1, "half": 2}
    (line,) = summary({made.what: found}, who)
    assert line.startswith("half beside afs-p: average JCT ")
    assert "pooled 99th percentile" in line


def test_rows_are_named_after_what_is_told() -> None:
    labels = contenders(parser().parse_args(["--told", "0.25", "--told", "0.5", "--errors", "0.5,2", "--early", "0.3"]))
    assert list(labels) == [
        "afs-p",
        "elastic, 25% told, x0.5 to 2, 30% early",
        "elastic, 50% told, x0.5 to 2, 30% early",
    ]
    assert list(contenders(parser().parse_args([]))) == ["afs-l", "elastic, all told", "afs-p", "elastic, none told"]
