"""Checks of a server's resources for jobs: memory, shared memory, files, processes, control groups; its clock; its
accounts.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

import psutil

from ...protocol.errors import ElasticError
from ...protocol.messages import GetJobs
from ...protocol.texts import gpu_count
from ...runtime.keys import KeyDirectory, KeyFile
from . import mounts
from .buses import adapters_on, gpus_on
from .checks import Finding, Register, absent, failure, ok, warning, worst
from .files import account
from .targets import Subject, Target

CHECKS = Register(Subject.SERVER)

LEAST_FILES, FEW_FILES = 1024, 8192
LEAST_TASKS, FEW_TASKS = 1000, 4096
LEAST_SHM, LITTLE_SHM = 128 << 20, 1 << 30
FULL_SHM = 0.9
SWAPPED = 0.1
LITTLE_MEMORY = 0.05
STA_UNSYNC, TIME_ERROR = 0x40, 5
TIME_DAEMONS = ("chronyd", "ntpd", "ntpsec", "systemd-timesyncd", "systemd-timesyn", "openntpd", "phc2sys", "ptp4l")
NAMED = 5
ASKED_WITHIN_S = 5.0
LOCKED_BY_PROCESS = 64 << 20  # bytes of two pinned buffers for copies of a checkpoint
JOBS_LOOKED_AT = 5000


def limit(target: Target, name: str) -> int | None:
    """Return a soft limit of the daemon, which its jobs inherit; None: unlimited.

    Raises LookupError if the daemon does not run.
    """
    return _limits(target, name)[0]


def _limits(target: Target, name: str) -> tuple[int | None, int | None]:
    """Return a soft limit of the daemon, and the hard limit, up to which a process may raise its own; None: unlimited.

    Raises LookupError."""
    assert target.daemon is not None
    if target.daemon.pid is None:
        raise LookupError("the daemon does not run")
    for line in (target.machine.proc / str(target.daemon.pid) / "limits").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            soft, hard = (None if word == "unlimited" else int(word) for word in line[len(name) :].split()[:2])
            return soft, hard
    raise LookupError(f"the kernel does not tell of {name}")


def raise_it(target: Target, option: str, value: str) -> str:
    assert target.daemon is not None
    if target.daemon.unit:
        name = f"elasticctl-{target.daemon.kind}"
        return f"`systemctl edit {name}`: [Service] {option}={value}; then restart it: jobs go on"
    return f"raise it where the daemon is started (`ulimit`, /etc/security/limits.conf: {value}), then start it again"


@CHECKS.check(
    "open-files",
    "the daemon, and so its jobs, may open too few files: data loaders and many connections fail",
    "`LimitNOFILE=65536:524288` in the unit, or `ulimit -n`",
)
def open_files(target: Target) -> Finding:
    try:
        count = limit(target, "Max open files")
    except LookupError as error:
        return absent(str(error))
    if count is None:
        return ok("without limit")
    mend = raise_it(target, "LimitNOFILE", "65536:524288")
    if count < LEAST_FILES:
        return failure(f"only {count} open files are allowed", mend)
    if count < FEW_FILES:
        return warning(f"only {count} open files are allowed: data loaders with many processes need more", mend)
    return ok(f"{count} open files")


@CHECKS.check(
    "processes",
    "jobs may have too few threads and processes: of the account, of the service, or of the machine",
    "`TasksMax=80%` in the unit; `ulimit -u`; `sysctl kernel.threads-max kernel.pid_max`",
)
def processes(target: Target) -> Finding:
    assert target.daemon is not None
    proc = target.machine.proc
    bounds: dict[int, str] = {}
    for name in ("threads-max", "pid_max"):
        bounds[int((proc / "sys/kernel" / name).read_text(encoding="ascii"))] = f"`sysctl kernel.{name}`"
    try:
        count = limit(target, "Max processes")
        if (
            count is not None and target.daemon.owner != 0
        ):  # the limit does not bind root, and jobs of other accounts count separately
            bounds[count] = raise_it(target, "LimitNPROC", "65536")
        for path, most in _group_tasks(target):
            bounds[most] = f"{raise_it(target, 'TasksMax', '80%')} ({path})"
    except LookupError:
        pass
    least = min(bounds)
    if least < LEAST_TASKS:
        return failure(f"jobs may have only {least} threads and processes together", bounds[least])
    if least < FEW_TASKS:
        return warning(f"jobs may have only {least} threads and processes together", bounds[least])
    return ok(f"{least} threads and processes")


def _group_tasks(target: Target) -> list[tuple[Path, int]]:
    """Return the limits on tasks of the daemon's control group, and of those above."""
    assert target.daemon is not None
    found = []
    for line in (target.machine.proc / str(target.daemon.pid) / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        top = target.machine.sys / "fs/cgroup"
        base = top / "pids" if controllers == "pids" else top
        group = base / path.lstrip("/")
        for each in (group, *group.parents):
            if each == base.parent:
                break
            try:
                text = (each / "pids.max").read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text != "max":
                found.append((each / "pids.max", int(text)))
    return found


@CHECKS.check(
    "locked-memory",
    "there are InfiniBand adapters or GPUs, and the service's jobs may not lock the memory that these read and write",
    "`LimitMEMLOCK=infinity` in the unit, or memlock in /etc/security/limits.conf",
)
def locked_memory(target: Target) -> Finding:
    adapters, gpus = (len(each(target.machine.sys)) for each in (adapters_on, gpus_on))
    if not adapters and not gpus:
        return absent("there are no InfiniBand adapters and no GPUs")
    needed_for = " and ".join(
        each
        for each in (
            f"{adapters} InfiniBand adapter{'s' * (adapters > 1)}" if adapters else "",
            gpu_count(gpus) if gpus else "",
        )
        if each
    )
    try:
        count, source = _lockable(target)
    except LookupError as error:
        return absent(str(error))
    if count is None:
        return ok(f"without limit, for {needed_for}")
    mend = raise_it(target, "LimitMEMLOCK", "infinity")
    if adapters:
        return failure(
            f"{needed_for}: a process of a job may lock only {mounts.text(count)} ({source}), and NCCL fails", mend
        )
    if count < LOCKED_BY_PROCESS:
        return warning(
            f"{needed_for}: a process of a job may lock only {mounts.text(count)} ({source}); page-locked buffers take "
            f"{mounts.text(LOCKED_BY_PROCESS)} of each, and data loaders' more",
            mend,
        )
    return ok(f"{mounts.text(count)} for each process, for {needed_for}")


def _lockable(target: Target) -> tuple[int | None, str]:
    """Return the bytes that a process of a job may lock (None: unlimited), and the source of this limit.

    The source is the running service, or else systemd, which knows all drop-ins of its unit. The limits of the process that runs
    this check are different. Raises LookupError."""
    assert target.daemon is not None
    if target.daemon.pid is not None:
        soft, hard = _limits(target, "Max locked memory")
        # Processes that become another account raise their own limit to the hard one (`privileges.drop`).
        return (hard if target.daemon.owner == 0 else soft), f"limits of process {target.daemon.pid}"
    systemctl = shutil.which("systemctl", path=target.machine.environ.get("PATH"))
    if not target.daemon.unit or systemctl is None:
        raise LookupError("the daemon does not run")
    name = f"elasticctl-{target.daemon.kind}"
    command = [systemctl, "show", "--property", "LimitMEMLOCK", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_WITHIN_S, check=False)
    value = done.stdout.strip().partition("=")[2]
    if value == "infinity":
        return None, name
    if not value.isdecimal():
        raise LookupError("the daemon does not run, and systemd does not tell of LimitMEMLOCK")
    return int(value), f"LimitMEMLOCK of {name}"


@CHECKS.check(
    "shm",
    "/dev/shm is missing, too small for data loaders and NCCL, full, or closed to accounts other than root",
    "`mount -o remount,size=50%,mode=1777 /dev/shm`; in a container `--shm-size` or `--ipc=host`",
    once=True,
)
def shm(target: Target) -> Finding:
    path = target.machine.dev / "shm"
    mend = f"`mount -o remount,size=50%,mode=1777 {path}`; in a container `--shm-size=8g` or `--ipc=host`"
    if not path.is_dir():
        return failure(
            f"there is no {path}: data loaders and NCCL fail", f"mkdir {path}; mount -t tmpfs -o mode=1777 tmpfs {path}"
        )
    wrong = []
    if stat.S_IMODE(path.stat().st_mode) != 0o1777:
        mode = stat.S_IMODE(path.stat().st_mode)
        wrong.append(failure(f"{path} has mode {mode:04o}: jobs need 1777", f"chmod 1777 {path}"))
    kind = mounts.mount_of(path, target.machine.proc).kind
    if kind not in mounts.IN_MEMORY:
        wrong.append(warning(f"{path} is on a disk ({kind}), and slow", f"mount -t tmpfs -o mode=1777 tmpfs {path}"))
    found = os.statvfs(path)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    if size < LEAST_SHM:
        wrong.append(
            failure(f"{path} has only {mounts.text(size)}: a data loader with workers fails (Bus error)", mend)
        )
    elif size < LITTLE_SHM:
        wrong.append(warning(f"{path} has only {mounts.text(size)}: few data loaders find room", mend))
    if free < (1 - FULL_SHM) * size:
        wrong.append(
            warning(
                f"{path} is nearly full: {mounts.text(free)} of {mounts.text(size)} are free",
                f"`ls -lS {path}`; remove what no process has",
            )
        )
    return worst(wrong, ok(f"{mounts.text(size)}, {mounts.text(free)} free"))


@CHECKS.check(
    "cgroups",
    "the agent says that it cannot make control groups, or not all: limits do not hold, and daemons of jobs stay behind",
    "`systemctl start elasticctl-workers`; cgroup v2 (`systemd.unified_cgroup_hierarchy=1`); no read-only /sys/fs/cgroup",
)
def cgroups(target: Target) -> Finding:
    assert target.daemon is not None
    if target.daemon.owner != 0:
        return absent("the agent is not root: its workers have its own limits")
    lines = [line.split(" ") for line in (target.machine.proc / "self/mounts").read_text(encoding="utf-8").splitlines()]
    unified = next((Path(line[1]) for line in lines if line[2] == "cgroup2"), None)
    old = {word for line in lines if line[2] == "cgroup" for word in line[3].split(",")}
    readonly = [line[1] for line in lines if line[2] in ("cgroup", "cgroup2") and "ro" in line[3].split(",")]
    needed = {"memory", "pids", "cpu"}
    mend = "boot with systemd.unified_cgroup_hierarchy=1; in a container give it control groups that it may write"
    if unified is None and not old:
        return warning("there are no control groups: workers run without limits", mend)
    if readonly:
        return warning(f"{readonly[0]} is read-only: workers run without limits", mend)
    there: set[str] = set()
    if unified is not None:
        there = set((unified / "cgroup.controllers").read_text(encoding="ascii").split()) & needed
    missing = needed - there - old
    if missing:
        return warning(f"no control groups for {', '.join(sorted(missing))}: these limits do not hold", mend)
    return _as_the_agent_says(target, "version 2" if needed <= there else "version 1, which serves too")


def _as_the_agent_says(target: Target, there: str) -> Finding:
    """Return the agent's own finding: limits depend on the rights of its service, which the caller lacks."""
    assert target.daemon is not None
    isolation = target.described.isolation
    if target.daemon.pid is None:
        return absent(f"{there}; the agent does not run, and only it can tell whether it may use them")
    if isolation.get("pid") != target.daemon.pid:
        who = (
            "`sudo elasticctl doctor`"
            if target.machine.uid != 0
            else "`systemctl restart elasticctl-agent`: jobs go on"
        )
        return warning("it is not known what the agent may do with control groups", who)
    if isolation.get("unheld"):
        return failure(
            f"no job runs here: {isolation['unheld']}", "what it says; then `systemctl restart elasticctl-agent`"
        )
    if not isolation.get("serves"):
        return ok(f"{there}; all jobs run as the agent's own account: nothing keeps them apart")
    notes = [str(note) for note in isolation.get("notes", [])]
    if notes:
        return warning("; ".join(notes), "docs/operators.md, Isolation of jobs; `isolation` in agent.yaml")
    return ok(f"{there}; tried by the agent: limits hold, jobs have their own GPUs' device files, /tmp and /dev/shm")


@CHECKS.check(
    "containers",
    "podman is installed, and the agent says that it cannot run jobs with `image` here: a runtime, `newuidmap`, rights or CDI "
    "files are missing",
    "`apt-get install crun uidmap`; `nvidia-ctk cdi generate`; docs/operators.md, Containers; then restart the agent: jobs go on",
)
def containers(target: Target) -> Finding:
    assert target.daemon is not None
    podman = shutil.which("podman", path=target.machine.environ.get("PATH"))
    if podman is None:
        return absent("podman is not installed: no job with `image` runs here")
    isolation = target.described.isolation
    if target.daemon.pid is None or isolation.get("pid") != target.daemon.pid or "no_containers" not in isolation:
        return absent("the agent does not run, or does not say whether it runs containers")
    if why := isolation["no_containers"]:
        return warning(
            f"no job with `image` runs here: {why}", "docs/operators.md, Containers; then restart the agent: jobs go on"
        )
    done = subprocess.run(
        [podman, "--version"],
        capture_output=True,
        text=True,
        timeout=ASKED_WITHIN_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return ok(f"{done.stdout.strip() or podman}; the agent runs jobs with `image`")


@CHECKS.check(
    "memory",
    "the kernel refuses to promise memory (overcommit), memory is short, or the machine swaps",
    "`sysctl vm.overcommit_memory=0`; `worker_limits` in agent.yaml; `swapoff -a`",
    once=True,
)
def memory(target: Target) -> Finding:
    wrong = []
    mode = (target.machine.proc / "sys/vm/overcommit_memory").read_text(encoding="ascii").strip()
    if mode == "2":
        wrong.append(
            warning(
                "the kernel promises no more memory than it has (vm.overcommit_memory=2): torch and forks fail early",
                "`sysctl vm.overcommit_memory=0`, and in /etc/sysctl.d for good",
            )
        )
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    if memory.available < LITTLE_MEMORY * memory.total:
        wrong.append(
            warning(
                f"only {mounts.text(memory.available)} of {mounts.text(memory.total)} memory are available",
                "`ps aux --sort -rss | head`",
            )
        )
    if swap.total and swap.used > SWAPPED * swap.total:
        wrong.append(
            warning(
                f"{mounts.text(swap.used)} are swapped out: jobs become slow without a word",
                "`worker_limits`; `swapoff -a`",
            )
        )
    swaps = f", swap {mounts.text(swap.total)}" if swap.total else ", no swap"
    return worst(wrong, ok(f"{mounts.text(memory.available)} of {mounts.text(memory.total)} available{swaps}"))


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is read."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def kernel_clock() -> tuple[bool, float]:
    """Return whether a program keeps the kernel's clock, and its greatest error (s). Reads only. Raises OSError."""
    timex = _Timex()
    library = ctypes.CDLL(None, use_errno=True)
    state = library.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return state != TIME_ERROR and not timex.status & STA_UNSYNC, timex.maxerror / 1e6


@CHECKS.check(
    "clock-source",
    "nothing keeps this machine's clock: no NTP, or it has not reached its servers",
    "`timedatectl set-ntp true`, or install chrony",
    once=True,
)
def clock_source(target: Target) -> Finding:
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    keepers = [name for name in TIME_DAEMONS if name in names]
    try:
        kept, error_s = kernel_clock()
    except OSError as error:
        return absent(f"the kernel does not tell: {error.strerror}")
    if kept:
        return ok(f"kept{' by ' + keepers[0] if keepers else ''}, off by at most {error_s * 1000:.0f} ms")
    if keepers:
        return warning(
            f"{keepers[0]} runs, and has not set the clock yet", "`timedatectl timesync-status`, or `chronyc sources`"
        )
    return warning("nothing keeps this machine's clock", "`timedatectl set-ntp true`, or `apt install chrony`")


@CHECKS.check(
    "accounts",
    "somebody who has jobs or a key has no account on this server, so their jobs cannot run here",
    "the same accounts, with the same numbers, on all servers: LDAP, or `useradd -u`",
)
def accounts(target: Target) -> Finding:
    assert target.daemon is not None
    if target.daemon.owner != 0:
        return absent(f"the agent is not root: all jobs run as {account(target.daemon.owner)}")
    names = sorted(_owners(target))
    missing = [name for name in names if not _known(name)]
    wrong = []
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        wrong.append(
            failure(
                f"this server has no account {', '.join(missing[:NAMED])}{more}: their jobs cannot run here",
                "make it as on the other servers (LDAP, or `useradd -u NUMBER`); or `elasticctl keys add --account`",
            )
        )
    strangers = _strangers(Path(target.described.checkpoints))
    if strangers:
        wrong.append(
            warning(
                f"checkpoints belong to user {', '.join(map(str, strangers[:NAMED]))}, who has no account here",
                "give people the same number (uid) on all servers",
            )
        )
    if not names and not wrong:
        return absent("no jobs and no list of keys are seen from here")
    return worst(wrong, ok(f"all {len(names)} are there"))


def _known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _owners(target: Target) -> set[str]:
    """Return the accounts of owners of keys and jobs, as far as the caller can see them."""
    found: set[str] = set()
    for daemon in target.daemons:
        if daemon.kind == "controller" and daemon.described is not None:
            try:
                known = KeyDirectory(Path(daemon.described.keys)).principals().known
                found |= {each.account for each in known if each.account and each.revoked_s is None}
            except ElasticError:
                continue
    if target.reach is not None and target.reach.there:
        from ..client import Client

        client = Client(target.address, None if target.key is None else KeyFile.read(target.key))
        try:
            found |= {job.account for job in client.jobs(GetJobs(), most=JOBS_LOOKED_AT).jobs if job.account}
        except ElasticError:
            pass
        finally:
            client.close()
    return found


def _strangers(checkpoints: Path) -> list[int]:
    """Return the numeric owners of directories in `checkpoints` that have no account on this machine."""
    if not checkpoints.is_dir():
        return []
    found = set()
    with os.scandir(checkpoints) as entries:
        for number, entry in enumerate(entries):
            if number >= JOBS_LOOKED_AT:
                break
            uid = entry.stat(follow_symlinks=False).st_uid
            if account(uid) == str(uid):
                found.add(uid)
    return sorted(found)
