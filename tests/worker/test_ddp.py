"""DistributedDataParallel with the canonical hook. `make verify-bits` compares whole trainings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.cluster
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.cluster)])
def test_the_hook_gives_ddp_the_sums_of_the_canonical_tree(ranks: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    script = str(Path(__file__).with_name("ddp_ranks.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script], env=environment, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr
