"""Checks of a daemon's directories: owners, permissions, file systems, and free space."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from pathlib import Path

from ...protocol.errors import OperatorError
from ...runtime.directories import check_way
from . import mounts
from .checks import Finding, Register, absent, failure, ok, warning, worst
from .targets import Subject, Target

CHECKS = Register(Subject.SERVER)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
LONGEST_SCRATCH = 60  # bytes of a directory's path, since paths of sockets below it are limited


def account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def may_write(path: Path, uid: int) -> bool:
    """Return whether this account may create a file in `path`."""
    found = path.stat()
    if uid == 0:
        return True
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IWUSR)
    return bool(found.st_mode & stat.S_IWOTH)


def nearest(path: Path) -> Path:
    """Return `path`, or the closest existing directory above."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def full(target: Target) -> int:
    """Return the free bytes below which a disk is full: an agent then takes no new work."""
    assert target.daemon is not None
    least_mib = (target.daemon.option("health") or {}).get("least_disk_mib", 0)
    return max(mounts.FULL_BYTES, int(least_mib) << 20)


def not_there(path: Path, owner: int) -> Finding | None:
    """Return a finding on a missing `path`: whether the daemon can create it. None if it exists."""
    if path.exists():
        return None
    above = nearest(path)
    if may_write(above, owner):
        return ok(f"{path} is not there yet; the daemon makes it")
    return failure(
        f"{path} is missing, and {account(owner)} may not make it in {above}",
        f"install -d -m 711 -o {account(owner)} {path}",
    )


def ours(path: Path, owner: int) -> list[Finding]:
    """Return the faults of a directory that belongs to the daemon alone."""
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        return [failure(f"{path} is no directory", "remove it, or name another one in the configuration")]
    wrong = []
    if found.st_uid != owner:
        wrong.append(
            failure(
                f"{path} belongs to {account(found.st_uid)}, and the daemon runs as {account(owner)}",
                f"chown -R {account(owner)} {path}",
            )
        )
    if found.st_mode & OTHERS_WRITE:
        wrong.append(failure(f"others may write to {path}", f"chmod go-w {path}"))
    try:
        check_way(path)
    except OperatorError as error:
        wrong.append(failure(str(error), "choose a directory to which nobody else may write on the way"))
    return wrong


def closed_way(path: Path) -> Path | None:
    """Return the first directory on the way to `path` that other accounts cannot pass through."""
    for step in [*reversed(path.absolute().parents)][1:]:
        if step.is_dir() and not step.stat().st_mode & stat.S_IXOTH:
            return step
    return None


def passable(target: Target, path: Path, opened: int = 0) -> list[Finding]:
    """Return a finding if jobs of other accounts cannot reach a directory of an agent that is root. `opened`: number of
    directories above the path that the agent opens itself.
    """
    assert target.daemon is not None
    root_alone = target.daemon.option("allow_root_jobs") and target.described.controller.startswith("ipc://")
    if target.daemon.owner != 0 or root_alone:
        return []
    closed = closed_way(path.parents[opened - 1] if opened else path)
    if closed is None:
        return []
    return [
        failure(
            f"accounts other than root cannot pass through {closed}, and their jobs need {path}",
            f"chmod o+x {closed}, or name a directory elsewhere in the configuration",
        )
    ]


@CHECKS.check(
    "state",
    "the daemon's state directory is another account's, open to others, read-only, full, in memory, or on the network",
    "chown and chmod as it says; make room; a local disk: `state_directory`",
)
def state(target: Target) -> Finding:
    assert target.daemon is not None
    path, owner = target.daemon.state, target.daemon.owner
    if (missing := not_there(path, owner)) is not None:
        return missing
    wrong = [*ours(path, owner), *mounts.room(path, full(target))]
    if target.subject is Subject.SERVER:
        wrong += passable(target, path)
    there = mounts.mount_of(path, target.machine.proc)
    other = "name a directory on a disk of this machine: `state_directory` in the configuration"
    if there.kind in mounts.IN_MEMORY:
        wrong.append(failure(f"{path} is in memory ({there.kind}): a restart of the machine loses it", other))
    elif there.shared and target.subject is Subject.CONTROLLER:
        wrong.append(failure(f"{path} is on the network ({there.kind}), where SQLite cannot keep its promises", other))
    elif there.shared:
        wrong.append(warning(f"{path} is on the network ({there.kind}): what hangs there stops the agent", other))
    found = os.statvfs(path)
    return worst(
        wrong, ok(f"{path}: {account(owner)}'s, {mounts.text(found.f_bavail * found.f_frsize)} free ({there.kind})")
    )


