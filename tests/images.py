"""A container image for tests: an almost empty root file system, made on this machine. Python and torch come in as mounts."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = "localhost/elasticctl-tests:1"
DIRECTORIES = ("usr", "proc", "sys", "dev", "tmp", "etc", "root", "run", "var/tmp")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FILES = {"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"}


def mounts() -> tuple[str, ...]:
    """Return the directories, read-only, that a container of this image needs for this interpreter and its packages."""
    needed = {"/usr", str(ROOT), str(Path(sys.prefix)), str(Path(sys.base_prefix).resolve())}
    return tuple(f"{path}:ro" for path in sorted(needed))


def archive() -> bytes:
    """Return the root file system as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def needed() -> str:
    """Return why podman is not here, and cannot be installed; "": it is here."""
    done = subprocess.run([ROOT / "scripts/need-podman"], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def install() -> str:
    """Import the image into this account's store. Returns why podman cannot run here; "": it can."""
    if problem := needed():
        return problem
    made = subprocess.run(["podman", "import", "-", IMAGE], input=archive(), capture_output=True, check=False)
    if made.returncode:
        return f"podman import: {made.stderr.decode(errors='replace').strip()}"
    command = ["podman", "info", "--format", "{{.Store.GraphDriverName}}"]
    driver = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return "" if driver == "overlay" else f"podman's images are kept with the driver {driver}, not overlay"


def containers_of(worker: str) -> list[int]:
    """Return the processes of this machine in whose environment the worker is named, and that are in a container."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"ELASTICD_WORKER={worker}".encode() in environment and b"container=podman" in environment:
                found.append(int(name))
    return sorted(found)
