"""The files of a job's code, and the message of a worker with different code."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol import exits
from elasticd.protocol.errors import UserError
from elasticd.worker import events as e
from elasticd.worker.code import TEXT, Code, OtherCode
from elasticd.worker.data.likeness import Unlike
from elasticd.worker.environment import read_cluster
from elasticd.worker.events import CheckpointSaved, SaveCheckpoint
from elasticd.worker.gradients.hyperparameters import Hyperparameters
from elasticd.worker.script import Script
from elasticd.worker.state.checkpoint import CheckpointWriter, Others
from elasticd.worker.state.held import HeldState
from elasticd.worker.state.registered import Registered
from elasticd.worker.state.training_state import TrainingState
from elasticd.worker.state.values import ScriptValues

from .worker_stories import ME, OTHER, Story

DESCRIBE = """
import json, sys, torch
from elasticd.worker.code import Code
print(json.dumps(Code(torch.device("cpu")).description()))
"""
VERSIONS = {"python": "3.12.3", "torch": "2.13.0"}


def described(directory: Path, *command: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, **environment},
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
    )
    return dict(json.loads(done.stdout))


def lay_out(directory: Path) -> None:
    files = {
        "train.py": "import helper, package.part, installed, hidden_one, targeted\n" + DESCRIBE,
        "helper.py": "X = 1",
        "unused.py": "Y = 1",
        "package/__init__.py": "",
        "package/part.py": "Z = 1",
        "package/__main__.py": "from . import part\n" + DESCRIBE,
        "venv/lib/site-packages/installed.py": "",
        ".cache/hidden_one.py": "",
        "packages/targeted.py": "",
        "packages/targeted-1.0.dist-info/METADATA": "",
    }
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def path_of(directory: Path) -> str:
    return os.pathsep.join(
        [str(directory / "venv/lib/site-packages"), str(directory / ".cache"), str(directory / "packages")]
    )


def test_the_script_and_what_it_imports_from_its_directory_are_the_code_and_installed_packages_are_not(
    tmp_path: Path,
) -> None:
    lay_out(tmp_path)
    code = described(tmp_path, "train.py", PYTHONPATH=path_of(tmp_path))
    assert sorted(code["files"]) == ["helper.py", "package/__init__.py", "package/part.py", "train.py"]
    assert code["versions"]["torch"] == torch.__version__
    assert code["device"] == "cpu"


def test_a_script_in_another_directory_has_the_modules_beside_it_in_its_code(tmp_path: Path) -> None:
    lay_out(tmp_path / "code")
    (tmp_path / "elsewhere").mkdir()
    code = described(tmp_path / "elsewhere", "../code/train.py", PYTHONPATH=path_of(tmp_path / "code"))
    assert {"train.py", "helper.py"} <= set(code["files"])


@pytest.mark.cluster
def test_a_script_outside_of_its_snapshot_is_compared_with_the_same_script_of_another_snapshot(tmp_path: Path) -> None:
    lay_out(tmp_path / "code")
    copies = tmp_path / "jobs/digits-1.ab/code-1", tmp_path / "state/jobs/alice/digits-2.cd/code-2"
    files = []
    for number, copy in enumerate(copies):
        copy.mkdir(parents=True)
        (tmp_path / "code/helper.py").write_text(f"X = {number}")
        found = described(copy, str(tmp_path / "code/train.py"), PYTHONPATH=path_of(tmp_path / "code"))
        files.append(found["files"])
    assert files[0].keys() == files[1].keys()
    assert [name for name in files[0] if files[0][name] != files[1][name]] == ["helper.py"]


def test_of_two_files_with_one_name_each_is_described(tmp_path: Path) -> None:
    lay_out(tmp_path / "code")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/other.py").write_text("")
    (tmp_path / "code/other.py").write_text("Y = 2")
    (tmp_path / "code/train.py").write_text(
        "import importlib.util, sys\n"
        "for number, path in enumerate(('other.py', '../code/other.py')):\n"
        "    spec = importlib.util.spec_from_file_location(f'other{number}', path)\n"
        "    sys.modules[spec.name] = importlib.util.module_from_spec(spec)\n" + DESCRIBE
    )
    files = described(tmp_path / "here", "../code/train.py")["files"]
    assert {"other.py", "../code/other.py", "train.py"} <= set(files)


@pytest.mark.cluster
def test_a_module_and_a_text_are_code_too(tmp_path: Path) -> None:
    lay_out(tmp_path)
    module = described(tmp_path, "-m", "package")
    assert sorted(module["files"]) == ["package/__init__.py", "package/__main__.py", "package/part.py"]
    one, other = (described(tmp_path, "-c", DESCRIBE + f"\nX = {n}")["files"] for n in (1, 2))
    assert list(one) == list(other) == [TEXT]
    assert one != other


def of_this_process(**changes: Any) -> dict[str, Any]:
    return {**Code(torch.device("cpu")).description(), **changes}


def test_equal_code_and_a_state_of_an_older_version_are_taken() -> None:
    code = Code(torch.device("cpu"))
    code.take({})
    job = of_this_process(began_s=1.0)
    code.take({"code": job})
    assert code.description()["began_s"] == 1.0, "the job's code is carried on, not the own one"


def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Code, dict[str, Any]]:
    """A worker's code with a helper that was edited after the job's start; and the job's code."""
    (tmp_path / "edited_helper.py").write_text("X = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("edited_helper")
    try:
        job = {**Code(torch.device("cpu")).description(), "began_s": 1.0}
        (tmp_path / "edited_helper.py").write_text("X = 2")
        return Code(torch.device("cpu")), job
    finally:
        del sys.modules["edited_helper"]


def test_an_edited_file_is_named_with_the_time_of_the_edit_and_nothing_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, job = edited(tmp_path, monkeypatch)
    with pytest.raises(OtherCode, match=r"^edited_helper\.py: not the code .*edited at \d\d:\d\d:\d\d, after") as found:
        code.take({"code": job})
    assert len(str(found.value)) < 280, "the reason of a worker's end is cut at 300 characters"
    assert code.description()["files"] != job["files"]


def test_a_snapshot_is_not_said_to_be_edited_when_it_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job = edited(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("edited_helper")
    try:
        code = Code(torch.device("cpu"), snapshot=True)
    finally:
        del sys.modules["edited_helper"]
    with pytest.raises(OtherCode, match="the job's snapshot has another version") as found:
        code.take({"code": job})
    assert "edited at" not in str(found.value)


def test_another_copy_is_told_apart_from_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, job = edited(tmp_path, monkeypatch)
    with pytest.raises(OtherCode, match="this server has another copy"):
        code.take({"code": {**job, "began_s": 1e12}})


def test_a_job_that_takes_any_code_takes_an_edited_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, job = edited(tmp_path, monkeypatch)
    Code(torch.device("cpu"), compared=False).take({"code": {**job, "device": "cuda"}})


def test_a_checkpoint_of_other_code_is_refused_with_nothing_of_it_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, job = edited(tmp_path, monkeypatch)
    model = torch.nn.Linear(2, 2)
    parts = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    directory = tmp_path / "checkpoints"
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = CheckpointWriter(directory, 1, told.put)
    header = {**parts.header({"applied": 4, "epoch": 0, "generation": 1}), "code": job}
    writer.save(SaveCheckpoint(1, 4, 0, 1), header, [torch.full_like(each, 7.0) for each in parts.tensors()])
    assert told.get(timeout=300) == CheckpointSaved(1)
    before = model.weight.detach().clone()
    values = ScriptValues(parts, Hyperparameters(parts.optimizers), None)  # type: ignore[arg-type]
    held = HeldState(parts, Script(), values, writer, told.put, code)
    with pytest.raises(OtherCode, match="edited_helper"):
        held.load(2)
    assert torch.equal(model.weight, before)
    assert held.next_step == 0
    held.code = None
    assert held.load(2) == e.CheckpointLoaded(4, 0)
    assert bool((model.weight == 7.0).all())


@pytest.mark.parametrize("any_code", [False, True])
def test_a_checkpoint_of_another_number_of_virtual_workers_is_gone_on_from_only_if_asked_for(
    tmp_path: Path, any_code: bool
) -> None:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def state(directory: Path, virtual_workers: int, others: Others | None = None) -> HeldState:
        model = torch.nn.Linear(2, 2)
        registered = Registered(virtual_workers)
        parts = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)], registered=registered)
        values = ScriptValues(parts, Hyperparameters(parts.optimizers), None)  # type: ignore[arg-type]
        writer = CheckpointWriter(directory, 1, told.put)
        writer.others = others
        return HeldState(parts, Script(), values, writer, told.put)

    first = state(tmp_path / "first", 2)
    assert first._writer is not None
    header = first.header({"applied": 4, "epoch": 0, "generation": 1})
    first._writer.save(SaveCheckpoint(1, 4, 0, 1), header, list(first.parts.tensors()))
    assert told.get(timeout=300) == CheckpointSaved(1)
    others = Others(tmp_path / "first", any_code)
    alike = state(tmp_path / "alike", 2, others).load(1)
    assert isinstance(alike, e.CheckpointLoaded)
    other = state(tmp_path / "other", 3, others)
    if any_code:
        assert isinstance(other.load(1), e.CheckpointLoaded)
        return
    with pytest.raises(Unlike, match="virtual_workers: the checkpoint is of a job with 2, not 3"):
        other.load(1)
    assert other.next_step == 0


