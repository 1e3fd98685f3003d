"""Packages of an interpreter that runs jobs: elasticctl, torch, CUDA, NCCL, Gloo. A process of its own reports them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import msgspec

from .crowd import crowd

ASKED_WITHIN_S = 60.0  # loading torch from a cold network file system takes long

PROBE = r"""
import json, sys
found = {"version": "%d.%d.%d" % sys.version_info[:3]}
try:
    import elasticd
    found["elasticctl"] = elasticd.__version__
except Exception as error:
    found["elasticctl_error"] = "%s: %s" % (type(error).__name__, error)
try:
    import torch
    found["torch"] = torch.__version__
except Exception as error:
    found["torch_error"] = "%s: %s" % (type(error).__name__, error)
else:
    found["cuda"] = torch.version.cuda or ""
    try:
        import torch.distributed as distributed
        found["gloo"] = distributed.is_available() and distributed.is_gloo_available()
        found["nccl"] = distributed.is_available() and distributed.is_nccl_available()
        if found["cuda"]:
            found["architectures"] = torch.cuda.get_arch_list()
            found["available"] = torch.cuda.is_available()
            if found["nccl"]:
                found["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        found["torch_error"] = "%s: %s" % (type(error).__name__, error)
print("\n" + json.dumps(found))
"""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """Packages of an interpreter; "" and False: missing."""

    version: str
    elasticctl: str = ""
    elasticctl_error: str = ""
    torch: str = ""
    torch_error: str = ""
    cuda: str = ""  # the version with which torch is built
    available: bool = False  # whether torch sees a GPU
    architectures: list[str] = []
    nccl: bool = False
    nccl_version: str = ""
    gloo: bool = False


def ask(python: str, environ: Mapping[str, str]) -> Interpreter | str:
    """Return the packages of `python`, or why it does not report them."""
    limit_s = ASKED_WITHIN_S * crowd().patience
    kept = {name: environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in environ}
    try:
        done = subprocess.run(
            [python, "-c", PROBE], cwd="/", env=kept, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it has not loaded torch within {limit_s:.0f} s"
    except OSError as error:
        return f"it cannot be started: {os.strerror(error.errno or 0)}"
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"it ends with exit code {done.returncode}"
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Interpreter)


def numbers(version: str) -> tuple[int, ...]:
    """Return "12.4" or "2.4.1+cu121" as numbers that can be compared."""
    found = []
    for part in version.partition("+")[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)
