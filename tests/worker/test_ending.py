"""The end of a process with threads in the library's code."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
from datetime import timedelta
import torch.distributed as dist
from elasticd.worker.ending import freeze_threads_at_exit

def wait(store):
    while True:
        try:
            store.wait(["what nobody sets"], timedelta(milliseconds=2))
        except dist.DistStoreError:
            entered.set()

entered = threading.Event()
for _ in range(4):
    threading.Thread(target=wait, args=(dist.HashStore(),), daemon=True).start()
entered.wait()
freeze_threads_at_exit()
sys.exit(3)
"""


def test_threads_in_the_library_s_code_do_not_change_how_a_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (3, "")