def test_files_that_only_one_has_imported_say_nothing() -> None:
    code = Code(torch.device("cpu"))
    code.take({"code": of_this_process(files={"leaders_logger.py": "00"})})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda"}, "computes on cpu, and the job began on cuda"),
        ({"versions": {"torch": "1.0"}}, r"torch is \S+ here, and the job began with 1\.0"),
        ({"versions": {"python": "3.1.4"}}, r"python is \S+ here, and the job began with 3\.1\.4"),
    ],
)
def test_another_device_torch_or_python_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OtherCode, match=words):
        Code(torch.device("cpu")).take({"code": of_this_process(**changes)})


def test_other_versions_that_decide_nothing_are_told_on_demand() -> None:
    code = Code(torch.device("cpu"))
    python = ".".join(map(str, sys.version_info[:2]))
    job = of_this_process(versions={"torch": torch.__version__, "python": f"{python}.999"})
    code.take({"code": job})
    assert list(code.other_versions(job)) == ["python"]


def test_a_value_that_says_nothing_about_code_is_refused() -> None:
    with pytest.raises(UserError, match="ELASTIC_CODE is 'all'; it can be 'any'"):
        read_cluster({"ELASTICD_WORKER": "job.1", "ELASTIC_CODE": "all"})


def test_a_newcomer_with_other_code_ends_before_any_of_the_state_is_taken() -> None:
    story = Story()
    story.arrive()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.Diverged(exits.OTHER_CODE, "train.py: edited"))
    assert "train.py: edited" in story.status.note
    (end,) = story.all(e.EndProcess)
    assert (end.code, end.reason) == (exits.OTHER_CODE, "train.py: edited")


def test_a_first_holder_whose_code_is_not_that_of_the_checkpoint_ends_and_begins_nothing_anew() -> None:
    story = Story(checkpoint_step=5)
    story.arrive()
    story.alone()
    story.tell(e.Diverged(exits.OTHER_CODE, "train.py: edited"))
    assert story.take() == []
    story.wait(1)
    (end,) = story.all(e.EndProcess)
    assert end.code == exits.OTHER_CODE


def test_a_script_that_differs_in_a_loop_body_ends_its_process_with_the_reason() -> None:
    story = Story()
    story.trains_alone()
    story.begin_step()
    story.tell(e.Diverged(exits.UNLIKE, "NameError: name 'weights' is not defined"))
    story.wait(1)
    (end,) = story.all(e.EndProcess)
    assert end.code == exits.UNLIKE
    assert "weights" in story.status.note
