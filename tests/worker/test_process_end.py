"""A process may end at any moment after it has used communicators."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Imports once, and forks a process for each moment, which runs the interpreter's whole shutdown.
PROGRAM = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import torch, communicator_world

def run(communicator):
    tensor = torch.ones(4)
    communicator.wait(communicator.all_reduce(tensor))
    return tensor.tolist()

children = {}
for delay_s in sys.argv[2:]:
    pid = os.fork()
    if pid == 0:
        assert communicator_world.run_ranks(3, run) == [[3.0] * 4] * 3
        time.sleep(float(delay_s))
        sys.exit(7)
    children[pid] = delay_s
codes = {delay_s: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, delay_s in children.items()}
print(json.dumps(codes))
"""
MOMENTS_S = ("0.0", "0.99", "1.0", "1.01", "1.02")  # communicators are destroyed a second after they were retired


@pytest.mark.cluster
def test_a_process_ends_in_order_while_its_communicators_are_destroyed() -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), *MOMENTS_S]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(MOMENTS_S, 7), done.stderr
