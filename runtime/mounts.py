"""File system of a path, from /proc/self/mountinfo, and whether two machines see the same directory.

Two machines see the same directory if both have mounted the same export of the same file server, and the directory is at the
same place in it. A directory on a local disk is the same only for processes of this machine in this boot. Nothing is read or
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
    """A mounted file system. `source`: a device, or SERVER:/EXPORT; `root`: the mounted part of it."""

    at: str
    kind: str
    source: str
    device: str = ""
    root: str = "/"

    @property
    def shared(self) -> bool:
        """Whether other machines may see this file system, too."""
        return ON_NETWORK.fullmatch(self.kind) is not None


def mount_of(path: Path, proc: Path = Path("/proc")) -> Mount:
    """Return the mount in which `path` lies, or would lie. May block where a file server hangs."""
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
    """Return what identifies the directory across machines. May block where a file server hangs."""
    found = mount_of(path, proc)
    within = os.path.realpath(path)[len(found.at.rstrip("/")) :]
    place = f"{found.root.rstrip('/')}{within}"
    if found.shared:
        return Storage(path=str(path), kind=found.kind, place=f"{found.source.rstrip('/')}{place}", shared=True)
    boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Storage(path=str(path), kind=found.kind, place=f"{boot} {found.device} {place}")


def told_within(path: Path, limit_s: float) -> Storage:
    """Return the result of `storage_of` within `limit_s` seconds.

    If the file system hangs, the kind is "", and a thread keeps waiting for it."""
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
