"""Description of the machine on which a measurement was made."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str]:
    """Return processor, memory, versions, and the present load."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{os.cpu_count()} cores, {_first('/proc/cpuinfo', 'model name')}",
        "memory": f"{int(_first('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "torch": version("torch"),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _first(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown 0"
