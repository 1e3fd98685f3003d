"""`train_small` as a worker with a GPU whose collectives the library never ends (nccl #1777): its abort does not return.

The worker is the one whose name ends with STUCK. Its groups in memory are real; one on a device stands beside them, and does
nothing but hang.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import train_small

from elasticd.worker.communication import communicator


class Stuck:
    """A group on a device."""

    def abort(self) -> None:
        threading.Event().wait()


if os.environ["ELASTICD_WORKER"].endswith(os.environ["STUCK"]):
    build = communicator.build_host_groups

    def build_with_stuck(*args: Any, **options: Any) -> Any:
        return replace(build(*args, **options), device=Stuck())

    communicator.build_host_groups = build_with_stuck

train_small.main()
