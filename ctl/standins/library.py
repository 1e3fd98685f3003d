"""Build of the substitute for the driver's library, and the shipped descriptions of servers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ...protocol.errors import UserError

SOURCE = Path(__file__).with_name("nvml.c")
SERVERS = Path(__file__).with_name("servers")
LIBRARY = "libnvidia-ml.so.1"
BUILT_WITHIN_S = 60.0
FLAGS = ("-shared", "-fPIC", "-O1", "-pthread", f"-Wl,-soname,{LIBRARY}")


def models() -> tuple[str, ...]:
    """Return the names of the described servers."""
    return tuple(sorted(path.stem for path in SERVERS.glob("*.txt")))


def description(model: str) -> str:
    """Return the description of a server. Raises UserError."""
    if model not in models():
        raise UserError(f"there are no stand-ins of {model!r}: {', '.join(models())}")
    return (SERVERS / f"{model}.txt").read_text(encoding="utf-8")


def compiler() -> str:
    """Return the path of a C compiler. Raises UserError if there is none."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise UserError(
            "stand-ins for GPUs are built with a C compiler, and there is none here: install gcc (Debian: apt install gcc)"
        )
    return found


def build(directory: Path, *flags: str) -> Path:
    """Build the library in `directory` and return its path. Raises UserError without a C compiler."""
    target = directory / LIBRARY
    command = [compiler(), *FLAGS, *flags, "-o", str(target), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILT_WITHIN_S, check=False)
    if done.returncode:
        raise UserError(f"the stand-ins for GPUs cannot be built: {' '.join(command)}\n{done.stderr.strip()[-1000:]}")
    return target
