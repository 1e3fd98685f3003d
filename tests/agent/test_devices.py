"""Device files of GPUs that a job may open, asked of the kernel. Without such GPUs "no such device" means permitted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticd.agent import cgroups
from elasticd.agent.cgroups import Cgroups, Limits
from elasticd.agent.devices import DRM, NVIDIA, Devices

from .accounts_stories import only_root

pytestmark = only_root
ASK = """
import errno, os, sys
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("open")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
NODES = {index: ((NVIDIA, index), (DRM, 100 + index)) for index in range(3)}


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Cgroups]:
    made = Cgroups(tmp_path.name, Limits(), None, cgroups.mounted())
    if not made.unified:
        pytest.skip("control groups of version 2 are not mounted")
    yield made
    for path in made.others(frozenset()):
        cgroups.remove((path,))
    made.close()


def answers(group: tuple[str, ...], directory: Path) -> str:
    """The kernel's answers to a process in this group for GPUs 0, 1, 2; nvidiactl; the DRM files of GPUs 0, 1; /dev/null."""
    numbers = [(NVIDIA, 0), (NVIDIA, 1), (NVIDIA, 2), (NVIDIA, 255), (DRM, 100), (DRM, 101)]
    paths = []
    for major, minor in numbers:
        path = directory / f"{major}-{minor}"
        if not path.exists():
            os.mknod(path, 0o20666, os.makedev(major, minor))
        paths.append(str(path))
    script = f'echo $$ > {group[0]}/cgroup.procs; exec "$@"'
    line = ["sh", "-c", script, "sh", sys.executable, "-I", "-c", ASK, "-", *paths, "/dev/null"]
    words = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    short = {errno.errorcode[errno.EPERM]: "-", "open": "o", "ENXIO": "o", "ENODEV": "o"}
    return "".join(short[word] for word in words)


def test_a_job_opens_its_own_gpus_and_no_other_ones(groups: Cgroups, tmp_path: Path) -> None:
    devices = Devices(NODES)
    first, second, other, warm = (groups.make(name) for name in ("a0", "a1", "b0", "warm"))
    devices.close_all(warm[0])
    devices.admit(first[0], "a", (0,))
    devices.admit(other[0], "b", (2,))
    assert answers(first, tmp_path) == "o--oo-o"
    assert answers(other, tmp_path) == "--oo--o"
    assert answers(warm, tmp_path) == "---o--o"
    devices.admit(second[0], "a", (1,))
    assert answers(first, tmp_path) == answers(second, tmp_path) == "oo-oooo", "its workers open each other's"
    devices.release(second[0])
    assert answers(first, tmp_path) == "o--oo-o"

    silent = Devices({0: NODES[0], 1: ()})
    with pytest.raises(OSError, match="does not tell the device file of GPU 1"):
        silent.admit(second[0], "a", (1,))
    assert not silent.told

    later = Devices(NODES)  # of a restarted agent
    later.admit(first[0], "a", (0,))
    later.admit(second[0], "a", (1,))
    assert answers(first, tmp_path) == "oo-oooo"
