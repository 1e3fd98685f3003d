"""A real systemd boots in namespaces with what `make install` has installed; `story.py` tells what happens then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_PERMITTED = 77


@pytest.mark.cluster
def test_jobs_outlive_daemons_that_are_killed_or_hang_and_a_reboot(tools: None, stage: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can boot a machine in namespaces")
    # PyTorch from here, as if EXTRAS=worker had installed it.
    for site in stage.glob("opt/elasticctl/lib/python3*/site-packages"):
        (site / "worker.pth").write_text("/srv/packages\n")
    (stage / "srv").mkdir(exist_ok=True)
    for file in ("tests/systemd/story.py", "tests/cluster/train_small.py", "scripts/install"):
        shutil.copy(ROOT / file, stage / "srv")
    packages = sysconfig.get_path("purelib")

    command = [Path(__file__).with_name("boot.sh"), stage, packages, tmp_path]
    command += [f"/srv/story.py {boot}" for boot in ("first", "second")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NOT_PERMITTED:
        pytest.skip(done.stderr.strip().splitlines()[-1])

    logs = [
        path for path in (tmp_path / name for name in ("agent.log", "controller.log", "systemd.log")) if path.exists()
    ]
    told = "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in logs)
    wrong = (tmp_path / "test.err").read_text() if (tmp_path / "test.err").exists() else ""
    assert done.returncode == 0, f"{done.stderr}\n{told}\n{wrong}"
    for boot in ("first", "second"):
        print(boot, json.loads((tmp_path / f"{boot}.json").read_text()))
