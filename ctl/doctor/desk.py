"""Checks of a user's desk: the program itself, the way to the cluster, the key, and the state of the cluster's servers."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import stat
import sys
from collections.abc import Iterable

from ... import __version__
from ...protocol.errors import UserError
from ...protocol.messages import PROTOCOL_VERSION, VERSIONS_AHEAD, ServerState, ServerView
from ...protocol.principals import CLIENT_ROLES
from ...protocol.texts import many
from ...runtime.keys import KeyFile
from .. import record
from ..reach import Reach, Step, short
from ..render import span
from . import interpreters
from .checks import Finding, Register, absent, failure, ok, warning, worst
from .interpreters import ASKED_WITHIN_S, numbers
from .targets import Subject, Target

CHECKS = Register(Subject.DESK)
LEAST_PYTHON = (3, 11)
OFF_S, FAR_OFF_S = 1.0, 60.0  # differences of clocks that are a warning, and a failure
NAMED = 5  # most items named in a sentence

NO_CONTROLLER = absent("the controller does not answer: see there")


def _reached(target: Target) -> Reach | None:
    return target.reach if target.reach is not None and target.reach.there else None


@CHECKS.check(
    "packages",
    "Python is too old, or a package that elasticctl needs is missing, too old, or without encryption",
    "install again: `make install`, or pip in the environment that it names",
)
def packages(target: Target) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        return failure(f"Python {version} is too old", "install Python 3.11 or newer, then elasticctl again")
    wrong = []
    try:
        needed = importlib.metadata.requires("elasticctl") or []
    except importlib.metadata.PackageNotFoundError:
        return failure("elasticctl is not installed as a package", f"{sys.executable} -m pip install elasticctl")
    for line in needed:
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)", line.replace(" ", ""))
        if match is None:  # a conditional requirement, such as `; extra == "worker"`
            continue
        try:
            there = importlib.metadata.version(match[1])
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{match[1]} is missing")
            continue
        if numbers(there) < numbers(match[2]):
            wrong.append(f"{match[1]} {there} is older than {match[2]}")
    import zmq

    if not zmq.has("curve"):
        wrong.append("ZeroMQ is built without CURVE, so it cannot encrypt")
    if wrong:
        return failure("; ".join(wrong), f"{sys.executable} -m pip install --upgrade elasticctl")
    return ok(f"elasticctl {__version__}, Python {version}, ZeroMQ {zmq.zmq_version()}")


@CHECKS.check(
    "cluster",
    "no cluster is named here, or its address or the file that names it is wrong",
    "`elasticctl login FILE` with your key; `elasticctl up` for one of your own; --controller",
)
def cluster(target: Target) -> Finding:
    if target.mistaken:
        return failure(target.no_cluster, "correct what it names, or `elasticctl login FILE` once more")
    if target.no_cluster and target.daemons:
        return absent("this is a machine of the cluster's own; nobody who asks here uses one")
    if target.no_cluster:
        return warning(
            target.no_cluster, "`elasticctl login FILE` with your key, or `elasticctl up` for one of your own"
        )
    variables = [
        name
        for name in ("ELASTICCTL_CONTROLLER", "ELASTICCTL_DIR", "ELASTICCTL_KEY")
        if target.machine.environ.get(name)
    ]
    return ok(f"{target.address}" + (f", as {' and '.join(variables)} says" if variables else ""))


@CHECKS.check(
    "key",
    "your key file is missing, open to others, somebody else's, spoiled, or of a server",
    "`elasticctl login FILE` puts it in its place; `chmod 600`; an operator makes a new one",
)
def key(target: Target) -> Finding:
    if target.no_cluster:
        return absent("no cluster is named")
    if not target.address.startswith("tcp://"):
        return absent("the controller is reached without a key")
    if target.key is None:
        return failure(
            f"there is no key in {target.home}, and {target.address} wants one",
            "an operator makes one (`elasticctl keys add user:NAME`), `elasticctl login FILE` puts it in its place",
        )
    path = target.key.expanduser().absolute()
    try:
        found = KeyFile.read(path, UserError)
    except UserError as error:
        return failure(str(error), f"mode 0600 and your own; or `elasticctl login` with a new one in place of {path}")
    if found.role not in CLIENT_ROLES:
        return failure(
            f"{path} is the key of a {found.role.value}", "ask an operator for a key of your own (user:NAME)"
        )
    if path.parent.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return failure(f"others may write to {path.parent}, and put a key of theirs there", f"chmod go-w {path.parent}")
    return ok(f"{found.role.value}:{found.name}, in {path}")


@CHECKS.check(
    "controller",
    "its name is unknown, nothing listens, something else does, a firewall is between, the key is refused, it hangs",
    "as the sentence says: each of these has one of its own",
)
def controller(target: Target) -> Finding:
    if target.reach is None:
        return absent("no cluster is named")
    others = target.reach.others
    if not target.reach.there:
        worst = next((each for each in (target.reach, *others) if each.step is not Step.STANDBY), target.reach)
        text = "; ".join(f"{each.address}: {each.found}" for each in (target.reach, *others))
        return failure(text if others else target.reach.found, worst.remedy)
    pong = target.reach.pong
    assert pong is not None
    text = (
        f"cluster {pong.cluster} answers within {short(target.reach.round_trip_s)}; {many(pong.servers, 'server')}, "
        f"policy {pong.policy}"
    )
    if not others:
        return ok(text)
    text = f"{text}; {target.reach.address} leads"
    if failed := [each for each in others if each.step not in (Step.STANDBY, Step.THERE)]:
        return warning("; ".join([text, *(f"{each.address}: {each.found}" for each in failed)]), failed[0].remedy)
    if leaders := [each.address for each in others if each.there]:
        return failure(f"{text}, and so do others: {', '.join(leaders)}", "name the controllers of one cluster alone")
    return ok(f"{text}, {len(others)} stand by")


@CHECKS.check(
    "version",
    "elasticctl here and the controller are of different versions",
    "install the controller's version here; upgrade the controller first",
)
def version(target: Target) -> Finding:
    reached = _reached(target)
    if reached is None or reached.pong is None:
        return NO_CONTROLLER
    there = reached.pong
    if there.protocol != PROTOCOL_VERSION:
        served = abs(there.protocol - PROTOCOL_VERSION) <= VERSIONS_AHEAD
        return (warning if served else failure)(
            f"the controller speaks protocol {there.protocol}, elasticctl here {PROTOCOL_VERSION}",
            f"install elasticctl {there.version} here",
        )
    if there.version != __version__:
        return warning(
            f"the controller is elasticctl {there.version}, this is {__version__}",
            f"install elasticctl {there.version} here",
        )
    return ok(f"{__version__} here and there")


@CHECKS.check(
    "clock",
    "the clock here and the controller's differ by more than a second: ages, `--since` and logs do not fit",
    "set both by NTP: `timedatectl set-ntp true`, or chrony",
)
def clock(target: Target) -> Finding:
    reached = _reached(target)
    if reached is None:
        return NO_CONTROLLER
    if reached.ahead_s is None:
        return absent("the controller does not tell its time: it is of an older version")
    return difference("the controller's clock", reached.ahead_s, reached.round_trip_s / 2)


def difference(whose: str, ahead_s: float, unsure_s: float) -> Finding:
    """Return the finding on a clock that is ahead of the other one by `ahead_s`. `whose`: name of the clock."""
    off_s = abs(ahead_s)
    if off_s <= OFF_S + unsure_s:
        return ok(f"{whose} differs by {short(off_s)}, give or take {short(unsure_s)}")
    way = "ahead" if ahead_s > 0 else "behind"
    told = failure if off_s > FAR_OFF_S else warning
    length = span(off_s) if off_s >= 10 else f"{off_s:.1f} s"
    return told(
        f"{whose} is {length} {way}", "`timedatectl` on both machines; set them by NTP (`timedatectl set-ntp true`)"
    )


@CHECKS.check(
    "servers",
    "the cluster has no servers, or some are lost, cannot start workers, or are of another version",
    "on that server: `sudo elasticctl doctor`",
)
def servers(target: Target) -> Finding:
    reached = _reached(target)
    if reached is None or reached.pong is None:
        return NO_CONTROLLER
    if not reached.servers:
        return warning(
            "the cluster has no server yet", "start an agent: `systemctl enable --now elasticctl-agent` there"
        )
    states = {state: [view for view in reached.servers if view.state is state] for state in ServerState}
    found = []
    if lost := states[ServerState.LOST]:
        found.append(failure(f"lost: {_names(lost)}", "on that server: `sudo elasticctl doctor`"))
    unwell = [view for view in reached.servers if view.state not in (ServerState.ALIVE, ServerState.LOST)]
    found += [
        warning(
            f"{view.server.server} is {view.state.value}: {view.trouble}", "on that server: `sudo elasticctl doctor`"
        )
        for view in unwell[:NAMED]
    ]
    versions = {view.server.version for view in states[ServerState.ALIVE]} - {"", reached.pong.version}
    if versions:
        others = [view for view in states[ServerState.ALIVE] if view.server.version in versions]
        found.append(
            warning(
                f"not elasticctl {reached.pong.version}, as the controller: {_names(others)}",
                "install that there, then `systemctl restart elasticctl-agent`: jobs go on",
            )
        )
    return worst(found, ok(f"{len(reached.servers)} of {len(reached.servers)} are alive"))


@CHECKS.check(
    "server-clocks",
    "a server's clock differs from the controller's by more than a second",
    "on that server `timedatectl set-ntp true`, or chrony",
)
def server_clocks(target: Target) -> Finding:
    reached = _reached(target)
    if reached is None:
        return NO_CONTROLLER
    told = [view for view in reached.servers if view.alive and view.clock_ahead_s is not None]
    if not told:
        return absent("no server tells its time")
    wrong = [
        found
        for view in told
        if (found := difference(f"the clock of {view.server.server}", view.clock_ahead_s or 0.0, 0.0)).remedy
    ]
    most_s = max(abs(view.clock_ahead_s or 0.0) for view in told)
    return worst(
        wrong[:NAMED],
        ok(f"the clocks of {len(told)} servers differ from the controller's by {short(most_s)} at most"),
    )


@CHECKS.check(
    "shared-directory",
    "servers see different directories of checkpoints, or one does not answer: jobs cannot go on from another server",
    "mount the same export of the same file server on all of them: `checkpoint_directory`",
)
def shared_directory(target: Target) -> Finding:
    reached = _reached(target)
    if reached is None:
        return NO_CONTROLLER
    told = [
        (view, view.server.checkpoints)
        for view in reached.servers
        if view.alive and view.server.checkpoints is not None
    ]
    if len(told) < 2:
        return absent("fewer than two servers tell where their checkpoints are")
    silent = [view for view, storage in told if not storage.kind]
    if silent:
        return failure(
            f"the directory of checkpoints does not answer on {_names(silent)}",
            "there: `df` of it, `mount`, `dmesg`; mount it again, then restart the agent: jobs go on",
        )
    places: dict[str, list[ServerView]] = {}
    for view, storage in told:
        places.setdefault(storage.place, []).append(view)
    kinds = {storage.place: storage for _, storage in told}
    if len(places) == 1:
        only = next(iter(kinds.values()))
        return ok(f"{len(told)} servers see the same {only.kind}" + (f" ({only.place})" if only.shared else ""))
    parts = [
        f"{_names(views)}: {kinds[where].kind} {where if kinds[where].shared else kinds[where].path}"
        for where, views in list(places.items())[:NAMED]
    ]
    more = f"; and {len(places) - NAMED} more" if len(places) > NAMED else ""
    remedy = (
        "mount the same export by the same name everywhere, and name it: `checkpoint_directory`; restart the agents"
    )
    if len(places) == len(told) and not any(storage.shared for _, storage in told):
        return warning(
            f"each server has checkpoints of its own, so no job survives its last server ({'; '.join(parts)}{more})",
            remedy,
        )
    return failure(f"servers see different directories of checkpoints: {'; '.join(parts)}{more}", remedy)


def _names(views: Iterable[ServerView]) -> str:
    names = [view.server.server for view in views]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@CHECKS.check(
    "interpreter",
    "the Python in PATH, with which `submit -- python ...` would run, has no torch, or no or another elasticctl",
    "pip install elasticctl and torch into that environment, or submit with another interpreter",
    limit_s=ASKED_WITHIN_S + 5,
)
def interpreter(target: Target) -> Finding:
    if not target.python or shutil.which(target.python) is None:
        named = target.python or "no python"
        return (
            warning(f"{named} is in PATH", "install Python, or activate your environment")
            if not target.python
            else failure(f"{named} is no program", "name an interpreter: --python PATH")
        )
    found = interpreters.ask(target.python, target.machine.environ)
    if isinstance(found, str):
        return failure(f"{target.python}: {found}", "mend this environment, or name another interpreter: --python PATH")
    remedy = f"{target.python} -m pip install elasticctl torch; or activate the environment of your jobs first"
    missing = []
    if not found.elasticctl:
        missing.append("has no elasticctl, so no job can be elastic with it")
    elif found.elasticctl != __version__:
        missing.append(f"has elasticctl {found.elasticctl}, this is {__version__}")
    if found.torch_error:
        missing.append(f"cannot load torch ({found.torch_error})")
    if missing:
        return warning(f"{target.python} {' and '.join(missing)}", remedy)
    return ok(f"{target.python}: Python {found.version}, torch {found.torch}, elasticctl {found.elasticctl}")


@CHECKS.check(
    "local-daemons",
    "a daemon of the cluster that `elasticctl up` has started here has died",
    "read its log, then `elasticctl up` starts it again",
)
def local_daemons(target: Target) -> Finding:
    if target.directory is None or not (target.directory / record.FILE).exists():
        return absent("`elasticctl up` has started none here")
    found = record.read(target.directory)
    if found is None or found.stopped:
        return absent(f"the cluster at {target.directory} is stopped")
    dead = [name for name, daemon in found.daemons.items() if not daemon.runs]
    if dead:
        told = [
            f"{name} (was process {found.daemons[name].pid}; log {record.log_of(target.directory, name)})"
            for name in dead
        ]
        return failure(
            f"not running: {', '.join(told)}", "`elasticctl up` starts what is missing; the log tells why it ended"
        )
    pids = ", ".join(f"{name} {daemon.pid}" for name, daemon in found.daemons.items())
    return ok(f"run: {pids}; logs in {target.directory / 'log'}")
