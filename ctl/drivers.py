"""Check of this machine's NVIDIA driver, in a process of its own: a broken driver may never answer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

ANSWERED_WITHIN_S = 30.0
ABSENT = "absent: "
QUESTION = f"""
import pynvml
try:
    pynvml.nvmlInit()
except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
    print("{ABSENT}%s" % error)
except pynvml.NVMLError as error:
    print(error)
"""


@dataclass(frozen=True)
class DriverTrouble:
    """Fault of the driver. `text` is empty where the driver works. `absent`: no driver is installed."""

    text: str
    absent: bool = False


def look() -> DriverTrouble:
    """Return the fault of this machine's driver."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWERED_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return DriverTrouble(f"it has not answered within {ANSWERED_WITHIN_S:.0f} s")
    output = done.stdout.strip() if not done.returncode else f"exit code {done.returncode}"
    return DriverTrouble(output.removeprefix(ABSENT), output.startswith(ABSENT))
