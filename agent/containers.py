"""Containers of workers: whether this server can run them, and the orders by which a shim starts one (`contained`).

Theory of operation
-------------------
podman runs the container as the job's owner. A user chooses the image and nothing else: mounts and options are built
here, from the job's directory, the directories that each worker has, and those that the operator names
(`container_mounts`). A path that a user names is resolved by podman with that user's rights.

The container shares the server's network (control plane, NCCL, Gloo) and processes, has the owner's control group and
limits, no capabilities, and `no_new_privs`. It has its job's /tmp and /dev/shm, as plain workers have (`rooms`): workers of
a job exchange tensors there.

Which runtime serves depends on the control groups: crun needs those of version 2, and runc takes version 1 and hybrids.
A container makes no group of its own where it can be without one. On a hybrid, runc insists on one for root: it is made
below the worker's, whose limits then bind it too.

GPUs come by the Container Device Interface: NVIDIA's file names a device for each GPU, with all files and libraries of
the driver that a container needs.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from .. import __version__
from ..protocol.images import mountable
from ..protocol.messages import StartWorker
from ..protocol.model import Gpu, GpuKind
from .accounts import Account, acting_as
from .cgroups import Mounted
from .environment import DEFAULT_PATH, Surroundings

INIT = Path(__file__).with_name("container_init.py")
CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"
STORAGE = Path("/etc/containers/storage.conf")
STATUS = Path("/proc/self/status")
MAX_CDI_BYTES = 8 << 20
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
STATE = "podman"  # podman's directory, in the worker's directory for temporary files
MEND_GPUS = "`nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml` makes one"


@dataclass(frozen=True)
class Containers:
    """The means of one server to run containers."""

    mounted: Mounted
    mounts: Sequence[str] = ()  # of the operator: absolute paths, or PATH:ro
    proxies: Mapping[str, str] = field(default_factory=dict)  # for podman, where it fetches images
    path: str = DEFAULT_PATH
    cdi: Sequence[Path] = CDI_DIRECTORIES
    storage: Path = STORAGE

    @property
    def unified(self) -> bool:
        """Whether control groups are those of version 2 alone, as podman sees it."""
        return self.mounted.unified == Path("/sys/fs/cgroup")

    @property
    def runtime(self) -> str:
        return "crun" if self.unified else "runc"

    def unavailable(self, gpus: Sequence[Gpu], others: bool) -> str:
        """Return why workers cannot run in containers here; "": they can. `others`: workers of other accounts as well."""
        if not self._has("podman"):
            return "podman is not installed"
        if not self._has(self.runtime):
            groups = "control groups of version 2" if self.unified else "control groups of version 1, or a hybrid"
            return f"{self.runtime} is not installed, which podman needs with {groups}"
        if others or os.getuid() != 0:
            if not self._has("newuidmap"):
                return "newuidmap is not installed (package uidmap), which podman needs for accounts other than root"
            if _no_new_privileges():
                return "the agent runs with NoNewPrivileges, with which newuidmap cannot work (docs/operators.md, Containers)"
        nvidia = [gpu for gpu in gpus if gpu.kind is GpuKind.CUDA]
        if nvidia:
            names = self._devices()
            missing = [gpu.index for gpu in nvidia if not _device(gpu, names)]
            if missing:
                return f"no file in {self.cdi[0]} names GPU {missing[0]} by its UUID ({CDI_KIND}): {MEND_GPUS}"
        return ""

    def _has(self, program: str) -> bool:
        return shutil.which(program, path=self.path) is not None

    def orders(
        self,
        start: StartWorker,
        gpus: Sequence[Gpu],
        account: Account,
        around: Surroundings,
        environment: Mapping[str, str],
        scratch: Path,
        cgroups: Sequence[str],
        umask: int,
    ) -> dict[str, object]:
        """Return the shim's orders for the container of a worker. `gpus`: that it sees. Raises ValueError, OSError."""
        spec = start.spec
        python = os.path.basename(spec.command[0]).startswith("python")
        return {
            "image": spec.image,
            "state": str(scratch / STATE),
            "run": running_state(scratch),
            "stores": "".join(f",{store}" for store in self._stores()),
            "runtime": self.runtime,
            "interpreter": spec.command[0] if python else "python3",
            "flags": [
                *self._flags(account, cgroups),
                *(f"--device={CDI_KIND}={name}" for name in self._names(gpus)),
                *self._mounts(start, account, around, scratch),
            ],
            # $USER may be a part of `rootless_storage_path`
            "environment": {"HOME": account.home, "USER": account.name, "PATH": self.path, **self.proxies},
            "inside": {
                "program": INIT.read_text(encoding="utf-8"),
                "image": spec.image,
                "interpreter": spec.command[0] if python else "python3",
                "command": spec.command,
                "workdir": spec.workdir,
                "environment": environment,
                "umask": umask,
                "version": __version__ if python and spec.expected_to_join else "",
            },
        }

    def _flags(self, account: Account, cgroups: Sequence[str]) -> list[str]:
        root = account.uid == 0
        flags = ["--pull=never", "--user=0:0", "--workdir=/", "--network=host", "--ipc=none", "--systemd=false"]
        flags += ["--cap-drop=all", "--security-opt=no-new-privileges", "--security-opt=label=disable"]
        flags += ["--http-proxy=false", "--no-healthcheck", "--log-driver=passthrough"]
        if root and self.unified:
            return [*flags, "--cgroups=disabled"]  # which podman allows with a PID namespace only
        flags += ["--pid=host", "--cgroups=no-conmon"]
        if root and cgroups:
            return [*flags, f"--cgroup-parent={_in_hierarchy(cgroups[0])}"]
        if not root and self.runtime == "crun":
            flags.append("--group-add=keep-groups")
        return flags

    def _mounts(self, start: StartWorker, account: Account, around: Surroundings, scratch: Path) -> list[str]:
        """Return podman's options for the directories that the container shares with the server. Raises ValueError."""
        needed = [
            "/tmp",
            "/dev/shm",
            start.spec.workdir,
            str(around.checkpoints_of(start, account)),
            os.path.dirname(around.agent_address_for(account).removeprefix("ipc://")),
            str(scratch),
        ]
        if start.spec.resume is not None and start.spec.resume.directory:
            needed.append(start.spec.resume.directory)
        found = dict.fromkeys(needed, "")
        for mount in self.mounts:
            path, _, how = mount.partition(":")
            found.setdefault(path, how)
        for path in found:
            if not mountable(path):
                raise ValueError(f"{path!r} cannot be mounted in a container, by its name")
        binds = [
            f"--mount=type=bind,src={path},dst={path},bind-propagation=rslave{',ro' if how else ''}"
            for path, how in found.items()
        ]
        hidden = (scratch / STATE, running_state(scratch))
        return [*binds, *(f"--mount=type=tmpfs,dst={each},tmpfs-mode=0700,notmpcopyup" for each in hidden)]

    def _names(self, gpus: Sequence[Gpu]) -> list[str]:
        nvidia = [gpu for gpu in gpus if gpu.kind is GpuKind.CUDA]
        known = self._devices() if nvidia else frozenset()
        names = [_device(gpu, known) for gpu in nvidia]
        if not all(names):
            raise OSError(0, f"no file in {self.cdi[0]} names all of its GPUs by their UUIDs: {MEND_GPUS}")
        return names

    def _devices(self) -> frozenset[str]:
        """Return the names of NVIDIA's devices in the files of the Container Device Interface."""
        found: set[str] = set()
        for path in sorted(path for directory in self.cdi if directory.is_dir() for path in directory.iterdir()):
            if path.suffix not in (".yaml", ".json"):
                continue
            try:
                with path.open("rb") as file:
                    text = file.read(MAX_CDI_BYTES)
                document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
                if document["kind"] == CDI_KIND:
                    found |= {str(device["name"]) for device in document["devices"]}
            except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):  # podman reports it when it reads it
                continue
        return frozenset(found)

    def _stores(self) -> list[str]:
        """Return the read-only image stores that the machine's configuration of podman names, for all accounts."""
        try:
            document = tomllib.loads(self.storage.read_text(encoding="utf-8"))
            found = document["storage"]["options"]["additionalimagestores"]
        except (OSError, ValueError, TypeError, KeyError):
            return []
        return [each for each in found if isinstance(each, str) and mountable(each)] if isinstance(found, list) else []


def forget(scratch: Path, account: Account) -> None:
    """Remove what the shim of an ended worker has left of its container, outside of the worker's temporary files."""
    with acting_as(account):
        shutil.rmtree(running_state(scratch), ignore_errors=True)


def running_state(scratch: Path) -> str:
    """Return podman's directory for running containers of the worker with this directory for temporary files. podman allows
    50 characters for it."""
    return f"/tmp/elasticctl-{scratch.name}"


def _device(gpu: Gpu, names: frozenset[str]) -> str:
    """Return the name of a GPU's CDI device; "": it has none. A number does not do: the driver counts anew at each boot."""
    return gpu.uuid if gpu.uuid and gpu.uuid in names else ""


def _in_hierarchy(path: str) -> str:
    """Return the path of a control group from the top of its hierarchy."""
    top = next(above for above in Path(path).parents if os.path.ismount(above) or above == above.parent)
    return f"/{Path(path).relative_to(top)}"


def _no_new_privileges() -> bool:
    try:
        return "NoNewPrivs:\t1" in STATUS.read_text(encoding="ascii")
    except OSError:
        return False
