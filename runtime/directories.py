"""Directories and files that no other user may have created or may write to.

A path is as safe as the weakest directory on its way. In a directory that every user may write to, such as /tmp, any user can
create the next component of the path first; so that component must belong to this user or to root. In any other directory only
its owner decides about its entries.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from ..protocol.errors import OperatorError

OTHERS_WRITE = 0o022  # group and others
OTHERS_READ_OR_WRITE = 0o077


def private_directory(path: Path) -> Path:
    """Return `path`, created if missing, owned by this user and not writable by others. Raises OperatorError otherwise."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise OperatorError(f"{path}: cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & OTHERS_WRITE:
        raise OperatorError(f"{path}: must be a directory of user {os.getuid()} that nobody else can write to")
    return path


def check_way(path: Path) -> None:
    """Check that only its owner, root or this user could create or replace `path`. Raises OperatorError, naming the component."""
    trusted = (0, os.getuid())
    before = os.stat("/")
    for step in [*reversed(path.absolute().parents), path.absolute()][1:]:
        shared = bool(before.st_mode & stat.S_IWOTH)
        try:
            found = step.lstat()
            if shared and not (before.st_mode & stat.S_ISVTX and found.st_uid in trusted):
                raise OperatorError(f"{step} is not safe: others may write to {step.parent}")
            before = step.stat()
        except FileNotFoundError:
            if shared:
                raise OperatorError(f"{step} is missing, and others may write to {step.parent}") from None
            return
        except OSError as error:
            raise OperatorError(f"{step}: {error.strerror}") from None


def check_code(path: Path) -> None:
    """Check that only its owner, root or this user could write this file, which may be missing. Raises OperatorError."""
    check_way(path)
    if path.exists() and path.stat().st_mode & OTHERS_WRITE:
        raise OperatorError(f"{path} is executed, and others may write to it: chmod go-w {path}")


def read_secret(path: Path, also: int | None = None) -> bytes:
    """Read a file that only its owner may read: this user, root, or the user id `also`. Raises OperatorError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise OperatorError(f"{path}: no such file") from None
    except OSError as error:
        raise OperatorError(f"{path}: cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OperatorError(f"{path}: is not a file")
        if found.st_uid not in (0, os.getuid(), also):
            raise OperatorError(f"{path}: belongs to user {found.st_uid}, not to user {os.getuid()} or root")
        if found.st_mode & OTHERS_READ_OR_WRITE:
            mode = stat.S_IMODE(found.st_mode)
            raise OperatorError(f"{path}: is open to others (mode {mode:04o}); `chmod 600` it")
        return file.read(1 << 24)


def write_secret(path: Path, data: bytes, replace: bool = True) -> None:
    """Write `path` atomically, mode 0600: after a crash it has the old content or the new one.

    A file that root writes into another user's directory belongs to the directory's owner. Raises OperatorError, also if the
    file exists and `replace` is false.
    """
    name = f".{path.name}.{secrets.token_hex(4)}"
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OperatorError(f"{path.parent}: {error.strerror}") from None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
            owner = os.fstat(directory)
            if os.getuid() == 0 and owner.st_uid != 0 and not owner.st_mode & OTHERS_WRITE:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(name, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            os.link(name, path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            os.unlink(name, dir_fd=directory)
        os.fsync(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        reason = "is there already" if isinstance(error, FileExistsError) else f"cannot be written: {error.strerror}"
        raise OperatorError(f"{path}: {reason}") from None
    finally:
        os.close(directory)


def give_to_owner(path: Path) -> None:
    """Give a file that root has created in another user's directory to the owner of that directory.

    Does nothing if the file is missing or is not root's own regular file, or if others may write to the directory. Raises
    OSError.
    """
    owner = path.parent.stat()
    if os.getuid() != 0 or owner.st_uid == 0 or owner.st_mode & OTHERS_WRITE:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_nlink == 1:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)
