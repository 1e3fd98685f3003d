"""`submit --resume`: the choice of the checkpoint, and the parts of the specification that are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobgpus import GpuOptions
from elasticd.ctl.resubmit import GoingOn, as_before
from elasticd.ctl.resuming import is_directory, of_directory
from elasticd.ctl.snapshots import Packed
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import JobView
from elasticd.protocol.model import (
    BatchChange,
    CheckpointSpec,
    Deadline,
    GpuRange,
    JobId,
    JobPhase,
    JobSpec,
    ResumeFrom,
)

BEFORE = JobSpec(
    name="digits",
    command=("python", "train.py", "--epochs", "10"),
    gpus=GpuRange(min=1, max=4),
    virtual_workers=8,
    workdir="/home/alice",
    env={"DATA": "/data", "PATH": "/bin"},
    max_steps=100,
    deadline=Deadline(in_s=60.0),
    checkpoint=CheckpointSpec(every_s=30.0, keep=5),
    gpu_types=("A100",),
    resume=ResumeFrom(directory="/earlier"),
)
BUILT = replace(
    BEFORE,
    name="train",
    command=("python", "train.py", "--epochs", "20"),
    gpus=GpuRange(min=2, max=2),
    virtual_workers=2,
    env={"PATH": "/usr/bin", "SEED": "3"},
    max_steps=None,
    deadline=None,
    checkpoint=CheckpointSpec(every_s=5.0),
    gpu_types=(),
    user="bob",
    resume=None,
)


def test_the_job_is_as_it_was_but_for_what_is_given_and_is_promised_no_deadline_again() -> None:
    assert as_before(BEFORE, BUILT, Overrides()) == replace(BEFORE, deadline=None, user="bob", resume=None)
    options = Overrides(
        command=BUILT.command, gpus=GpuOptions(gpus="2"), env=("SEED=3",), checkpoint_every="5s", name="train"
    )
    found = as_before(BEFORE, BUILT, options)
    assert (found.command, found.gpus, found.virtual_workers, found.name) == (BUILT.command, BUILT.gpus, 8, "train")
    assert found.env == {"DATA": "/data", "PATH": "/bin", "SEED": "3"}
    assert found.checkpoint == CheckpointSpec(every_s=5.0, keep=5)
    assert (found.max_steps, found.gpu_types) == (100, ("A100",))


def test_the_newest_checkpoint_of_a_directory_is_that_of_the_greatest_generation(tmp_path: Path) -> None:
    directory = tmp_path / "digits-3.ab12"
    directory.mkdir()
    for name in ("generation-00000002-step-000000000041.pt", "generation-00000001-step-000000000099.pt", "step.pt"):
        (directory / name).touch()
    found = of_directory(str(directory), any_code=True)
    assert found == ResumeFrom(directory=str(directory), step=41, any_code=True, seeds="digits-3 ab12")
    assert is_directory(str(directory))
    assert not is_directory("digits-3")


def test_a_directory_without_a_checkpoint_is_refused_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        of_directory(str(tmp_path), any_code=False)
    (tmp_path / "digits-3.ab12").mkdir()
    with pytest.raises(UserError, match=r"holds directories of jobs, such as digits-3\.ab12"):
        of_directory(str(tmp_path), any_code=False)
    with pytest.raises(UserError, match="No such file"):
        of_directory(str(tmp_path / "nowhere"), any_code=False)


def view_of(spec: JobSpec) -> JobView:
    usual: dict[str, Any] = {each.name: None for each in msgspec.structs.fields(JobView) if each.required}
    return JobView(**{**usual, "job": JobId("digits-1"), "phase": JobPhase.CANCELLED, "spec": spec})


def gone_on(before: JobSpec, options: Overrides) -> JobSpec:
    """Return the job that `submit --resume digits-1` submits with these options."""
    goes_on, packed = GoingOn("digits-1", False, lambda name: view_of(before)), Packed()
    where = goes_on.where(None, Path("/nowhere"))
    built = build(None, goes_on.options(None, options), where, dict(os.environ), lambda doubt: None, packed.take)
    return goes_on.job(None, options, built, packed.take)


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("name", "other", "name"),
        ("gpus", GpuOptions(gpus="2"), "gpus"),
        ("gpus", GpuOptions(types=("V100",)), "gpu_types"),
        ("gpus", GpuOptions(memory="40GiB"), "gpu_memory_bytes"),
        ("cpus", 2.0, "cpus"),
        ("memory", "16GiB", "memory_bytes"),
        ("notify", "end", "notify"),
        ("gpus", GpuOptions(gpus="4", per_server=2), "gpus_per_server"),
        ("virtual_workers", 4, "virtual_workers"),
        ("max_steps", 200, "max_steps"),
        ("until", "accuracy >= 0.9", "until"),
        ("deadline", "2h", "deadline"),
        ("soft", True, "deadline"),
        ("priority", "high", "priority"),
        ("env", ("SEED=3",), "env"),
        ("checkpoint_every", "5s", "checkpoint"),
        ("determinism", "none", "determinism"),
        ("processes", "per-server", "processes"),
        ("restarts", 2, "restarts"),
        ("after", ("prep-1",), "after"),
        ("time", "2h", "time_limit_s"),
        ("warn", "60s", "warn_s"),
        ("snapshot", True, "snapshot"),
        ("replay_batches", (BatchChange(step=3, factor=2),), "scaling"),
        ("image", "docker.io/library/python:3.11", "image"),
        ("secrets", (f"TOKEN={__file__}",), "secrets"),
        ("command", ("env", "true"), "command"),
    ],
)
def test_no_option_is_ignored_beside_resume(option: str, value: Any, field: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    before = replace(BEFORE, workdir=str(tmp_path), deadline=None, command=("true",))
    usual = gone_on(before, Overrides())
    beside = {"soft": {"deadline": "2h"}, "warn": {"time": "2h"}}.get(option, {})
    assert getattr(gone_on(before, Overrides(**{**beside, option: value})), field) != getattr(usual, field)
    every = {mark for (mark, _, _) in test_no_option_is_ignored_beside_resume.pytestmark[0].args[1]}  # type: ignore[attr-defined]
    several = {"array", "sweep"}  # options that make several jobs of the one that is built (`arrays`)
    assert every | several == set(Overrides.__struct_fields__), "an option has no example here"


def test_a_new_snapshot_has_the_present_files_and_the_command_and_environment_of_the_earlier_job(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("old")
    earlier = replace(BEFORE, workdir=str(tmp_path), command=("true", str(script)), env={"PYTHONPATH": str(tmp_path)})
    before = Packed().take(earlier)
    script.write_text("new")
    assert gone_on(before, Overrides()).snapshot == before.snapshot
    found = gone_on(before, Overrides(snapshot=True))
    assert found.snapshot == Packed().take(earlier).snapshot != before.snapshot
    assert (found.command, found.env) == (("true", "train.py"), before.env)


def test_a_script_that_is_named_by_its_absolute_path_is_the_one_in_the_snapshot_that_is_kept(tmp_path: Path) -> None:
    code, elsewhere = tmp_path / "code", tmp_path / "train.py"
    (code / "sub").mkdir(parents=True)
    script = code / "sub/train.py"
    for path in (script, elsewhere):
        path.write_text("old")
    before = Packed().take(replace(BEFORE, workdir=str(code), command=("python", str(script))))
    script.write_text("new")
    (tmp_path / "link").symlink_to(code)
    for named in (script, tmp_path / "link/sub/train.py"):
        found = gone_on(before, Overrides(command=("python", str(named), "--epochs", "20", str(code / "data"))))
        assert found.command == ("python", "sub/train.py", "--epochs", "20", str(code / "data"))
        assert found.snapshot == before.snapshot
    assert gone_on(before, Overrides(command=("python", str(elsewhere)))).command == ("python", str(elsewhere))