@CHECKS.check(
    "checkpoints",
    "the directory of checkpoints is missing, hangs, is full, in memory, open to harm, or seen by this server alone",
    "mount storage that all servers share: `checkpoint_directory`; mode 0755, or 1777",
)
def checkpoints(target: Target) -> Finding:
    assert target.daemon is not None
    path, owner = Path(target.described.checkpoints), target.daemon.owner
    if (missing := not_there(path, owner)) is not None:
        return missing
    found = path.stat()
    wrong = mounts.room(path, full(target))
    if not stat.S_ISDIR(found.st_mode):
        return failure(f"{path} is no directory", "name another one: `checkpoint_directory`")
    if found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        wrong.append(
            failure(f"others may write to {path}, and rename what is others' there", f"chmod +t {path}, or go-w")
        )
    if not may_write(path, owner) and not found.st_mode & stat.S_IWOTH:
        wrong.append(
            failure(
                f"{account(owner)}, as the agent, may not make directories in {path}", f"chown or chmod 1777 {path}"
            )
        )
    wrong += passable(target, path, 1 if path.parent == target.daemon.state else 0)
    there = mounts.mount_of(path, target.machine.proc)
    if there.kind in mounts.IN_MEMORY:
        wrong.append(
            failure(
                f"{path} is in memory ({there.kind}): a restart loses all checkpoints", "name a directory on a disk"
            )
        )
    elif not there.shared and target.described.controller.startswith("tcp://"):
        wrong.append(
            warning(
                f"{path} is on a disk of this server alone ({there.kind}): no job survives its last server",
                "mount storage that all servers share, and name it: `checkpoint_directory`",
            )
        )
    room = os.statvfs(path)
    free = mounts.text(room.f_bavail * room.f_frsize)
    return worst(wrong, ok(f"{path}: {free} free ({there.kind}{f' of {there.source}' if there.shared else ''})"))


@CHECKS.check(
    "scratch",
    "the directory for workers' temporary files is closed, full, in memory, or its path too long for sockets",
    "a short path on a disk of the server: `scratch_directory`",
)
def scratch(target: Target) -> Finding:
    assert target.daemon is not None
    path, owner = Path(target.described.scratch), target.daemon.owner
    wrong = []
    if len(os.fsencode(path)) > LONGEST_SCRATCH:
        wrong.append(
            warning(
                f"{path} has more than {LONGEST_SCRATCH} bytes: programs cannot make sockets below",
                "name a shorter one",
            )
        )
    missing = not_there(path, owner)
    if missing is not None and missing.remedy:
        return missing
    wrong += [*passable(target, path, 1), *mounts.room(nearest(path), full(target))]
    there = mounts.mount_of(path, target.machine.proc)
    if there.kind in mounts.IN_MEMORY:
        wrong.append(
            warning(
                f"{path} is in memory ({there.kind}): what jobs write there takes their memory", "name one on a disk"
            )
        )
    return worst(wrong, ok(f"{path} ({there.kind})"))


@CHECKS.check(
    "sockets",
    "the agent's socket for its workers has been removed (by a cleaner of /tmp), or others may put theirs there",
    "`systemctl restart elasticctl-agent`: jobs go on; name another `socket_directory`",
)
def sockets(target: Target) -> Finding:
    assert target.daemon is not None
    if not target.described.sockets:
        return absent("the agent has not been started yet, or only root may see it")
    path = Path(target.described.sockets)
    if target.daemon.pid is None:
        return absent("the agent does not run")
    if not path.exists():
        return failure(
            f"{path} has been removed while the agent runs: no worker reaches it", "restart the agent: jobs go on"
        )
    wrong = [*ours(path, target.daemon.owner), *passable(target, path, 1)]
    if not wrong:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(2.0)
            try:
                probe.connect(str(path / "workers"))
            except PermissionError:
                return absent("only the agent's account may connect")
            except OSError as error:
                return failure(
                    f"nobody listens at {path / 'workers'}: {error.strerror}", "restart the agent: jobs go on"
                )
    return worst(wrong, ok(f"the agent listens in {path}"))


@CHECKS.check(
    "log",
    "the log file of the configuration cannot be written",
    "make its directory, give it to the daemon's account, make room: `log_file`",
)
def log(target: Target) -> Finding:
    assert target.daemon is not None
    named = target.daemon.option("log_file")
    if not named:
        return absent(f"no log_file is named; the log is in {target.daemon.log or 'stderr'}")
    path, owner = Path(named).expanduser().absolute(), target.daemon.owner
    if not path.parent.is_dir():
        return failure(
            f"there is no directory {path.parent} for the log", f"install -d -o {account(owner)} {path.parent}"
        )
    if path.exists():
        status = path.stat()
        able = owner == 0 or (status.st_uid == owner and status.st_mode & stat.S_IWUSR) or status.st_mode & stat.S_IWOTH
        if not able:
            return failure(f"{account(owner)} may not write to {path}", f"chown {account(owner)} {path}")
    elif not may_write(path.parent, owner):
        return failure(
            f"{account(owner)} may not make a file in {path.parent}", f"chown {account(owner)} {path.parent}"
        )
    return worst(mounts.room(path.parent, full(target)), ok(str(path)))


@CHECKS.check(
    "programs",
    "accounts other than root can change what the agent, which is root, executes",
    "`make install` into /opt/elasticctl; chown root, chmod go-w",
)
def programs(target: Target) -> Finding:
    assert target.daemon is not None
    if target.daemon.owner != 0:
        return absent("the agent is not root")
    found = target.described.changeable
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return warning(
            f"root's agent executes what others may change: {', '.join(found[:3])}{more}",
            f"chown root {found[0]}; chmod go-w {found[0]}; or `make install` into /opt/elasticctl",
        )
    return ok(f"only root changes {target.described.python}")
