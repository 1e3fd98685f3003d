"""Jobs that are paused, cancelled, finished or requeued go on with equal bits; with other code only if that is wanted."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol import exits

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("train_small.py")
EPOCHS = ("--epochs", "40", "--size", "128")


class Desk:
    """`elasticctl` for one cluster."""

    def __init__(self, cluster: Any) -> None:
        self._before = [sys.executable, "-m", "elasticd.ctl.main", "--controller", cluster.address]
        self._cwd = cluster.directory

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*self._before, *arguments], cwd=self._cwd, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, (arguments, done)
        return done


def digest(path: Path) -> str:
    """Of what a file contains: pickled bytes differ by which of equal objects are the same one."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())
        elif isinstance(value, dict):
            for key, each in value.items():
                found.update(repr(key).encode())
                add(each)
        elif isinstance(value, list):
            for each in value:
                add(each)
        else:
            found.update(repr(value).encode())

    add(torch.load(path, weights_only=True))
    return found.hexdigest()


def test_what_is_stopped_goes_on_with_equal_bits(make_cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster = make_cluster(servers=2, slots=2)
    desk = Desk(cluster)
    outputs = {name: tmp_path / name / "model.pt" for name in ("alone", "paused", "cancelled", "finished", "moved")}
    for output in outputs.values():
        output.parent.mkdir()
    enough = tmp_path / "enough"
    pace = ("--pace", "0.05", "--enough", str(enough))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC")}
    environment["ELASTIC_VIRTUAL_WORKERS"] = "4"
    subprocess.run([sys.executable, str(SCRIPT), str(outputs["alone"]), *EPOCHS], env=environment, check=True)

    paused = cluster.submit(str(outputs["paused"]), *EPOCHS, *pace, gpus=(1, 2), name="paused")
    cancelled = cluster.submit(str(outputs["cancelled"]), *EPOCHS, *pace, gpus=(1, 2), name="cancelled")
    for job in (paused, cancelled):
        cluster.until_step(job, 5)
    told = json.loads(desk("pause", paused, "--json").stdout)["jobs"][0]
    assert told["saved_step"] == told["step"] >= 5
    assert "its state is saved" in desk("cancel", cancelled).stdout
    assert "after" in desk("export", cancelled, str(tmp_path / "cancelled.pt")).stdout
    exported = torch.load(tmp_path / "cancelled.pt", weights_only=True)
    assert exported["step"] >= 5
    assert exported["model"].keys() == torch.load(outputs["alone"], weights_only=True)["model"].keys()
    directory = next(cluster.directory.glob(f"checkpoints/{cancelled}.*"))
    files = sorted(file.name for file in directory.iterdir())
    enough.touch()
    assert not cluster.job(paused).workers, "it does not run by itself"
    desk("resume", paused)
    shown = tmp_path / "shown.yaml"
    done = desk("submit", "--resume", cancelled, "--dry-run")
    assert "the file adds PATH" in done.stderr, "the other job has no variables"
    shown.write_text(done.stdout)
    document = json.loads(desk("submit", "--resume", cancelled, "--dry-run", "--json").stdout)
    assert document["resume"]["step"] == cluster.job(cancelled).saved_step
    goes_on = desk("submit", str(shown)).stdout.strip()
    recorded = json.loads(desk("status", goes_on, "--json").stdout)["spec"]
    assert {field: document[field] for field in recorded if field != "env"} == {
        field: value for field, value in recorded.items() if field != "env"
    }, "what the dry run shows is what is submitted"
    python = ("--", sys.executable, str(SCRIPT))
    moved = desk(
        *("submit", "--resume", str(directory), "--name", "moved", "--virtual-workers", "4", "--gpus", "1:2"),
        *(*python, str(outputs["moved"]), *EPOCHS),
    ).stdout.strip()
    first = cluster.submit(str(outputs["finished"]), "--epochs", "10", "--size", "128", gpus=(1, 1), name="first")
    cluster.until_final(first)
    assert "has finished: give it more to do" in desk("submit", "--resume", first, code=1).stderr
    assert "has finished: give it more to do" in desk("submit", "--resume", first, "--dry-run", code=1).stderr
    more = desk("submit", "--resume", first, *python, str(outputs["finished"]), *EPOCHS).stdout.strip()
    for job in (paused, goes_on, moved, more):
        view = cluster.until_final(job)
        assert view.step == view.total_steps - 1
    assert sorted(file.name for file in directory.iterdir()) == files, "the other job's files stay as they are"
    assert {name: digest(output) for name, output in outputs.items()} == dict.fromkeys(
        outputs, digest(outputs["alone"])
    )


def test_other_code_or_data_go_on_only_if_that_is_wanted(make_cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=2)
    desk, script, enough = Desk(cluster), tmp_path / "mine.py", tmp_path / "enough"
    script.write_text(SCRIPT.read_text())
    arguments = (str(tmp_path / "model.pt"), *EPOCHS, "--pace", "0.05", "--enough", str(enough))
    job = cluster.submit(*arguments, gpus=(1, 2), script=script)
    cluster.until_step(job, 5)
    desk("cancel", job)
    enough.touch()
    larger = ("--", sys.executable, str(script), str(tmp_path / "model.pt"), "--epochs", "40", "--size", "256")
    done = desk("submit", "--resume", job, "--wait", *larger, code=exits.UNLIKE)
    assert f"cannot go on from {job}" in done.stderr
    assert "has 128 samples" in done.stderr
    script.write_text(script.read_text().replace("lr=0.1", "lr=0.2"))
    done = desk("submit", "--resume", job, "--wait", code=exits.OTHER_CODE)
    assert f"cannot go on from {job}" in done.stderr
    assert "mine.py: not the code that the job began with; edited at" in done.stderr
    assert " finished" in desk("submit", "--resume", job, "--with-new-code", "--wait").stderr
