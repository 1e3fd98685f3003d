"""Remains of workers besides checkpoints and logs: a directory of their own for temporary files, and shared memory.

Each worker has a directory as its TMPDIR, which is removed with it. Segments in ``/dev/shm`` have no owner but an
account, and the account may have other processes. So a segment is removed only if its name is that of a library, it was
made or changed while the worker ran, and no process has it open or mapped any more; files that people put there
themselves stay. The check and the removal use the owner's rights, except for the check which files other processes have
open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from . import execshim, shim
from .accounts import Account, acting_as, runs_as
from .worker_sockets import let_pass

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
MAX_SEGMENTS = 10_000
# torch, Python (shared_memory, semaphores), NCCL, CUDA, OpenMP, UCX, Open MPI
_LIBRARIES = re.compile(r"torch_|psm_|wnsm_|sem\.|pym-|nccl-|cuda\.|__KMP_|ucx|vader_segment|open_mpi|ompi")


@dataclass(frozen=True)
class Scratch:
    """The directories for temporary files of one agent's workers."""

    root: Path  # of the agent; other accounts may pass through, but not list it

    def of(self, name: str) -> Path:
        return self.root / name

    def make(self, name: str, account: Account) -> Path:
        """Make an empty directory that belongs to `account`. Raises OSError."""
        path = self.of(name)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not account.own:
            let_pass(self.root.parent)
            let_pass(self.root)
        with contextlib.suppress(FileNotFoundError):
            self._clear(path, account)
        path.mkdir(mode=0o700, exist_ok=True)
        if not account.own:
            os.chown(
                path, account.uid, account.gid, follow_symlinks=False
            )  # its parent belongs to the agent: this is the directory just made
        return path

    def remove(self, name: str, account: Account) -> None:
        """Remove a directory with its contents."""
        try:
            self._clear(self.of(name), account)
            self.of(name).rmdir()
        except FileNotFoundError:
            pass
        except (OSError, RecursionError) as error:
            log.warning("%s cannot be removed: %s", self.of(name), error)

    def _clear(self, path: Path, account: Account) -> None:
        with acting_as(account):
            for entry in list(os.scandir(path)):
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(entry.path)
                else:
                    os.unlink(entry.path)

    def close(self) -> None:
        """Remove the empty directory."""
        with contextlib.suppress(OSError):
            self.root.rmdir()

    def others(self, known: frozenset[str]) -> list[tuple[str, int]]:
        """Return the existing directories that are not `known`, with their owners."""
        try:
            with os.scandir(self.root) as entries:
                there = [entry for entry in entries if entry.name not in known and entry.is_dir(follow_symlinks=False)]
                return sorted((entry.name, entry.stat(follow_symlinks=False).st_uid) for entry in there)
        except OSError:
            return []


def remove_tree(path: str) -> None:
    """Remove a tree. Follows no links; opens directories that their owner has closed even to itself."""
    try:
        shutil.rmtree(path)
    except PermissionError:
        os.chmod(path, 0o700)
        for directory, names, _ in os.walk(path):
            for name in names:
                if not os.path.islink(os.path.join(directory, name)):
                    os.chmod(os.path.join(directory, name), 0o700)
        shutil.rmtree(path)


def forget_shared_memory(account: Account, since_s: float, directory: Path = SHARED_MEMORY) -> list[str]:
    """Remove unused segments of `account` that have changed since `since_s` (Unix time). Returns their names."""
    found = _segments(account, since_s, directory)
    if not found:
        return []
    used = _in_use(account, str(directory))
    if used is None:
        return []
    gone = []
    with acting_as(account):
        for name, inode in found.items():
            with contextlib.suppress(OSError):
                if inode not in used and os.stat(directory / name, follow_symlinks=False).st_ino == inode:
                    os.unlink(directory / name)
                    gone.append(name)
    return gone


def _segments(account: Account, since_s: float, directory: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), acting_as(account), os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            mine = status.st_uid == account.uid and status.st_ctime >= since_s
            if mine and _LIBRARIES.match(entry.name) and stat.S_ISREG(status.st_mode) and len(found) < MAX_SEGMENTS:
                found[entry.name] = status.st_ino
    return found


def _in_use(account: Account, directory: str) -> frozenset[int] | None:
    """Return the inodes of files in `directory` that any process has open or mapped; None: unknown.

    The agent may lack the right to inspect other accounts' processes; their owner has it, except for processes that
    hide themselves.
    """
    used, unseen = _looked(directory, [int(name) for name in os.listdir("/proc") if name.isdecimal()])
    with acting_as(account):
        more, unseen = _looked(directory, [pid for pid in unseen if runs_as(pid) == account.uid])
    return None if any(not _is_shim(pid) for pid in unseen) else frozenset(used | more)


def _looked(directory: str, pids: list[int]) -> tuple[set[int], list[int]]:
    """Return the inodes that these processes use, and the processes that may not be inspected."""
    used: set[int] = set()
    unseen = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
                used |= {int(line.split(None, 5)[4]) for line in maps if f" {directory}/" in line}
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(f"{directory}/"):
                        used.add(os.stat(f"/proc/{pid}/fd/{descriptor}").st_ino)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError:
            unseen.append(pid)
    return used, unseen


def _is_shim(pid: int) -> bool:
    """Return whether the process is a shim (of a worker, or of a command beside one), which uses no shared memory, and hides
    itself because it was root.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return True  # it has ended
    return any(os.fsencode(each) in words for each in (shim.__file__, execshim.__file__))
