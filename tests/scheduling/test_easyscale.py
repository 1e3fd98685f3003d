"""EasyScale's inter-job scheduler: proposals are accepted by speedup per GPU (3.4)."""

from __future__ import annotations

from hypothesis import given
from scheduling_tables import Case, ask, by_name, cases, given_to, job


@given(cases())
def test_easyscale_admits_each_job_whose_minimum_fits_beside_those_of_earlier_jobs(case: Case) -> None:
    given_ = by_name(case.table, ask("easyscale", case.table, case.gpus))
    free = case.gpus
    for one in case.jobs:
        assert (one.name in given_) == (one.min_gpus <= free)
        free -= one.min_gpus if one.name in given_ else 0


@given(cases())
def test_easyscale_leaves_gpus_idle_only_when_no_number_of_them_makes_a_job_faster(case: Case) -> None:
    shares = ask("easyscale", case.table, case.gpus)
    left = case.gpus - int(shares.gpus.sum())
    assert left >= 0
    for row in shares.gpus.nonzero()[0].tolist():
        curve, share = case.table.curves.row(int(case.table.curve[row])), int(shares.gpus[row])
        most = min(int(case.table.max_gpus[row]), share + left, len(curve) - 1)
        assert all(curve[more] <= curve[share] for more in range(share + 1, most + 1))


def test_a_job_goes_over_a_share_that_brings_nothing() -> None:
    """Four virtual workers: three GPUs take two turns, as two do."""
    assert given_to("easyscale", 4, job("a", speedup=[0, 1, 2, 2, 4])) == {"a": 4}


def test_the_greatest_speedup_per_gpu_comes_first() -> None:
    poor, linear = job("poor", speedup=[0, 1, 1.2, 1.3]), job("linear", speedup=[0, 1, 2, 3])
    assert given_to("easyscale", 4, poor, linear) == {"poor": 1, "linear": 3}
