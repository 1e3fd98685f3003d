"""Two users with quotas on one host: borrowed GPUs return to their owner while both train, as typed and seen by the users."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.campaign]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "cluster" / "train_small.py"
ELASTICCTL = Path(sys.executable).with_name("elasticctl")
KEYS = "~/.local/state/elasticctl/local/controller/keys"
PATIENCE_S = 150.0
POLICY = b"""policy: max-min
quotas:
  users:
    alice: {gpus: 3}
    bob: {gpus: 1, jobs: 1}
"""


def test_what_was_borrowed_goes_back_to_its_owner_and_no_process_ends_that_need_not(
    make_lab: Callable[..., Any], same_bits: Callable[..., None], tmp_path: Path
) -> None:
    lab = make_lab("gpu1", users=("alice", "bob"), ssh=True)
    host, shared = lab["gpu1"], tmp_path / "shared"

    def types(user: str, line: str, check: bool = True) -> str:
        done = host.shell(f"export PATH={ELASTICCTL.parent}:$PATH; cd {shared}; {line}", user=user, check=check)
        return str(done.stdout + done.stderr)

    def until(line: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, seen := types("bob", line), re.MULTILINE | re.DOTALL):
            assert time.monotonic() < deadline, (
                f"{pattern} does not come:\n{seen}\n{types('root', 'elasticctl events')}"
            )
            time.sleep(0.3)
        return seen

    def processes(user: str) -> set[str]:
        return set(host.shell(f"pgrep -u {user} -f train_small || true").stdout.split())

    host.write("/root/hosts.txt", b"gpu1 slots=4\n")
    host.write("/root/quotas.yaml", POLICY)
    types("root", f"elasticctl up --hosts /root/hosts.txt --checkpoints {shared}/checkpoints")
    assert "quotas: alice: 3 GPUs; bob: 1 GPU, 1 job\n" in types("root", "elasticctl policy set /root/quotas.yaml")
    address = f"--address tcp://{lab.address('gpu1')}:7700"
    for user in ("alice", "bob"):
        types("root", f"elasticctl keys add user:{user} --keys {KEYS} {address} --out /home/{user}/{user}.key")
        types("root", f"chown {user} /home/{user}/{user}.key")
        types(user, f"elasticctl login /home/{user}/{user}.key")

    def submit(user: str, epochs: int) -> None:
        train = f"{sys.executable} {SCRIPT} {shared}/{user}.pt --epochs {epochs} --pace 0.1"
        types(user, f"elasticctl submit --name {user}s --gpus 1:4 --virtual-workers 4 -- {train}")

    submit("bob", 10)
    until("elasticctl status", r"bobs-1 +bob +running +4 ")
    before = processes("bob")
    refused = types("bob", "elasticctl submit -- true", check=False)
    assert "bob has 1 unfinished jobs already, and may have 1 (quotas)" in refused
    submit("alice", 3)
    until("elasticctl status", r"bobs-1 +bob +running +1 .*alices-2 +alice +running +3 ")
    assert "gives way to quotas" in types("bob", "elasticctl status bobs")
    kept = processes("bob")
    assert len(kept) < len(before)
    assert kept < before, "those who stay are the same processes"
    types("alice", "elasticctl wait alices")
    until("elasticctl status", r"bobs-1 +bob +running +4 ")
    types("bob", "elasticctl wait bobs")
    assert "restarted" not in types("root", "elasticctl events")
    for user, epochs in (("alice", "3"), ("bob", "10")):
        same_bits(shared / f"{user}.pt", shared / f"{user}-alone.pt", "--epochs", epochs, virtual_workers=4)
    types("root", "elasticctl down --abandon --purge --yes", check=False)
