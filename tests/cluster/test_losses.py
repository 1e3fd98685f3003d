"""Workers killed at every point of a step, a join and a recovery; a burst of orders. `make verify-bits` does far more of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 800.0  # on a machine that does much else
POINTS = 12  # of some twenty: whether a victim comes to its point before it is no longer needed is a race


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What `verification.bits` says of its tour, and prints: the story of each history that failed."""
    path = tmp_path_factory.mktemp("bits") / "bits.json"
    command = [sys.executable, "-m", "verification.bits", "--tour", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert path.exists(), done.stdout + done.stderr
    document: dict[str, Any] = json.loads(path.read_text())
    return document["totals"], done.stdout


def test_workers_killed_at_any_point_cost_no_bit_and_no_step(tour: tuple[dict[str, Any], str]) -> None:
    totals, printed = tour
    assert totals["failed"] == [], printed
    assert (totals["differing_bits"], totals["lost_steps"]) == (0, 0), printed
    assert len(totals["kills_by_point"]) >= POINTS, printed
    assert totals["leaders_killed"] > 0, printed


def test_a_burst_of_orders_ends_in_the_last_one_without_finishing_all_between(tour: tuple[dict[str, Any], str]) -> None:
    totals, printed = tour
    assert totals["cancelled_orders"] >= 5, printed
