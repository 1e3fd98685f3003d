"""Properties of all policies, for every cluster; and that the shipped configuration files load.

Each policy's own properties are tested in another file, alone or with related policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elasticd.agent import config as agent_config
from elasticd.controller import config as controller_config
from elasticd.ctl.config import load_cluster_file
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import POLICIES
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

from .tables import Case, ask, cases, job, policy, speedups, table

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = [kind.name for kind in POLICIES]
every_policy = pytest.mark.parametrize("name", NAMES)


# ------------------------------------------------------------------------------------------------------------ all policies


@given(cases())
def test_a_share_is_nothing_or_within_the_jobs_range_and_all_fit(case: Case) -> None:
    """Rigid policies give the requested share, which may be more than the job can use."""
    for name in NAMES:
        given_ = ask(name, case.table, case.gpus).gpus
        for one, share in zip(case.jobs, given_.tolist(), strict=True):
            assert share == 0 or one.min_gpus <= share <= max(one.max_gpus, one.requested_gpus), name
        assert given_.sum() <= case.gpus, name


@given(cases())
def test_the_same_table_and_seed_give_the_same_shares(case: Case) -> None:
    jobs = case.table
    for name in NAMES:
        first = ask(name, jobs, case.gpus).gpus.tolist()
        assert ask(name, jobs, case.gpus).gpus.tolist() == first, f"{name} has left something behind in the table"
        assert ask(name, case.table, case.gpus).gpus.tolist() == first, name


@given(cases())
def test_a_job_gets_gpus_or_a_reason_that_names_a_number_or_a_job(case: Case) -> None:
    jobs = case.table
    for name in NAMES:
        given_ = ask(name, jobs, case.gpus)
        for row in np.flatnonzero(given_.gpus == 0).tolist():
            reason = given_.why(row)
            assert reason is not None, name
            assert any(character.isdigit() for character in reason.text), name


@given(cases())
def test_no_cluster_stands_still_that_could_run_a_job(case: Case) -> None:
    assume(any(max(one.min_gpus, one.requested_gpus) <= case.gpus for one in case.jobs))
    for name in NAMES:
        assert ask(name, case.table, case.gpus).gpus.any(), name


@given(cases(), st.floats(0, 1e9))
def test_a_policy_asks_to_be_asked_again_later_or_not_at_all(case: Case, now: float) -> None:
    for name in NAMES:
        assert ask(name, case.table, case.gpus, now).review_s > now, name


@every_policy
def test_a_cluster_without_jobs_or_without_gpus_is_divided_too(name: str) -> None:
    assert ask(name, table(), 4).gpus.tolist() == []
    assert ask(name, table(job("a", 1, 4)), 0).gpus.tolist() == [0]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Up to six jobs of up to 4 GPUs that arrive within some minutes."""
    count = draw(st.integers(1, 6))
    curves = [draw(speedups(4)) for _ in range(count)]
    best = [int(np.argmax(curve)) for curve in curves]
    pauses = draw(st.lists(st.sampled_from([0.0, 10.0, 100.0]), min_size=count, max_size=count))
    return Workload(
        names=tuple(JobId(f"j{number}") for number in range(count)),
        submit_s=np.cumsum([0.0, *pauses[1:]]),
        min_gpus=np.array([draw(st.integers(1, most)) for most in best]),
        max_gpus=np.array(best),
        requested_gpus=np.array([draw(st.integers(1, 4)) for _ in range(count)]),
        work_s=np.array([draw(st.sampled_from([1.0, 60.0, 500.0])) for _ in range(count)]),
        curve=np.arange(count),
        curves=Curves(np.array(curves)),
        models=tuple(f"m{number}" for number in range(count)),
    )


@settings(max_examples=50)
@given(workloads())
def test_every_job_comes_to_its_end(load: Workload) -> None:
    fastest_s = load.work_s / load.curves.speedup.max(axis=1)
    for name in NAMES:
        ends_s = Simulation(load, servers(1, 4), policy(name)).run().end_s
        assert math.isfinite(ends_s.sum()), name
        assert (ends_s - load.submit_s >= fastest_s * (1 - 1e-9)).all(), name


# ------------------------------------------------------------------------------------------------------------------ files


def load_policy_file(path: Path) -> object:
    options = controller_config.ControllerConfig(policy=str(path))
    return controller_config.scheduler_of(options, CONFIGS / "none.yaml").policy


LOADERS: dict[str, Callable[[Path], object]] = {
    "controller.yaml": controller_config.load,
    "agent.yaml": agent_config.load,
    "cluster.yaml": load_cluster_file,
    **{f"policies/{name}.yaml": load_policy_file for name in NAMES},
}


def test_every_file_in_configs_is_loaded_here_and_every_policy_has_one() -> None:
    assert {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml")} == set(LOADERS)


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_in_configs_loads_and_says_what_it_is_for(name: str) -> None:
    LOADERS[name](CONFIGS / name)
    assert (CONFIGS / name).read_text().startswith("# ")


@every_policy
def test_the_file_of_a_policy_shows_all_its_parameters_with_their_defaults(name: str) -> None:
    text = (CONFIGS / "policies" / f"{name}.yaml").read_text()
    kind = next(kind for kind in POLICIES if kind.name == name)
    assert all(f"{field}:" in text for field in msgspec.to_builtins(kind.Parameters()))
    loaded = load_policy_file(CONFIGS / "policies" / f"{name}.yaml")
    assert loaded.name == name  # type: ignore[attr-defined]
    assert loaded.parameters == kind.Parameters()  # type: ignore[attr-defined]


def test_the_commented_controller_configuration_is_the_default() -> None:
    loaded = controller_config.load(CONFIGS / "controller.yaml")
    assert loaded == controller_config.ControllerConfig()
    assert controller_config.scheduler_of(loaded, CONFIGS / "controller.yaml").policy.name == "max-min"


def test_every_option_of_the_controller_is_in_its_commented_configuration() -> None:
    lines = (CONFIGS / "controller.yaml").read_text().splitlines()
    shown = {line.removeprefix("# ").partition(":")[0] for line in lines}
    assert shown >= set(controller_config.ControllerConfig.__struct_fields__)


def test_a_policy_file_is_found_beside_the_configuration_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "rigid.yaml").write_text("policy: fifo\nparameters: {}\n")
    (tmp_path / "controller.yaml").write_text("policy: rigid.yaml\n")
    path = tmp_path / "controller.yaml"
    assert controller_config.scheduler_of(controller_config.load(path), path).policy.name == "fifo"


def test_an_unknown_policy_is_refused_with_the_file_the_field_and_all_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text("policy: fairest\n")
    with pytest.raises(OperatorError) as refused:
        controller_config.scheduler_of(controller_config.load(path), path)
    for word in (str(path), "policy", "fairest", *NAMES):
        assert word in str(refused.value)


def test_a_parameter_that_a_policy_does_not_have_is_refused_with_its_name_and_file(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text("policy: max-min\nparameters: {quantum_s: 3}\n")
    with pytest.raises(OperatorError, match=r"odd\.yaml.*quantum_s"):
        load_policy_file(tmp_path / "odd.yaml")


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [("gandiva", "slice_s", 0), ("elastic-backfill", "look_ahead_jobs", -1), ("yarn-cs", "one_at_a_time", "maybe")],
)
def test_a_parameter_out_of_its_range_is_refused_with_its_name(name: str, parameter: str, value: object) -> None:
    with pytest.raises(OperatorError, match=parameter):
        policy(name, **{parameter: value})
