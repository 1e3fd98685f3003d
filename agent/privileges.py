"""Change from the agent's rights to a job owner's, irrevocably. The standard library alone: the shim uses this module.

The order matters. Steps that only root may do come first (cgroup, the job's own /tmp, limits, keyring), then groups
before the user, for without root they could not be changed any more; last `no_new_privs`, after which no program,
setuid or not, can give this process more rights again. No file of the user's has been opened, resolved or imported
before: see `docs/design/isolation.md`.

A shim that starts a container leaves out `no_new_privs`: podman maps its owner's subordinate user ids by `newuidmap`, which is
a set-user-ID program. Only podman and the shell run without it. Processes of the container have it, from podman.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
from collections.abc import Sequence

PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 1 << 19
KEYCTL = {"x86_64": 250, "aarch64": 219}  # number of the system call
KEYCTL_JOIN_SESSION_KEYRING = 1
MAX_ORDERS_BYTES = 64 << 20


class Drop:
    """Target credentials of a process. The fields are those of the agent's orders; see `orders`."""

    def __init__(self, document: dict[str, object]) -> None:
        self.uid = _number(document["uid"])
        self.gid = _number(document["gid"])
        self.groups = [_number(each) for each in _list(document["groups"])]
        self.open_files = _number(document["open_files"])
        self.may_gain = bool(document.get("may_gain"))  # set-user-ID programs give it rights: podman needs `newuidmap`


def orders() -> dict[str, object]:
    """Return the orders that the agent has put into this process's standard input, which is empty from then on."""
    with open(0, "rb", closefd=False) as file:
        found = json.loads(file.read(MAX_ORDERS_BYTES))
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    assert isinstance(found, dict)
    return found


def write_orders(document: dict[str, object]) -> int:
    """Return a descriptor from which `orders` reads `document`. It is neither a visible file nor an argument list."""
    descriptor = os.memfd_create("orders", os.MFD_CLOEXEC)
    try:
        data = memoryview(json.dumps(document).encode())
        while data:
            data = data[os.write(descriptor, data) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def join(cgroups: Sequence[str]) -> None:
    """Enter these cgroups. Raises OSError."""
    for path in cgroups:
        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")


def move_in(mounts: Sequence[Sequence[str]], always: bool = False) -> None:
    """Mount directories over others for this process alone: pairs of source and target (`rooms`). Raises OSError.

    `always`: have mounts of its own even if there are no pairs.
    """
    if not mounts and not always:
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "it cannot have a mount namespace")
    for source, over, flags in (("none", "/", MS_REC | MS_SLAVE), *((a, b, MS_BIND) for a, b in mounts)):
        if library.mount(source.encode(), over.encode(), None, flags, None) != 0:
            problem = ctypes.get_errno()
            raise OSError(problem, f"{source} cannot be mounted at {over}: {os.strerror(problem)}")


def drop(target: Drop) -> None:
    """Become `target`. Raises OSError: then this process may do nothing more but end."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (target.open_files, target.open_files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):  # pinned memory is limited then, as it is for the agent
        pass
    _leave_keyring()
    os.setgroups(target.groups)
    os.setresgid(target.gid, target.gid, target.gid)
    os.setresuid(target.uid, target.uid, target.uid)
    if not target.may_gain and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
    if os.getresuid() != (target.uid,) * 3 or os.getresgid() != (target.gid,) * 3 or 0 in os.getresuid():
        raise OSError("the rights of root could not be given up")


def _leave_keyring() -> None:
    """Take a new session keyring: a process that has inherited one may read and change it under any account.

    Done while still root: the account may already have as many keys as it is allowed.
    """
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        problem = ctypes.get_errno()
        if problem not in (errno.ENOSYS, errno.EPERM):  # no keyrings, or none is permitted: jobs cannot use them either
            raise OSError(problem, "it cannot leave the keyring of the agent's session")


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
