"""One short history of each framework's script: resizes, kills, a preemption, a restart. `make verify-scripts` does more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verification.scripts.__main__ import SCRIPTS, missing

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 800.0  # on a machine that does much else


def test_each_script_ends_as_it_does_alone_and_one_of_ddp_as_under_torchrun(tmp_path: Path) -> None:
    """All in one test: `verification.scripts --quick` plays them together."""
    path = tmp_path / "scripts.json"
    command = [sys.executable, "-m", "verification.scripts", "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    printed = done.stdout
    assert path.exists(), printed + done.stderr
    document = json.loads(path.read_text())
    for verdict in document["histories"]:
        assert verdict["problems"] == [], printed
        assert (verdict["differing_bits"], verdict["differing_logs"], verdict["samples"]) == (0, 0, []), printed
        assert verdict["kills"] >= 1, printed
        assert verdict["restarts"] >= 1, printed
    assert {verdict["script"] for verdict in document["histories"]} == {each for each in SCRIPTS if not missing(each)}
    assert document["ddp"] == {"ddp": 0}, printed
