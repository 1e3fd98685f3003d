"""One short history of each framework's script: resizes, kills, a preemption, a restart. `make verify-scripts` does more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verification.scripts.__main__ import SCRIPTS, missing

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 800.0  # on a machine that does much else


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What `verification.scripts --quick` says, and prints."""
    path = tmp_path_factory.mktemp("scripts") / "scripts.json"
    command = [sys.executable, "-m", "verification.scripts", "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert path.exists(), done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_ends_as_it_does_alone(script: str, found: tuple[dict[str, Any], str]) -> None:
    if why := missing(script):
        pytest.skip(why)
    document, printed = found
    (verdict,) = (each for each in document["histories"] if each["script"] == script)
    assert verdict["problems"] == [], printed
    assert (verdict["differing_bits"], verdict["differing_logs"], verdict["samples"]) == (0, 0, []), printed
    assert verdict["kills"] >= 1, printed
    assert verdict["restarts"] >= 1, printed


def test_a_ddp_script_ends_as_it_did_under_torchrun(found: tuple[dict[str, Any], str]) -> None:
    document, printed = found
    assert document["ddp"] == {"ddp": 0}, printed
