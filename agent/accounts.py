"""Unix accounts of jobs, and the means by which an agent that is root acts as one of them for a moment.

Theory of operation
-------------------
A user's files are never opened, resolved or removed with root's rights: a path may be a link to another user's file,
and may change during the check. So the kernel itself checks every step, as it would check the user. In Linux each
*thread* has credentials of its own (the C library hides that, its `setuid` changes all threads), so a thread of
`task_queues` can become the user for one piece of work, without a process for it: effective user, effective group and
supplementary groups are the account's, and with the effective user the kernel takes all capabilities away. The real and
the saved user stay root, so that the user's own processes can neither signal nor trace the agent meanwhile, and the
thread can become root again.

Signals are sent the same way. A user who forges the process number in a file that the user's shim wrote can direct them
only to processes that the user could have signalled anyway.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..protocol.errors import ElasticError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_NUMBERS = {"x86_64": (117, 119, 116), "aarch64": (147, 149, 159)}  # of setresuid, setresgid, setgroups
_SAME = -1
LEFT_AS_USER = 70  # exit code of an agent that cannot become root again


class NoAccount(ElasticError):
    """Workers cannot run as this account on this server."""


@dataclass(frozen=True)
class Account:
    """A Unix account."""

    name: str  # "": an account without an entry, as in containers
    uid: int
    gid: int
    groups: tuple[int, ...]  # supplementary ones
    home: str

    @property
    def own(self) -> bool:
        """Return whether this is the agent's own account."""
        return self.uid == os.getuid()


def myself() -> Account:
    """Return the account of this process, with its rights alone: no database is asked."""
    return Account("", os.getuid(), os.getgid(), (), "/")


def own_account() -> Account:
    """Return the account of this process from the system's database, independently of environment variables."""
    uid, gid = os.getuid(), os.getgid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account("", uid, gid, tuple(os.getgroups()), "/")
    return Account(entry.pw_name, uid, gid, tuple(os.getgroups()), entry.pw_dir)


def find(name: str, root_jobs: bool) -> Account:
    """Return the account under which a job's workers run; "": the agent's own. `root_jobs`: whether that may be root.

    May block: accounts may live in a directory on the network. Raises NoAccount.
    """
    own = own_account()
    if name in ("", own.name):
        account = own
    elif own.uid != 0:
        raise NoAccount(
            f"the agent of this server is not root: it starts workers as {own.name or own.uid}, not as {name}"
        )
    else:
        account = _looked_up(name)
    if account.uid == 0 and not root_jobs:
        raise NoAccount(
            "no job runs as root here: its owner needs an account (elasticctl keys add --account), or the agent's "
            "configuration `allow_root_jobs: true`"
        )
    return account


def _looked_up(name: str) -> Account:
    if platform.machine() not in _NUMBERS:
        raise NoAccount(f"jobs of other accounts are not supported on {platform.machine()} processors")
    try:
        entry = pwd.getpwnam(name) if _NAME.fullmatch(name) else None
    except KeyError:
        entry = None
    if entry is None:
        raise NoAccount(f"this server has no account {name[:80]!r}")
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(sorted(set(groups))), entry.pw_dir or "/")


@contextlib.contextmanager
def acting_as(account: Account) -> Iterator[None]:
    """Give this thread, and no other, exactly the rights of `account`. The agent's own account changes nothing.

    The body must neither import a module nor start a process.
    """
    if account.own:
        yield
        return
    before = os.getgroups()
    try:
        _become(account.uid, account.gid, account.groups)
        yield
    finally:
        try:
            _return(os.getuid(), os.getgid(), before)
        except BaseException:  # even after a bug, no thread may go on with half of the credentials changed
            os._exit(LEFT_AS_USER)


def _become(uid: int, gid: int, groups: Sequence[int]) -> None:
    setresuid, setresgid, setgroups = _NUMBERS[platform.machine()]
    _set_groups(setgroups, groups)
    _call(setresgid, _SAME, gid, _SAME)
    _call(setresuid, _SAME, uid, _SAME)


def _return(uid: int, gid: int, groups: Sequence[int]) -> None:
    setresuid, setresgid, setgroups = _NUMBERS[platform.machine()]
    _call(setresuid, _SAME, uid, _SAME)
    _call(setresgid, _SAME, gid, _SAME)
    if os.getgroups() != groups:  # unchanged groups need no call: an agent without the right to change them goes on
        _set_groups(setgroups, groups)


def _set_groups(number: int, groups: Sequence[int]) -> None:
    _call(number, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def _call(number: int, *arguments: object) -> None:
    """Make a system call directly, for this thread alone."""
    library = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if library.syscall(ctypes.c_long(number), *words) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))


# ---------------------------------------------------------------------------------------------------------------- processes


def runs_as(pid: int) -> int | None:
    """Return the user of process `pid` if its real, effective and saved user agree; None: they differ, or the process
    has ended.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return None
    users = {int(word) for word in line.split()[1:4]}
    return users.pop() if len(users) == 1 else None


def signal_process(account: Account, descriptor: int, number: signal.Signals) -> None:
    """Signal the process of a pidfd as its user; do nothing if the process has ended or belongs to another user."""
    with acting_as(account), contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(descriptor, number)


def signal_group(account: Account, group: int, number: signal.Signals) -> None:
    """Signal a process group as its user; do nothing if the group is gone or belongs to another user."""
    with acting_as(account), contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
