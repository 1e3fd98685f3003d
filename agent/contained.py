"""A worker's container, as its shim starts it: with podman, and what podman is to know. The standard library alone.

Theory of operation
-------------------
The shim has the rights of the job's owner by now, so podman is *rootless*: the owner is root in the container, and nobody
more outside. podman keeps images and containers in the owner's home. Here only the images are used, as a read-only store
below (`additionalimagestore`): containers, locks and podman's own records lie in the worker's directory for temporary
files, which is removed with the worker. So nothing is left of a container, however it ends, and two workers share no
state by which one could hold up the other.

The owner's own configuration of podman (``~/.config/containers``) is not read: programs that it may name would run without
`no_new_privs` (see `privileges.drop`). The machine's (``/etc/containers``) is, but for ``containers.conf``.

The container's standard input is a socket to the shim (`container_init`).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
from typing import Any

# Started by an image's Python. `-I`: neither variables nor the directory count.
LOADER = (
    "import json,socket;s=socket.socket(fileno=0);d=socket.recv_fds(s,16,1)[1][0];"
    "o=json.load(open(d));n={'__name__':'container_init'};exec(compile(o['program'],'container_init','exec'),n);n['main'](s,o)"
)
# Arguments: directories, image, further stores, and those of `podman run`
SCRIPT = r"""
state=$1 run=$2 image=$3 stores=$4; shift 4
for file in "/run/user/$(id -u)/containers/auth.json" "$HOME/.config/containers/auth.json"; do
    if [ -r "$file" ]; then REGISTRY_AUTH_FILE=$file; export REGISTRY_AUTH_FILE; fi
done
CONTAINERS_CONF=$state/images.conf; export CONTAINERS_CONF
found=$(podman --log-level error info --format '{{.Store.GraphDriverName}} {{.Store.GraphRoot}}' </dev/null) || exit 125
case $found in
"overlay "*) ;;
*)  echo "podman keeps images here with the driver ${found%% *}, and containers of jobs need driver = \"overlay\" in" \
        "/etc/containers/storage.conf" >&2
    exit 125 ;;
esac
if ! podman --log-level error image exists "$image" </dev/null; then
    echo "podman pulls the image $image, which this server lacks" >&2
    if ! why=$(podman --log-level error pull --quiet "$image" </dev/null 2>&1 >/dev/null); then
        echo "the image $image is not on this server, and podman cannot pull it: ${why##*Error: }" >&2
        exit 125
    fi
fi
CONTAINERS_CONF=$state/containers.conf
exec podman --log-level error --storage-driver overlay --root "$state/root" --runroot "$run/containers" \
    --storage-opt "additionalimagestore=${found#* }$stores" run "$@"
"""
CONFIGURATION = """[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
static_dir = "{state}/{name}/static"
tmp_dir = "{run}/{name}"
volume_path = "{state}/{name}/volumes"
"""
SIGNALLED = range(129, 193)  # exit codes by which podman reports a signal
STATUS_BYTES = 64


class Container:
    """One worker's container. Its files belong to the worker's account."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._state: str = orders["state"]
        self._run: str = orders["run"]
        self._ours, self._theirs = socket.socketpair()

    def prepare(self) -> None:
        """Write podman's configuration. Raises OSError."""
        os.mkdir(self._state, 0o700)
        os.mkdir(self._run, 0o700)
        os.mkdir(f"{self._run}/xdg", 0o700)
        for name in ("images", "containers"):
            text = CONFIGURATION.format(runtime=self._orders["runtime"], state=self._state, run=self._run, name=name)
            with open(f"{self._state}/{name}.conf", "w", encoding="utf-8") as file:
                file.write(text)
        orders = os.memfd_create("orders", os.MFD_CLOEXEC)
        try:
            with open(orders, "w", encoding="utf-8", closefd=False) as file:
                json.dump(self._orders["inside"], file)
            os.lseek(orders, 0, os.SEEK_SET)
            socket.send_fds(self._ours, [b"orders"], [orders])
        finally:
            os.close(orders)

    @property
    def argv(self) -> list[str]:
        """Command line that runs the container. It holds nothing secret."""
        flags = [*self._orders["flags"], *(f"--ulimit={each}" for each in _ulimits())]
        entry = json.dumps([self._orders["interpreter"], "-I", "-c", LOADER])
        image = self._orders["image"]
        run = [*flags, f"--entrypoint={entry}", image]
        return ["/bin/sh", "-c", SCRIPT, "podman", self._state, self._run, image, self._orders["stores"], *run]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of podman itself."""
        own = {"XDG_RUNTIME_DIR": f"{self._run}/xdg", "XDG_CONFIG_HOME": f"{self._state}/none"}
        return {**self._orders["environment"], **own}

    @property
    def stdin(self) -> int:
        """Descriptor of the standard input."""
        return self._theirs.fileno()

    def begun(self) -> None:
        """Close the container's end of the socket in this process."""
        self._theirs.close()

    def ended(self, code: int) -> int:
        """Return the exit code of the command, or minus its signal, and let go of all that is left of the container.

        code: of podman's client, likewise.
        """
        self._ours.setblocking(False)
        try:
            word, _, status = self._ours.recv(STATUS_BYTES).partition(b" ")
            told = int(status) if word == b"status" else None
        except (OSError, ValueError):  # it has ended without a word
            told = None
        self._ours.close()
        if told is not None and 0 <= told <= 0xFFFF:
            return os.waitstatus_to_exitcode(told)
        return 128 - code if code in SIGNALLED else code

    def remove(self) -> None:
        """Remove podman's state of the ended container, as far as it lies outside of the worker's temporary files."""
        shutil.rmtree(self._run, ignore_errors=True)


def _ulimits() -> list[str]:
    """Return the limits of this process, which are those of a plain worker. podman's own defaults may be above them, which
    the kernel refuses."""
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        most_tasks = int(file.read())  # above it podman lowers its own limit
    found = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        soft, hard = resource.getrlimit(number)
        if number == resource.RLIMIT_NPROC:
            hard = most_tasks if hard == resource.RLIM_INFINITY else min(hard, most_tasks)
            soft = hard
        found.append(f"{name}={soft}:{hard}")
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found.append(f"memlock={soft}:{hard}")  # -1: none
    return [*found, "core=0:0"]
