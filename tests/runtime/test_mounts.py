"""Whether two machines share a directory, decided by its mount, without reading the directory."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from elasticd.runtime import mounts


def machine(directory: Path, boot: str, *lines: str) -> Path:
    proc = directory / boot
    (proc / "self").mkdir(parents=True)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    (proc / "self/mountinfo").write_text(
        "".join(f"{line}\n" for line in ("1 0 8:1 / / rw - ext4 /dev/sda1 rw", *lines))
    )
    return proc


def test_one_export_is_the_same_wherever_it_is_mounted(tmp_path: Path) -> None:
    here = machine(tmp_path, "a", "2 1 0:50 / /srv/data rw - nfs4 nas:/export rw")
    there = machine(tmp_path, "b", "7 1 0:61 / /mnt rw shared:3 - nfs4 nas:/export/lab\\040one rw")
    bound = machine(tmp_path, "c", "9 1 0:77 /lab\\040one /checks rw - nfs4 nas:/export rw")
    found = {
        mounts.storage_of(Path("/srv/data/lab one/check"), here).place,
        mounts.storage_of(Path("/mnt/check"), there).place,
        mounts.storage_of(Path("/checks/check"), bound).place,
    }
    assert found == {"nas:/export/lab one/check"}
    assert mounts.storage_of(Path("/srv/data/x"), here).shared


def test_a_disk_of_its_own_is_another_one_on_each_machine(tmp_path: Path) -> None:
    here, there = machine(tmp_path, "a"), machine(tmp_path, "b")
    mine = mounts.storage_of(Path("/var/lib/checks"), here)
    assert not mine.shared
    assert mine == mounts.storage_of(Path("/var/lib/checks"), here)
    assert mine.place != mounts.storage_of(Path("/var/lib/checks"), there).place


def test_this_machines_own_mounts_are_found(tmp_path: Path) -> None:
    asked = ["findmnt", "-n", "-o", "FSTYPE,TARGET", "-T", str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    found = mounts.mount_of(tmp_path)
    assert [found.kind, found.at] == done.stdout.split()
    (tmp_path / "link").symlink_to("/dev/shm")
    assert mounts.mount_of(tmp_path / "link" / "x").at == "/dev/shm"


def test_a_file_system_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(mounts, "storage_of", lambda path: go_on.wait())
    assert mounts.told_within(tmp_path, 0.05).kind == ""
    go_on.set()
