"""A script is edited while its job runs: whoever comes with the new text is refused, and training goes on with the old one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.ctl.snapshots import Packed
from elasticd.protocol import exits
from elasticd.protocol.messages import Scale, Submit, Submitted
from elasticd.protocol.model import CheckpointSpec, GpuRange, JobSpec

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("train_small.py")
USUAL = ("--epochs", "60", "--size", "128")


def model_of(path: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(path, weights_only=True)["model"])


def test_a_newcomer_with_an_edited_script_is_refused_by_name_and_no_bit_of_the_result_differs(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=2)
    script, output, alone = tmp_path / "mine.py", tmp_path / "model.pt", tmp_path / "alone.pt"
    shutil.copy(SCRIPT, script)
    enough = tmp_path / "enough"
    job = cluster.submit(str(output), *USUAL, "--pace", "0.05", "--enough", str(enough), gpus=(1, 2), script=script)
    cluster.client.ask(Scale(job=job, share=1))
    cluster.until_share(job, 1)
    cluster.until_step(job, 1)
    script.write_text(script.read_text().replace("lr=0.1", "lr=0.2"))
    cluster.client.ask(Scale(job=job, share=2))

    def refused() -> bool:
        return (
            f"exit code {exits.OTHER_CODE}: mine.py: not the code that the job began with; edited at" in cluster.story()
        )

    cluster.until("the newcomer is refused", refused)
    enough.touch()
    view = cluster.until_final(job)
    assert view.restarts == 0, cluster.story()
    environment = {**os.environ, "ELASTIC_VIRTUAL_WORKERS": "4"}
    subprocess.run([sys.executable, str(SCRIPT), str(alone), *USUAL], env=environment, check=True, timeout=300)
    expected, found = model_of(alone), model_of(output)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_job_in_a_snapshot_does_not_mind_what_becomes_of_the_directory_that_it_was_submitted_from(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    work, alone = tmp_path / "work", tmp_path / "alone.pt"
    work.mkdir()
    shutil.copy(SCRIPT, work / "mine.py")
    enough = tmp_path / "enough"
    packed = Packed()
    spec = JobSpec(
        name="job",
        command=(sys.executable, "mine.py", "model.pt", *USUAL, "--pace", "0.05", "--enough", str(enough)),
        gpus=GpuRange(min=1, max=2),
        virtual_workers=4,
        workdir=str(work),
        checkpoint=CheckpointSpec(every_s=1.0),
        user="tester",
    )
    spec = packed.take(spec)
    assert spec.snapshot is not None
    packed.send(Asking(cluster.client), spec)  # type: ignore[arg-type]
    shutil.rmtree(work)  # the job is still to be submitted
    answer = cluster.client.ask(Submit(spec=spec))
    assert isinstance(answer, Submitted), answer
    cluster.client.ask(Scale(job=answer.job, share=1))
    cluster.until_share(answer.job, 1)
    cluster.until_step(answer.job, 1)
    work.mkdir()
    (work / "mine.py").write_text("raise SystemExit('the new text')")
    cluster.client.ask(Scale(job=answer.job, share=2))
    cluster.until_share(answer.job, 2)
    enough.touch()
    cluster.until_final(answer.job)
    environment = {**os.environ, "ELASTIC_VIRTUAL_WORKERS": "4"}
    subprocess.run([sys.executable, str(SCRIPT), str(alone), *USUAL], env=environment, check=True, timeout=300)
    expected, found = model_of(alone), model_of(work / "model.pt")
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    def copies() -> list[Path]:
        return list(tmp_path.glob("s*/jobs/*/code-*"))

    cluster.until("the copies are gone", lambda: not copies())


class Asking:
    """What `Packed.send` needs of a context."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def ask(self, request: Any, answer: type[Any], timeout_s: float = 10.0) -> Any:
        found = self._client.ask(request, timeout_s)
        assert isinstance(found, answer), found
        return found
