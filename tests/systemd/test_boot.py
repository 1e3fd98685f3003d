"""A real systemd boots in namespaces with the files of `make install`, and runs `story.py` and `attacks.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from elasticd.ctl.standins import library

ROOT = Path(__file__).parents[2]
NOT_PERMITTED = 77


def boot(stage: Path, out: Path, *scripts: str) -> None:
    """Boot the installed machine once for each script; skips where that is not permitted. AssertionError with the output."""
    if os.geteuid() != 0:
        pytest.skip("only root can boot a machine in namespaces")
    (stage / "srv").mkdir(exist_ok=True)
    files = ("tests/systemd/story.py", "tests/systemd/attacks.py", "tests/cluster/train_small.py", "scripts/install")
    for file in files:
        shutil.copy(ROOT / file, stage / "srv")
    packages = sysconfig.get_path("purelib")
    command = [Path(__file__).with_name("boot.sh"), stage, packages, out, *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NOT_PERMITTED:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    logs = [path for path in (out / name for name in ("agent.log", "controller.log", "systemd.log")) if path.exists()]
    told = "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in logs)
    wrong = (out / "test.err").read_text() if (out / "test.err").exists() else ""
    assert done.returncode == 0, f"{done.stderr}\n{told}\n{wrong}"


@pytest.mark.cluster
def test_hostile_jobs_stay_within_their_bounds_under_the_shipped_units(
    tools: None, stage: Path, tmp_path: Path
) -> None:
    (stage / "srv").mkdir(exist_ok=True)
    library.build(stage / "srv")
    (stage / "srv" / "server.txt").write_text(library.description("a100"))
    boot(stage, tmp_path, "/srv/attacks.py")
    print(json.loads((tmp_path / "attacks.json").read_text()))


@pytest.mark.cluster
def test_jobs_outlive_daemons_that_are_killed_or_hang_and_a_reboot(tools: None, stage: Path, tmp_path: Path) -> None:
    # PyTorch of this environment, as if EXTRAS=worker had installed it.
    for site in stage.glob("opt/elasticctl/lib/python3*/site-packages"):
        (site / "worker.pth").write_text("/srv/packages\n")
    boots = ("first", "second")
    boot(stage, tmp_path, *(f"/srv/story.py {each}" for each in boots))
    for each in boots:
        print(each, json.loads((tmp_path / f"{each}.json").read_text()))
