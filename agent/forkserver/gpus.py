"""Has a GPU's driver been started in this process? It is of no use in a child of fork, and hangs there or fails."""

from __future__ import annotations

import os
import sys

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dxg")  # NVIDIA's, AMD's, those of Windows below WSL


def started() -> str | None:
    """What shows that it has, or None."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # the one that listed the directory
        if target.startswith(DEVICES):
            return f"it has opened {target}"
    is_initialized = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if is_initialized is not None and is_initialized():
        return "CUDA has been started in it"
    return None
