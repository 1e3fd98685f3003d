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

from elasticd.protocol import exits
from elasticd.protocol.messages import Scale

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
