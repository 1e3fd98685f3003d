"""What each policy promises, for every cluster; and that the configuration files that come with the program load.

Worked examples of whole decisions are in `test_decisions.py`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.agent import config as agent_config
from elasticd.controller import config as controller_config
from elasticd.controller.scheduling.policies import POLICIES, Shares, load_policy
from elasticd.controller.scheduling.view import ClusterView, JobInView, ReasonCode, ServerInView
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.model import GpuAddress, JobId, ServerId

CONFIGS = Path(__file__).parents[2] / "configs"


def job(name: str, low: int, high: int, share: int = 0, requested: int | None = None) -> JobInView:
    return JobInView(
        job=JobId(name),
        submitted_s=0.0,
        min_gpus=low,
        max_gpus=high,
        requested_gpus=high if requested is None else requested,
        virtual_workers=high,
        priority=0,
        share=share,
        placement=tuple(GpuAddress(server=ServerId(f"of-{name}"), index=i) for i in range(share)),
        manual_share=None,
        attained_gpu_s=0.0,
        steps_done=None,
        total_steps=None,
        started=share > 0,
    )


def view(total: int, *jobs: JobInView) -> ClusterView:
    return ClusterView(now=0.0, jobs=jobs, servers=(ServerInView(ServerId("s"), tuple(range(total))),))


def shares(name: str, seen: ClusterView) -> Shares:
    return load_policy({"policy": name}, "test").shares(seen, random.Random(0))


@st.composite
def views(draw: st.DrawFn, most_jobs: int = 6, most_gpus: int = 12) -> ClusterView:
    """Jobs may hold more GPUs than there are: servers have been lost."""
    jobs = []
    for number in range(draw(st.integers(0, most_jobs))):
        low = draw(st.integers(1, 4))
        high = draw(st.integers(low, 8))
        share = draw(st.one_of(st.just(0), st.integers(low, high)))
        jobs.append(job(f"j{number}", low, high, share))
    return view(draw(st.integers(0, most_gpus)), *jobs)


# ------------------------------------------------------------------------------------------------------------ all policies


@given(views(), st.sampled_from([kind.name for kind in POLICIES]))
def test_a_share_is_nothing_or_within_the_jobs_range_and_all_fit(seen: ClusterView, name: str) -> None:
    given_ = shares(name, seen)
    by_name = {one.job: one for one in seen.jobs}
    assert all(
        share == 0 or by_name[who].min_gpus <= share <= by_name[who].max_gpus for who, share in given_.by_job.items()
    )
    assert sum(given_.by_job.values()) <= seen.total_gpus
    assert given_ == shares(name, seen)


@given(views(), st.sampled_from([kind.name for kind in POLICIES]))
def test_a_job_gets_gpus_or_a_reason_that_names_a_number_or_a_job(seen: ClusterView, name: str) -> None:
    given_ = shares(name, seen)
    for one in seen.jobs:
        assert (given_.by_job.get(one.job, 0) > 0) != (one.job in given_.reasons)
    for reason in given_.reasons.values():
        assert any(character.isdigit() for character in reason.text)


# ------------------------------------------------------------------------------------------------------------------- fifo


def test_fifo_gives_the_requested_gpus_in_the_order_of_submission() -> None:
    assert shares("fifo", view(6, job("a", 1, 2), job("b", 1, 3), job("c", 1, 1))).by_job == {"a": 2, "b": 3, "c": 1}


def test_fifo_lets_nobody_overtake_the_first_job_that_waits() -> None:
    given_ = shares("fifo", view(4, job("a", 1, 2), job("b", 1, 3), job("c", 1, 1), job("d", 1, 2)))
    assert given_.by_job == {"a": 2}
    assert given_.reasons[JobId("b")].code is ReasonCode.NO_FREE_GPUS
    assert [given_.reasons[JobId(name)].text for name in "cd"] == ["waits behind b"] * 2


@given(views())
def test_fifo_leaves_running_jobs_alone_as_long_as_their_gpus_exist(seen: ClusterView) -> None:
    running = {one.job: one.share for one in seen.jobs if one.share}
    if sum(running.values()) <= seen.total_gpus:
        given_ = shares("fifo", seen).by_job
        assert {name: given_[name] for name in running} == running


@given(views())
def test_fifo_starts_whoever_is_first_and_fits_and_nobody_behind_one_who_does_not(seen: ClusterView) -> None:
    given_ = shares("fifo", seen)
    queue = [one for one in seen.jobs if not one.share and one.requested_gpus <= seen.total_gpus]
    started = [one for one in queue if one.job in given_.by_job]
    assert started == queue[: len(started)]
    assert all(given_.by_job[one.job] == one.requested_gpus for one in started)
    if len(started) < len(queue) and all(one.job in given_.by_job for one in seen.jobs if one.share):
        free = seen.total_gpus - sum(given_.by_job.values())
        assert queue[len(started)].requested_gpus > free


# ---------------------------------------------------------------------------------------------------------------- max-min


def fairest(admitted: list[JobInView], total: int) -> list[int]:
    """By trying everything: of the shares that fit, those whose sorted list is lexicographically largest."""
    ranges = [range(one.min_gpus, one.max_gpus + 1) for one in admitted]
    return max(sorted(found) for found in itertools.product(*ranges) if sum(found) <= total)


@given(views(most_jobs=4, most_gpus=10))
def test_max_min_finds_the_fairest_shares_there_are(seen: ClusterView) -> None:
    given_ = shares("max-min", seen).by_job
    admitted = [one for one in seen.jobs if one.job in given_]
    assert sorted(given_.values()) == fairest(admitted, seen.total_gpus)


@given(views())
def test_max_min_admits_each_job_whose_minimum_fits_beside_those_of_earlier_jobs(seen: ClusterView) -> None:
    given_ = shares("max-min", seen).by_job
    free = seen.total_gpus
    for one in seen.jobs:
        assert (one.job in given_) == (one.min_gpus <= free)
        free -= one.min_gpus if one.job in given_ else 0


@given(views())
def test_max_min_leaves_a_gpu_idle_only_when_nobody_can_use_it(seen: ClusterView) -> None:
    given_ = shares("max-min", seen).by_job
    idle = seen.total_gpus - sum(given_.values())
    for one in seen.jobs:
        assert idle == 0 or given_.get(one.job) == one.max_gpus or (one.job not in given_ and one.min_gpus > idle)


@given(views())
def test_max_min_does_not_depend_on_what_jobs_have_now(seen: ClusterView) -> None:
    afresh = view(seen.total_gpus, *(job(one.job, one.min_gpus, one.max_gpus) for one in seen.jobs))
    assert shares("max-min", seen) == shares("max-min", afresh)


def test_max_min_gives_the_odd_gpu_to_the_job_submitted_first() -> None:
    assert shares("max-min", view(5, job("a", 1, 8), job("b", 1, 8))).by_job == {"a": 3, "b": 2}


# ------------------------------------------------------------------------------------------------------------------ files


def load_policy_file(path: Path) -> object:
    return controller_config.policy_of(controller_config.ControllerConfig(policy=str(path)), CONFIGS / "none.yaml")


LOADERS: dict[str, Callable[[Path], object]] = {
    "controller.yaml": controller_config.load,
    "agent.yaml": agent_config.load,
    **{f"policies/{kind.name}.yaml": load_policy_file for kind in POLICIES},
}


def test_every_file_in_configs_is_loaded_here_and_every_policy_has_one() -> None:
    assert {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*") if path.is_file()} == set(LOADERS)


@pytest.mark.parametrize("name", LOADERS)
def test_a_file_in_configs_loads_and_says_what_it_is_for(name: str) -> None:
    LOADERS[name](CONFIGS / name)
    assert (CONFIGS / name).read_text().startswith("# ")


def test_the_commented_controller_configuration_is_the_default() -> None:
    loaded = controller_config.load(CONFIGS / "controller.yaml")
    assert loaded == controller_config.ControllerConfig()
    assert controller_config.policy_of(loaded, CONFIGS / "controller.yaml").name == "max-min"


def test_every_option_of_the_controller_is_in_its_commented_configuration() -> None:
    lines = (CONFIGS / "controller.yaml").read_text().splitlines()
    shown = {line.removeprefix("# ").partition(":")[0] for line in lines}
    assert shown >= set(controller_config.ControllerConfig.__struct_fields__)


def test_a_policy_file_is_found_beside_the_configuration_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "rigid.yaml").write_text("policy: fifo\nparameters: {}\n")
    (tmp_path / "controller.yaml").write_text("policy: rigid.yaml\n")
    path = tmp_path / "controller.yaml"
    assert controller_config.policy_of(controller_config.load(path), path).name == "fifo"


def test_an_unknown_policy_is_refused_with_the_file_the_field_and_all_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text("policy: fairest\n")
    with pytest.raises(OperatorError) as refused:
        controller_config.policy_of(controller_config.load(path), path)
    for word in (str(path), "policy", "fairest", *(kind.name for kind in POLICIES)):
        assert word in str(refused.value)


def test_a_parameter_that_a_policy_does_not_have_is_refused_with_its_name_and_file(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text("policy: max-min\nparameters: {quantum_s: 3}\n")
    with pytest.raises(OperatorError, match=r"odd\.yaml.*quantum_s"):
        load_policy_file(tmp_path / "odd.yaml")
