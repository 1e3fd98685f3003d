"""The Unix accounts that jobs run as, and how an agent that is root acts as one of them for a moment.

Theory of operation
-------------------
What belongs to a user is never opened, resolved or removed with root's rights: a path may be a link to somebody else's file,
and change while one looks at it. So the kernel itself checks every step, as it would check the user. In Linux each *thread* has
credentials of its own (the C library hides that, its `setuid` changes all threads), so a thread of `errands` can become the user
for one piece of work, without a process for it: effective user, effective group and supplementary groups are the account's, and
with the effective user the kernel takes all capabilities away. The real and the saved user stay root, so that the user's own
processes can neither signal nor trace the agent meanwhile, and the way back is open.

Signals go out the same way. A user who forges the number of a process in a file that his shim wrote can direct them only to
processes that he could have signalled himself.
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
LEFT_AS_USER = 70  # the exit code of an agent that cannot become root again


class NoAccount(ElasticError):
    """Workers cannot run as this account here."""


@dataclass(frozen=True)
class Account:
    """A Unix account."""

    name: str  # "": one without an entry, as in containers
    uid: int
    gid: int
    groups: tuple[int, ...]  # supplementary ones
    home: str

    @property
    def own(self) -> bool:
        """Is it the agent's own?"""
        return self.uid == os.getuid()


def myself() -> Account:
    """The account that this process runs as, as far as its rights go: nothing is looked up."""
    return Account("", os.getuid(), os.getgid(), (), "/")


def own_account() -> Account:
    """The account that this process runs as, whatever its environment says."""
    uid, gid = os.getuid(), os.getgid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account("", uid, gid, tuple(os.getgroups()), "/")
    return Account(entry.pw_name, uid, gid, tuple(os.getgroups()), entry.pw_dir)


def find(name: str, root_jobs: bool) -> Account:
    """The account that a job's workers run as; "": the agent's own. `root_jobs`: may that be root?

    May wait: accounts may live in a directory on the network. Raises NoAccount.
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
    """Let this thread, and no other, have the rights of `account`, no more and no less. Nothing changes if it is the agent's own.

    What is done within must not import anything, nor start a process.
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
        except BaseException:  # a bug, too, must not leave a thread that is half of each
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
    if os.getgroups() != groups:  # else it has not come so far: an agent that may not change them goes on
        _set_groups(setgroups, groups)


def _set_groups(number: int, groups: Sequence[int]) -> None:
    _call(number, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def _call(number: int, *arguments: object) -> None:
    """A system call as it is, for this thread alone."""
    library = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if library.syscall(ctypes.c_long(number), *words) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))


# ---------------------------------------------------------------------------------------------------------------- processes


def runs_as(pid: int) -> int | None:
    """The user of process `pid`, if real, effective and saved user are the same; None: they are not, or it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return None
    users = {int(word) for word in line.split()[1:4]}
    return users.pop() if len(users) == 1 else None


def signal_process(account: Account, descriptor: int, number: signal.Signals) -> None:
    """Signal the process of a pidfd as its user; nothing if it has ended or is none of his."""
    with acting_as(account), contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(descriptor, number)


def signal_group(account: Account, group: int, number: signal.Signals) -> None:
    """Signal a process group as its user; nothing if it is gone or none of his."""
    with acting_as(account), contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
