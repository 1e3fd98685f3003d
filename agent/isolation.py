"""Isolation of a server's jobs beyond their accounts, tried out by the agent itself, with a report of the parts that
fail.

Theory of operation
-------------------
Three things depend on the kernel, systemd and the agent's own rights: control groups with their limits (`cgroups`), the
device files of GPUs (`devices`), and a /tmp and /dev/shm of each job's own (`rooms`). Only the process that needs a
right can tell whether it has it: a check with the full rights of an administrator finds no fault. So the agent tries
them when it starts, and again each minute, and records the result (`config.ISOLATION` in its state directory, which
``elasticctl doctor`` reads). A part that is needed and fails is a trouble of the server (`health.LimitsTried`), which
then gets no work; and each start of a worker fails by itself as well.

Optional parts (``auto``) are decided when the agent starts; the decision then stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ..protocol.model import Allocatable
from . import accounts, cgroups, launcher, privileges, shim
from .cgroups import Cgroups
from .config import ISOLATION, AgentConfig, Apart, all_memory_bytes, scratch_directory, tag
from .devices import Devices, Nodes
from .health import LimitsTried
from .monitoring import Looker
from .rooms import Rooms, hidden

log = logging.getLogger(__name__)

TRIED_EACH_S = 60.0
TRIED_WITHIN_S = 30.0
PROBE = "probe"


class Isolation:
    """Control groups, device files and rooms of one agent's workers. `devices` and `rooms` are None where jobs have
    neither.
    """

    def __init__(
        self, options: AgentConfig, memory_bytes: int, nodes: Nodes, sockets: Path, wake: Callable[[], None]
    ) -> None:
        """`memory_bytes`: of the server. `nodes`: device files of its GPUs. `sockets`: directory of the socket for workers."""
        own = accounts.own_account()
        self._options = options
        self._memory_bytes = memory_bytes
        self._wake = wake
        self._serves = own.uid == 0 and not options.allow_root_jobs  # other accounts than its own
        limits, needed = options.worker_limits, options.limits_needed
        self.cgroups = Cgroups(
            tag(options.state),
            cgroups.Limits(*limits.each()),
            all_memory_bytes(limits, memory_bytes),
            cgroups.mounted(),
            own_too=limits.given,
            needed=self._serves and needed,
            asked=limits.asked if needed else frozenset(),
            strict=needed,
        )
        self._own = own
        self.devices: Devices | None = Devices(nodes)
        self.rooms: Rooms | None = Rooms(options.state / "rooms", tag(options.state))
        self._without: list[str] = []  # parts that jobs lack here, with reasons
        self._seen: deque[LimitsTried] = deque()
        self._looker = Looker("limits of workers", self._look, TRIED_EACH_S, TRIED_WITHIN_S)
        places = [options.state, options.checkpoints, scratch_directory(options), sockets]
        self.no_containers = ""
        self._unheld = self._settle(places)
        self._write()

    def _settle(self, places: Sequence[Path]) -> str:
        """Decide about the optional parts. Returns why needed parts are unavailable; "": all work."""
        wanted = self._options.isolation
        problems: list[str] = []
        for name, how, try_it in (
            ("devices", wanted.devices, self._try_devices),
            ("tmp", wanted.tmp, lambda: self._try_room(places)),
        ):
            why = "it is switched off (`isolation`)"
            if how is not Apart.OFF:
                why = try_it() if self._serves else "all jobs run as the agent's own account"
            if not why:
                continue
            if how is Apart.REQUIRED:
                problems.append(f"{name} of a job's own cannot be had: {why}")
                continue
            if name == "devices":
                self.devices = None
            else:
                self.rooms = None
            if self._serves:
                self._without.append(f"jobs have no {name} of their own: {why}")
                if how is Apart.AUTO:
                    log.warning("%s", self._without[-1])
        return "; ".join([*([each] if (each := self.cgroups.unheld()) else []), *problems])

    def _try_devices(self) -> str:
        assert self.devices is not None
        if not self.devices.told:
            return "the driver does not tell the device files of all GPUs"
        if not self.cgroups.unified:
            return "control groups of version 2 are not mounted"
        try:
            made = self.cgroups.make(f"{PROBE}-devices-{os.getpid()}")
            if not made:
                return "there are no control groups"
            try:
                self.devices.close_all(made[0])
            finally:
                cgroups.remove(made)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _try_room(self, places: Sequence[Path]) -> str:
        assert self.rooms is not None
        if (found := hidden(places)) is not None:
            return f"{found}, which workers need, would be hidden"
        try:
            name = self.rooms.make(PROBE, PROBE, self._own)
            try:
                return _moves_in(self.rooms.mounts(name))
            finally:
                self.rooms.leave(PROBE, PROBE, self._own)
        except OSError as error:
            return f"{error.filename}: {error.strerror}"

    # -- while the agent runs

    def allocatable(self, cores: int) -> Allocatable:
        """Return what this server has for workers that ask for cores or memory. Blocks for the kernel."""
        limits = self._options.worker_limits
        memory_bytes, _, cpus = limits.each()
        return Allocatable(
            cpus=float(cores),
            memory_bytes=all_memory_bytes(limits, self._memory_bytes) or 0,
            worker_cpus=cpus or 0.0,
            worker_memory_bytes=memory_bytes or 0,
            unheld=self.cgroups.unheld_of_jobs(),
        )

    @property
    def serves(self) -> bool:
        """Whether jobs of other accounts than the agent's own run here."""
        return self._serves

    @property
    def tried(self) -> LimitsTried:
        """Result of the last trial."""
        return LimitsTried(self._unheld)

    def note_containers(self, unavailable: str) -> None:
        """Record why workers cannot run in containers here, for `elasticctl doctor`; "": they can."""
        self.no_containers = unavailable
        self._write()

    def start(self) -> None:
        if self._serves or self._options.worker_limits.given:
            self._looker.start()

    def deliver(self) -> list[LimitsTried]:
        """Return the results since the last call."""
        found = []
        while self._seen:
            found.append(self._seen.popleft())
        return found

    def close(self) -> None:
        self._looker.close()
        self.cgroups.close()
        if self.rooms is not None:
            self.rooms.close()

    def _look(self) -> None:
        """Repeat the trial, in the looker's thread. A required part that failed at the start needs a restart, so it is
        not tried again.
        """
        if self._options.isolation.required and self._unheld:
            return
        self._unheld = self.cgroups.unheld(kill=False)
        self._write()
        self._seen.append(LimitsTried(self._unheld))
        self._wake()

    def _write(self) -> None:
        document: dict[str, object] = {
            "pid": os.getpid(),
            "start_ticks": shim.start_ticks(os.getpid()),
            "tried_s": time.time(),
            "unheld": self._unheld,
            "serves": self._serves,
            "notes": [*self.cgroups.notes, *self._without],
            "no_containers": self.no_containers,
        }
        with contextlib.suppress(OSError):  # the state directory is full, which is reported elsewhere
            shim.write_whole(str(self._options.state / ISOLATION), document)


def _moves_in(mounts: Sequence[tuple[str, str]]) -> str:
    """Return why a process cannot have these directories mounted over others; "": it can."""
    orders = privileges.write_orders(
        {"command": ["/bin/true"], "environment": {}, "drop": None, "cgroups": [], "umask": 0o22, "room": mounts}
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", launcher.__file__],
            stdin=orders,
            env={},
            cwd="/",
            capture_output=True,
            timeout=TRIED_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        os.close(orders)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}"
