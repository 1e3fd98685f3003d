"""A process may end at any moment after it has used communicators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import torch, communicator_world
def run(communicator):
    tensor = torch.ones(4)
    communicator.wait(communicator.all_reduce(tensor))
    return tensor.tolist()
assert communicator_world.run_ranks(3, run) == [[3.0] * 4] * 3
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.99, 1.0, 1.01, 1.02])
def test_a_process_ends_in_order_while_its_communicators_are_destroyed(delay_s: float) -> None:
    """They are, a second after they were retired."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(delay_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
