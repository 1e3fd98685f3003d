"""Compares operators on this processor and on emulated ones: `python -m verification.processors`.

Needs `qemu-x86_64` (Debian: qemu-user or qemu-user-static) in PATH, or its path in $QEMU. The emulated processors have other
instruction sets (SSE4.2, AVX2 with FMA), another vendor, and other approximations of 1/x and 1/sqrt(x), which qemu computes
exactly. qemu 7 has no AVX-512. Exit code 1: some result differs under `heterogeneous`, or none would without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from elasticd.protocol.variables import PINNED

EMULATED = ("Nehalem", "Haswell", "EPYC-Rome")
ONE_THREAD = {name: PINNED[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def computed(fixed: bool, emulator: str = "", processor: str = "") -> dict[str, str]:
    """Return the digests on a processor; "": this one. fixed: as under `determinism: heterogeneous`."""
    command = [str(Path(sys.executable).resolve()), "-m", "verification.processors.operators", *["--fixed"] * fixed]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in [os.getcwd(), *sys.path] if path),
        **({"QEMU_CPU": processor} if emulator else {}),
        **(PINNED if fixed else ONE_THREAD),
    }
    output = subprocess.run(
        [emulator, *command] if emulator else command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        check=True,
    ).stdout  # fmt: skip
    found: dict[str, str] = json.loads(output.splitlines()[-1])
    return found


def main() -> int:
    emulator = os.environ.get("QEMU") or shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if emulator is None:
        print("qemu-x86_64 is not in PATH: apt-get install qemu-user")
        return 2
    failed = False
    for fixed in (False, True):
        here = computed(fixed)
        for processor in EMULATED:
            there = computed(fixed, emulator, processor)
            differ = [case for case in here if here[case] != there[case]]
            what = "heterogeneous" if fixed else "elastic, one thread"
            print(f"{what}: here and on {processor}: {len(differ)} of {len(here)} operators differ", flush=True)
            for case in differ if fixed else []:
                print(f"  {case}")
            failed |= bool(differ) is fixed
    return failed


if __name__ == "__main__":
    sys.exit(main())
