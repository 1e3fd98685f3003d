"""Secrets by file: the job's processes have them, and nothing that is kept or shown does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from elasticd.protocol.model import JobPhase

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]
VALUE = "hf_J3kq9Zx0vPq7"
SCRIPT = """
import os, time
open("seen", "w").write(os.environ["TOKEN"][::-1])
while not os.path.exists("enough"):
    time.sleep(0.05)
"""


def test_a_secret_reaches_the_job_and_no_record_log_or_command_line(make_cluster: MakeCluster, tmp_path: Path) -> None:
    script, file = tmp_path / "job.py", tmp_path / "token"
    script.write_text(SCRIPT)
    file.write_text(f"{VALUE}\n")
    cluster = make_cluster(servers=1, slots=1)
    job = cluster.submit(gpus=(1, 1), virtual_workers=1, script=script, restarts=0, secrets={"TOKEN": str(file)})
    seen = cluster.directory / "seen"
    cluster.until("the job has read its secret", lambda: seen.exists() and seen.read_text() == VALUE[::-1])
    kept = [Path(top, name) for top, _, names in os.walk(cluster.directory) for name in names]
    assert [path for path in kept if path != file and path.is_file() and VALUE.encode() in path.read_bytes()] == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if VALUE in " ".join(p.info["cmdline"] or [])]
    view = msgspec.json.encode(cluster.job(job))
    assert VALUE.encode() not in view
    assert str(file).encode() in view
    (cluster.directory / "enough").touch()
    cluster.until_final(job)

    file.unlink()
    job = cluster.submit(gpus=(1, 1), virtual_workers=1, script=script, restarts=0, secrets={"TOKEN": str(file)})
    assert cluster.until_over(job).phase is JobPhase.FAILED
    assert f"secret TOKEN: {file} cannot be read" in cluster.job(job).reason
    assert "No such file" in cluster.job(job).reason
