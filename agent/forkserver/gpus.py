"""Whether a GPU driver has been started in this process: after a fork its state is unusable, and calls hang or fail."""

from __future__ import annotations

import os
import sys

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, of Windows below WSL


def started() -> str | None:
    """Return the evidence that a driver has been started; None if there is none."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # the descriptor of the directory listing itself
        if target.startswith(DEVICES):
            return f"it has opened {target}"
    is_initialized = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if is_initialized is not None and is_initialized():
        return "CUDA has been started in it"
    return None
