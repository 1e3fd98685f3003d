"""A job's own /tmp and /dev/shm on a server, which are removed with it.

Theory of operation
-------------------
Each job has a *room* on each of its servers: two directories that belong to its account, one on the disk and one in
memory (below the machine's /dev/shm, so that its size bounds all). Every process of the job sees them as /tmp and
/dev/shm: it has a mount namespace of its own, in which they lie over the machine's. A room belongs to the job and not
to a worker, since the workers of one job exchange tensors through shared memory. It is removed when the job's last
worker on this server has ended.

Mounting needs CAP_SYS_ADMIN, so it comes before root's rights are given up (`privileges.move_in`). A worker that is
forked from a warm process is in that process's room; so a warm process belongs to one room (`warm_key`). A room
that was removed and is made again has another name, so that no worker is forked into the remains of the old one.

File systems that are mounted on the machine later (homes, by an automounter) appear in the room as well.
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
from .scratch import remove_tree
from .worker_sockets import let_pass

log = logging.getLogger(__name__)

TMP, SHARED_MEMORY = Path("/tmp"), Path("/dev/shm")
MODE = 0o1700  # as the machine's directories, but closed to other accounts


@dataclass
class _Room:
    name: str
    workers: set[str] = field(default_factory=set)


class Rooms:
    """The rooms of one agent's jobs. Its methods may be called from any thread."""

    def __init__(self, root: Path, tag: str, shared: Path = SHARED_MEMORY) -> None:
        """`root`: the directory of rooms on the disk. `shared`: the file system in memory for the rooms' other halves."""
        self._roots = {TMP: root, SHARED_MEMORY: shared / f"elasticctl-{tag}"}
        self._lock = threading.Lock()
        self._rooms: dict[str, _Room] = {}  # by job

    def mounts(self, name: str) -> list[tuple[str, str]]:
        """Return the bind mounts of a room: each directory, and the mount point that it covers."""
        return [(str(root / name), str(over)) for over, root in self._roots.items()]

    def make(self, job: str, worker: str, account: Account) -> str:
        """Make the room of a job, if it is missing, for one of its workers. Returns its name. Raises OSError."""
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
        """Take over the room `name`, which an earlier agent of this server has made for this worker."""
        with self._lock:
            self._rooms.setdefault(job, _Room(name)).workers.add(worker)

    def leave(self, job: str, worker: str, account: Account) -> None:
        """Record the end of a worker of the job. The room is removed with the last one."""
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
        """Return the names of the rooms on this server that are not `known`, each with the user id of its owner."""
        found: dict[str, int] = {}
        for root in self._roots.values():
            with contextlib.suppress(OSError), os.scandir(root) as entries:
                for entry in entries:
                    if entry.name not in known and entry.is_dir(follow_symlinks=False):
                        found[entry.name] = entry.stat(follow_symlinks=False).st_uid
        return sorted(found.items())

    def close(self) -> None:
        """Remove the empty directories."""
        for root in self._roots.values():
            with contextlib.suppress(OSError):
                root.rmdir()


def _make(root: Path, name: str, account: Account) -> None:
    """Make one directory of a room. Raises OSError."""
    if os.path.lexists(root) and (root.is_symlink() or root.lstat().st_uid != os.getuid()):
        # Another account was here first, to lock the agent out
        root.rename(root.with_name(f".{root.name}-{secrets.token_hex(4)}"))
    root.mkdir(mode=0o711, parents=True, exist_ok=True)
    let_pass(root)
    path = root / name
    path.mkdir(mode=0o700)
    path.chmod(MODE)
    if not account.own:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def hidden(paths: Iterable[Path]) -> Path | None:
    """Return the first of these paths that a room would hide from a job."""
    return next((each for each in paths for over in (TMP, SHARED_MEMORY) if each.resolve().is_relative_to(over)), None)
