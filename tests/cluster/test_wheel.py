"""A wheel of the project, installed where nothing else of it is, runs a cluster and a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("src", "pyproject.toml", "README.md", "LICENSE")
SCRIPT = """
import torch
import elasticctl as elastic
run = elastic.join()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = run.prepare(model, optimizer, (torch.randn(32, 2), torch.randn(32, 1)), batch_size=4)
for _ in run.epochs(2):
    for x, y in batches:
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
"""


def run(*command: str | Path, cwd: Path, home: Path) -> str:
    kept = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.cluster
def test_a_wheel_in_a_fresh_environment_runs_a_cluster_and_a_job(tmp_path: Path) -> None:
    for name in BUILT_FROM:  # links among them become what they point to; a build leaves nothing in the checkout
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, tmp_path / "tree" / name, ignore=ignored)
        else:
            shutil.copy(source, tmp_path / "tree" / name)
    fresh, work = tmp_path / "fresh", tmp_path / "work"
    work.mkdir()
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", work, tmp_path / "tree", cwd=work, home=tmp_path)
    (wheel,) = work.glob("elasticctl-*.whl")
    run(sys.executable, "-m", "venv", fresh, cwd=work, home=tmp_path)
    python, elasticctl = fresh / "bin" / "python", fresh / "bin" / "elasticctl"
    run(python, "-m", "pip", "-q", "install", "--no-deps", wheel, cwd=work, home=tmp_path)
    (site,) = fresh.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # what the wheel depends on, which is large
    where = run(python, "-c", "import elasticd; print(elasticd.__file__)", cwd=work, home=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    (work / "train.py").write_text(SCRIPT)
    try:
        run(elasticctl, "up", "--servers", "1", "--gpus", "2", cwd=work, home=tmp_path)
        job = run(elasticctl, "submit", "--gpus", "1:2", "--", python, "train.py", cwd=work, home=tmp_path).strip()
        run(elasticctl, "wait", job, cwd=work, home=tmp_path)
        assert (work / "model.pt").exists()
    finally:
        run(elasticctl, "down", "--purge", "--yes", cwd=work, home=tmp_path)
