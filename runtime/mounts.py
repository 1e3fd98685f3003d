"""On which file system a path lies: what /proc/self/mountinfo tells, and whether two machines see the same directory.

A directory is the same one on two machines if both have mounted the same export of the same file server, and it lies at the same
place in it; on a disk of a machine's own it is the same only for processes of this machine, in this boot. Nothing is read or
written in the directory itself, which users may control.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from ..protocol.model import Storage

IN_MEMORY = ("tmpfs", "ramfs")
ON_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|lustre|gpfs|beegfs|ceph|glusterfs|afs|9p|virtiofs|pvfs2|orangefs|fuse\..+"
)

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mounted file system. `source`: a device, or SERVER:/EXPORT; `root`: what of it is mounted."""

    at: str
    kind: str
    source: str
    device: str = ""
    root: str = "/"

    @property
    def shared(self) -> bool:
        """Do other machines see it, too?"""
        return ON_NETWORK.fullmatch(self.kind) is not None


def mount_of(path: Path, proc: Path = Path("/proc")) -> Mount:
    """Where `path` lies, or would. May hang where a file server does."""
    real = os.path.realpath(path)
    best = Mount("/", "unknown", "")
    for line in (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        _, _, device, root, at, *_ = (_unescaped(word) for word in before.split(" "))
        kind, source, *_ = (_unescaped(word) for word in after.split(" "))
        if (real == at or real.startswith(at.rstrip("/") + "/")) and len(at) >= len(best.at):
            best = Mount(at, kind, source, device, root)
    return best


def _unescaped(word: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)


def storage_of(path: Path, proc: Path = Path("/proc")) -> Storage:
    """What tells whether another machine sees the same directory. May hang likewise."""
    found = mount_of(path, proc)
    within = os.path.realpath(path)[len(found.at.rstrip("/")) :]
    place = f"{found.root.rstrip('/')}{within}"
    if found.shared:
        return Storage(path=str(path), kind=found.kind, place=f"{found.source.rstrip('/')}{place}", shared=True)
    boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Storage(path=str(path), kind=found.kind, place=f"{boot} {found.device} {place}")


def told_within(path: Path, limit_s: float) -> Storage:
    """The same, of a file system that may hang: then its kind is "". A thread is left behind that waits for it."""
    found: list[Storage] = []

    def look() -> None:
        try:
            found.append(storage_of(path))
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=look, daemon=True, name="storage")
    thread.start()
    thread.join(limit_s)
    return found[0] if found else Storage(path=str(path))
