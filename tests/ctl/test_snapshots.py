"""The files in a snapshot of a working directory, and the job that runs in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from elasticd.ctl import snapshots
from elasticd.ctl.context import Context
from elasticd.ctl.snapshots import Packed, read
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import PutSnapshot, SnapshotWanted
from elasticd.protocol.model import GpuRange, JobSpec
from elasticd.protocol.snapshots import File, unpack


def lay_out(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def names(root: Path) -> list[str]:
    return [file.path for file in read(root)[0]]


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)


def job(root: Path, *command: str, **env: str) -> JobSpec:
    return JobSpec(
        name="job", command=command, gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir=str(root), env=env
    )


def test_in_a_repository_what_gitignore_names_stays_out_and_what_is_not_committed_yet_is_in(tmp_path: Path) -> None:
    lay_out(tmp_path, "train.py", "lib/new.py", "data/big.bin", "gone.py")
    (tmp_path / ".gitignore").write_text("data/\n")
    git(tmp_path, "init")
    git(tmp_path, "add", "train.py", "gone.py")
    (tmp_path / "gone.py").unlink()
    assert names(tmp_path) == [".gitignore", "lib/new.py", "train.py"]
    assert names(tmp_path / "lib") == ["new.py"], "of a part of a repository, that part"


def test_elsewhere_environments_and_what_tools_make_stay_out(tmp_path: Path) -> None:
    lay_out(
        tmp_path, "train.py", "lib/a.py", "__pycache__/a.pyc", "b.pyc", ".git2/x", "venv/pyvenv.cfg", "venv/lib/x.py"
    )
    assert names(tmp_path) == ["lib/a.py", "train.py"]


def test_links_are_followed_within_the_directory_and_others_are_left_out_by_name(tmp_path: Path) -> None:
    root = tmp_path / "code"
    lay_out(tmp_path, "code/train.py", "secret", "elsewhere/data.txt")
    (root / "same.py").symlink_to("train.py")
    (root / "out").symlink_to("../secret")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    (root / "broken").symlink_to("nowhere")
    files, links = read(root)
    assert {file.path: file.content for file in files} == {"same.py": b"code/train.py", "train.py": b"code/train.py"}
    assert sorted(links) == ["broken", "data", "out"]
    packed = Packed()
    packed.take(job(root, "python", "train.py"))
    (told,) = packed.left_out
    assert "data" in told


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 3 << 20)
    (tmp_path / "weights.bin").write_bytes(b"\0" * (4 << 20))
    lay_out(tmp_path, "train.py")
    with pytest.raises(UserError, match=r"at most 3\. The largest: weights\.bin \(4\.0 MiB\), train\.py .*gitignore"):
        read(tmp_path)


def test_too_many_files_and_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="has no files"):
        read(tmp_path)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_FILES", 1)
    lay_out(tmp_path, "a", "b")
    with pytest.raises(UserError, match="has 2 files, and a snapshot has at most 1"):
        read(tmp_path)


def test_a_repository_without_git_is_refused_rather_than_packed_with_what_it_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path, ".git/config", "train.py")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="there is no git here"):
        read(tmp_path)


def test_whether_a_file_can_be_executed_is_kept(tmp_path: Path) -> None:
    lay_out(tmp_path, "run.sh", "a.txt")
    (tmp_path / "run.sh").chmod(0o755)
    assert {file.path: file.executable for file in read(tmp_path)[0]} == {"a.txt": False, "run.sh": True}


def test_what_leads_back_to_the_directory_is_made_relative_and_its_program_is_not(tmp_path: Path) -> None:
    lay_out(tmp_path, "train.py", ".venv/bin/python", "src/a.py")
    path = os.pathsep.join([str(tmp_path / "src"), "/opt/lib", str(tmp_path)])
    data = str(tmp_path / "data.bin")
    spec = Packed().take(job(tmp_path, ".venv/bin/python", str(tmp_path / "train.py"), data, PYTHONPATH=path))
    assert spec.command == (str(tmp_path / ".venv/bin/python"), "train.py", data)
    assert spec.env["PYTHONPATH"] == os.pathsep.join(["src", "/opt/lib", "."])
    assert spec.env["ELASTIC_SUBMITTED_FROM"] == str(tmp_path)
    assert spec.snapshot is not None
    assert spec.workdir == str(tmp_path), "of which people know what it is"


class Empty:
    """A controller without any snapshot, as a context reaches it. Keeps the parts that are sent."""

    def __init__(self) -> None:
        self.got = b""

    def ask(self, request: Any, answer: type[Any], timeout_s: float) -> SnapshotWanted:
        if isinstance(request, PutSnapshot):
            self.got += request.data
        return SnapshotWanted(parts=() if self.got else (0,))


def test_a_snapshot_that_is_kept_no_longer_is_sent_again_if_the_directory_still_has_its_files(tmp_path: Path) -> None:
    lay_out(tmp_path, "train.py")
    spec = Packed().take(job(tmp_path, "true"))
    assert spec.snapshot is not None
    controller = Empty()
    Packed().send(cast(Context, controller), spec)
    assert unpack(spec.snapshot, controller.got) == [File("train.py", False, b"train.py")]


@pytest.mark.parametrize("how", ["edited", "gone"])
def test_a_snapshot_that_is_kept_nowhere_any_more_is_told(tmp_path: Path, how: str) -> None:
    lay_out(tmp_path, "train.py")
    spec = Packed().take(job(tmp_path, "true"))
    (tmp_path / "train.py").write_text("other") if how == "edited" else (tmp_path / "train.py").unlink()
    with pytest.raises(UserError, match=r"is kept no longer, and .* take a new one with --snapshot"):
        Packed().send(cast(Context, Empty()), spec)
