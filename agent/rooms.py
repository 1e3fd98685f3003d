"""A job's own /tmp and /dev/shm on a server, which go with it.

Theory of operation
-------------------
Each job has a *room* on each of its servers: two directories that belong to its account, one on the disk and one in
memory (below the machine's /dev/shm, so that its size bounds all). Every process of the job sees them as /tmp and
/dev/shm: it has a mount namespace of its own, in which they lie over the machine's. A room is the job's and not a
worker's, since the workers of one job exchange tensors through shared memory. It is removed when the job's last worker
on this server has ended.

Only who has CAP_SYS_ADMIN may do that, so it comes before root's rights are given up (`privileges.move_in`). A worker that
is forked from a warm process is where that process is; so a warm process belongs to one room (`forkserver.key`). A room
that was removed and is made anew has another name: nobody is forked into the ruins of the old one.

What is mounted on the machine later (homes, by an automounter) appears in the room as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .accounts import Account, acting_as
from .lines import let_pass
from .scratch import remove_tree

log = logging.getLogger(__name__)

TMP, SHARED_MEMORY = Path("/tmp"), Path("/dev/shm")
MODE = 0o1700  # as those that it stands for, but for others


@dataclass
class _Room:
    name: str
    workers: set[str] = field(default_factory=set)


class Rooms:
    """The rooms of one agent's jobs. Its methods are for any thread."""

    def __init__(self, root: Path, tag: str, shared: Path = SHARED_MEMORY) -> None:
        """`root`: the directory of rooms on the disk. `shared`: the file system in memory where their other halves are made."""
        self._roots = {TMP: root, SHARED_MEMORY: shared / f"elasticctl-{tag}"}
        self._lock = threading.Lock()
        self._rooms: dict[str, _Room] = {}  # by job

    def mounts(self, name: str) -> list[tuple[str, str]]:
        """The bind mounts of a room: each directory, and the mount point that it covers."""
        return [(str(root / name), str(over)) for over, root in self._roots.items()]

    def make(self, job: str, worker: str, account: Account) -> str:
        """The room of a job, for one of its workers. Returns its name. Raises OSError."""
        with self._lock:
            room = self._rooms.get(job)
            if room is None:
                room = _Room(f"{job}-{secrets.token_hex(4)}")
                for root in self._roots.values():
                    _make(root, room.name, account)
                self._rooms[job] = room
            room.workers.add(worker)
            return room.name

    def adopt(self, job: str, worker: str, name: str) -> None:
        """An earlier agent of this server has made the room `name` for this worker."""
        with self._lock:
            self._rooms.setdefault(job, _Room(name)).workers.add(worker)

    def leave(self, job: str, worker: str, account: Account) -> None:
        """A worker of the job has ended. The room is removed with the last one."""
        with self._lock:
            room = self._rooms.get(job)
            if room is None:
                return
            room.workers.discard(worker)
            if room.workers:
                return
            del self._rooms[job]
        self.remove(room.name, account)

    def remove(self, name: str, account: Account) -> None:
        for root in self._roots.values():
            path = root / name
            try:
                with acting_as(account):
                    for entry in os.scandir(path):
                        if entry.is_dir(follow_symlinks=False):
                            remove_tree(entry.path)
                        else:
                            os.unlink(entry.path)
                path.rmdir()
            except FileNotFoundError:
                continue
            except (OSError, RecursionError) as error:
                log.warning("%s cannot be removed: %s", path, error)

    def others(self, known: frozenset[str]) -> list[tuple[str, int]]:
        """Names of the rooms on this server that are not `known`, each with the user id of its owner."""
        found: dict[str, int] = {}
        for root in self._roots.values():
            with contextlib.suppress(OSError), os.scandir(root) as entries:
                for entry in entries:
                    if entry.name not in known and entry.is_dir(follow_symlinks=False):
                        found[entry.name] = entry.stat(follow_symlinks=False).st_uid
        return sorted(found.items())

    def close(self) -> None:
        """Leave no empty directories behind."""
        for root in self._roots.values():
            with contextlib.suppress(OSError):
                root.rmdir()


def _make(root: Path, name: str, account: Account) -> None:
    """Raises OSError."""
    if os.path.lexists(root) and (root.is_symlink() or root.lstat().st_uid != os.getuid()):
        root.rename(root.with_name(f".{root.name}-{secrets.token_hex(4)}"))  # somebody was here first, to keep us out
    root.mkdir(mode=0o711, parents=True, exist_ok=True)
    let_pass(root)
    path = root / name
    path.mkdir(mode=0o700)
    path.chmod(MODE)
    if not account.own:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def hidden(paths: Iterable[Path]) -> Path | None:
    """The first of these that a room would hide from a job."""
    return next((each for each in paths for over in (TMP, SHARED_MEMORY) if each.resolve().is_relative_to(over)), None)
