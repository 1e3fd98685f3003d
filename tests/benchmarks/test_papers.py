"""The page of the papers' results: its rule for explanations, its cache, its pages, and the rules of other simulators."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticd
from benchmarks.papers import average, cases, edl, elan, inputs, own, peer_rules, results
from benchmarks.papers.__main__ import FIGURES
from benchmarks.papers.findings import LIMIT, Finding, Published, above, below, between, exactly, faults
from benchmarks.papers.page import Section
from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import load_policy
from elasticd.simulator.engine import Simulation
from elasticd.simulator.runs import run
from elasticd.simulator.workload import Workload, servers

DATA = Path(__file__).parents[3] / "shared" / "data"
ROOT = Path(__file__).parents[2]
FIRST = inputs.VirtualCluster("A", 4, 30)
MODELS = "model,gpus,us_per_iter,in_afs_table4\n" + "".join(
    f"{model},{gpus},{1e6 / gpus**power:.0f},1\n"
    for model, power in (("small", 0.5), ("large", 0.9))
    for gpus in (1, 2, 4, 8)
)
JOBS = "vc,job,submit_s,duration_s,gpus,model\n" + "".join(
    f"A,{row},{40 * row},{100 + 37 * row % 211},{(1, 2, 8)[row % 3]},{('small', 'large')[row % 2]}\n"
    for row in range(30)
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A virtual cluster of thirty jobs, and a table of models."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / inputs.PHILLY).write_bytes(gzip.compress(JOBS.encode()))
    (folder / inputs.AFS_MODELS).write_text(MODELS)
    return folder


def small(policy: str, **rest: object) -> cases.Case:
    return cases.philly(FIRST, policy, servers=2, **rest)


# -- findings


@pytest.mark.parametrize(
    ("published", "ours", "deviation"),
    [
        (exactly(2.0, "here"), 2.0, 0.0),
        (exactly(2.0, "here"), 1.5, -0.25),
        (between(1.0, 2.0, "here"), 1.5, 0.0),
        (between(1.0, 2.0, "here"), 3.0, 0.5),
        (between(1.0, 2.0, "here"), 0.5, -0.5),
        (above(1.0, "here"), 100.0, 0.0),
        (above(1.0, "here"), 0.5, -0.5),
        (below(2.0, "here"), 3.0, 0.5),
    ],
)
def test_a_deviation_is_that_from_the_nearer_end_of_what_was_published(
    published: Published, ours: float, deviation: float
) -> None:
    assert Finding("a", "it", published, ours).deviation == pytest.approx(deviation)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.booleans())
def test_exactly_the_deviations_over_the_limit_need_an_explanation_and_only_they_may_have_one(
    published: float, ours: float, explained: bool
) -> None:
    finding = Finding("a", "it", exactly(published, "here"), ours)
    wrong = faults([finding], {"a": "because"} if explained else {})
    assert bool(wrong) == ((abs(ours / published - 1) > LIMIT) != explained)


def test_the_page_prints_no_explanation_of_what_does_not_deviate_and_flags_a_deviation_without_one() -> None:
    findings = [
        Finding("near", "near one", exactly(1.0, "here"), 1.05),
        Finding("far", "far one", exactly(1.0, "here"), 3.0),
        Finding("told", "told one", exactly(1.0, "here"), 2.0),
    ]
    section = Section("A title", "A text.", findings, {"near": "SHOULD NOT BE SEEN", "told": "since it is so"})
    page = section.markdown("papers")
    assert "SHOULD NOT" not in page
    assert "+200.0%, **not explained**" in page
    assert "+100.0%: told" in page
    assert "- **told**: since it is so" in page
    assert [fault.split(":")[0] for fault in faults(findings, section.explanations)] == ["near", "far"]


def test_no_figure_names_an_explanation_of_a_finding_that_no_figure_has() -> None:
    for figure in FIGURES:
        for key, text in figure.EXPLANATIONS.items():
            assert key
            assert text.strip().endswith("."), key


# -- results


def test_a_result_is_read_back_as_it_was_written(data: Path, tmp_path: Path) -> None:
    record = results.simulate(small("max-min"), data)
    results.write(tmp_path / "one.npz", record)
    again = results.read(tmp_path / "one.npz")
    assert again.metrics == record.metrics
    assert again.end_s == record.end_s
    for name in ("jct_s", "requested_gpus", "duration_s", "queue", "efficiency", "blocking", "used_gpus"):
        assert np.array_equal(getattr(again, name), getattr(record, name))
    assert [path.name for path in tmp_path.glob("*.npz")] == ["one.npz"]


def test_a_second_run_simulates_only_what_is_missing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    first = results.gather([small("fifo")], data, folder, 1)
    both = results.gather([small("fifo"), small("srtf")], data, folder, 2)
    told = capsys.readouterr().out
    assert "0 of 1 simulations stand" in told
    assert "1 of 2 simulations stand" in told
    assert told.count("A fifo:") == 1
    assert both[small("fifo")].avg_jct_s == first[small("fifo")].avg_jct_s


def test_a_result_is_another_one_when_the_case_or_a_file_changes(data: Path) -> None:
    before = cases.key(small("fifo"), data)
    assert cases.key(small("fifo"), data) == before
    assert cases.key(small("fifo", seed=1), data) != before
    assert cases.key(small("fifo", cap_at_request=True), data) != before


def test_durations_of_a_record_are_those_of_the_trace(data: Path) -> None:
    record = results.simulate(small("fifo"), data)
    told = [int(line.split(",")[3]) for line in JOBS.splitlines()[1:]]
    assert record.duration_s == pytest.approx(told)


# -- rules of other simulators


@pytest.mark.parametrize("rule", ["pcs-fifo", "pcs-srtf", "pcs-srsf", "pcs-las", "pcs-themis"])
def test_under_a_rule_of_pcs_no_gpu_is_idle_while_a_job_wants_it(rule: str, data: Path) -> None:
    case = small(rule)
    setup = cases.setup(case, data)
    policy = cases.policy(case, setup)
    seen: list[tuple[int, int]] = []

    class Watched:
        name, needs_lengths = rule, True

        def shares(self, jobs, gpus: int, now: float, rng: random.Random):  # type: ignore[no-untyped-def]
            shares = policy.shares(jobs, gpus, now, rng)
            assert (shares.gpus <= jobs.requested_gpus).all()
            seen.append((int(shares.gpus.sum()), min(gpus, int(jobs.requested_gpus.sum()))))
            return shares

    outcome = Simulation(setup.assigned.workload, setup.cluster, Watched()).run()
    assert not np.isnan(outcome.end_s).any()
    assert seen
    assert all(given == possible for given, possible in seen)


def test_the_rule_of_tiresias_simulator_gives_a_job_all_its_gpus_or_none(data: Path) -> None:
    case = small("tiresias-dlas-gpu")
    setup = cases.setup(case, data)
    result = run(setup, cases.policy(case, setup))
    assert result.metrics.finished == 30
    assert result.metrics.avg_jct_s is not None
    assert result.metrics.avg_jct_s >= float(np.mean(setup.assigned.workload.work_s / 8))


@pytest.mark.skipif(not DATA.exists(), reason=f"no real traces in {DATA}")
@pytest.mark.parametrize(
    ("rule", "simulator", "policy"),
    [
        ("pcs-fifo", "PCS", "FIFO"),
        ("pcs-las", "PCS", "LAS"),
        ("fifo", "Tiresias", "fifo"),
        ("srsf", "Tiresias", "shortest-gpu"),
    ],
)
def test_the_peers_rules_give_the_peers_numbers_in_our_simulator(rule: str, simulator: str, policy: str) -> None:
    cluster = next(cluster for cluster in inputs.VIRTUAL_CLUSTERS if cluster.name == "e13805")
    peers = inputs.peers(DATA)
    theirs = peers.pcs(cluster, policy) if simulator == "PCS" else peers.tiresias(cluster, policy)
    assert results.simulate(cases.philly(cluster, rule), DATA).avg_jct_s == pytest.approx(theirs, rel=1e-5)


# Speedups with dents between the powers of two, like those of AFS's models on servers of four GPUs.
DENTED = np.array(
    [
        (0, 1, 1.82, 2.39, 3.48, 3.94, 4.56, 5.40, 6.61),
        (0, 1, 1.98, 2.56, 3.62, 4.01, 4.50, 5.12, 5.95),
        (0, 1, 1.43, 1.56, 1.73, 1.73, 1.73, 1.73, 1.73),
    ]
)


@pytest.mark.parametrize("seed", [3, 4, 5, 7, 11])
def test_afs_l_is_pcs_rule_job_by_job(seed: int) -> None:
    """Only where (3) is transitive among the jobs: otherwise the top job depends on the order of comparison, which AFS leaves
    open.

    Both see the measured throughputs. With their hull AFS-L would stop at 3, 5, 6 and 7 GPUs, and jobs would end otherwise.
    """
    rng = np.random.default_rng(seed)
    count = 60
    curve = rng.integers(0, 3, count)
    load = Workload(
        names=[JobId(f"j{number:02d}") for number in range(count)],
        submit_s=np.sort(rng.integers(0, 6000, count)).astype(float),
        min_gpus=np.ones(count, dtype=np.int64),
        max_gpus=np.array([8, 8, 4])[curve],
        requested_gpus=np.ones(count, dtype=np.int64),
        work_s=np.round(rng.lognormal(6, 1.2, count)),
        curve=curve,
        curves=Curves(DENTED),
        models=("VGG", "ResNet", "chatbot"),
    )
    ours, theirs = (
        Simulation(load, servers(4, 4), rule).run()
        for rule in (load_policy({"policy": "afs-l"}, "test"), peer_rules.RULES["pcs-afs"](load))
    )
    assert ours.resizes > 40
    assert ours.end_s.tolist() == theirs.end_s.tolist()


# -- a user's trace


def test_clusters_of_an_own_trace_stand_in_the_tables_without_a_published_number(data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(JOBS + JOBS.split("\n", 1)[1].replace("A,", "B,"))
    found = own.clusters(mine, ["B"], None, False, data)
    assert [(cluster.name, cluster.number, cluster.jobs) for cluster in found] == [("B", None, 30)]
    both = [FIRST, *found]
    done = {case: results.simulate(case, data) for case in set(average.cases(both))}
    section = average.section(done, both, inputs.Peers({}))
    rows = [line for line in section.tables[0].splitlines() if line.startswith(("| 4: A |", "| B |"))]
    assert [row.split("|")[3:] for row in rows[:1]] == [row.split("|")[3:] for row in rows[1:]]  # the same jobs
    assert {finding.what.split(":")[0] for finding in section.findings} == {"trace 4"}
    assert found[0] in edl._shown(found)


def test_all_jobs_of_a_trace_without_clusters_are_one_of_its_name_and_too_large_ones_are_left_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "lab.csv"
    mine.write_text("job_id,submission_time,duration,num_gpu\na,0,100,1\nb,5,100,999\nc,9,50,2\n")
    (found,) = own.clusters(mine, [], None, False, data)
    assert (found.name, found.jobs, found.column) == ("lab", 3, "")
    assert "1 of 3 jobs requested more than 64 GPUs" in capsys.readouterr().out
    case = cases.philly(found, "fifo")
    assert case.label == "lab fifo"
    assert results.simulate(case, data).metrics.finished == 2


@pytest.mark.parametrize(
    ("text", "names", "told"),
    [
        (JOBS, ["C"], "mine.csv: has no cluster 'C'; there are A"),
        ("job_id,submission_time,duration,num_gpu\na,0,100,1\n", ["C"], "mine.csv: names no clusters"),
        ("a,b\n1,2\n", [], "mine.csv: line 1: not a job trace that is known"),
        (JOBS.replace("small", "nobody's"), [], "mine.csv: .*nobody's"),
    ],
)
def test_what_cannot_be_simulated_of_an_own_trace_is_told_with_the_file(
    text: str, names: list[str], told: str, data: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(text)
    with pytest.raises(UserError, match=told):
        own.clusters(mine, names, None, False, data)


# -- the command


def test_without_the_traces_the_command_says_so_and_writes_nothing(tmp_path: Path) -> None:
    sources = str(Path(elasticd.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers", "--data", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path}: the traces are not there ({inputs.PHILLY}); say where with --data\n"


def test_elan_is_simulated_whatever_the_clusters_of_afs_are() -> None:
    assert len(set(elan.cases([]))) == 18
    assert json.dumps(sorted({case.costs for case in elan.cases([])})) == '["background", "none", "stop-resume"]'


def test_a_cluster_that_nothing_has_is_refused_by_the_command(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers", "--data", str(data), "--cluster", "nowhere"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(elasticd.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("no virtual cluster 'nowhere'; there are 0e4a51, ")
