"""Hosts as namespaces of this machine, on one switch: each has its own address, processes, files, users and name.

Theory of operation
-------------------
A host is a process that acts as its init, in its own namespaces: network, mounts, processes, host name, IPC, control groups. Its
root is an overlay over this machine's root: files installed here are visible there; files that a host writes are visible to that
host alone, and vanish with it. /tmp, /run and /dev/shm are empty at its start. No resource has a name outside: when a host's init
ends, for whatever reason, the kernel ends its processes and removes its files, its network and its end of the cable. Each init
ends with the process that created it, even if that is killed.

A host is reached by entering its namespaces (`run`, `start`), or by a real sshd in it.

There are two networks, as servers often have: the hosts' names resolve to the first, the second carries traffic between workers.
A network is a bridge in one more network namespace. To pull a cable (`unplug`), its port is removed from the bridge.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = ("10.77.0", "10.78.0")
BOOTED_WITHIN_S = 30.0
ENTER = ("net", "mount", "pid", "uts", "ipc", "cgroup")
AS_USER = "setpriv --reuid {user} --regid {user} --init-groups"
SSHD = "/usr/sbin/sshd"
TOOLS = ("unshare", "nsenter", "setpriv", "ip", "mount", "pivot_root")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CGROUPS = Path("/sys/fs/cgroup/unified") if Path("/sys/fs/cgroup/unified").is_dir() else Path("/sys/fs/cgroup")

BOOT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/up /mnt/work /mnt/root /mnt/binds
# What is to be seen is kept reachable: the overlay shows the root's own files only, and /tmp will be empty.
for number in "${{!binds[@]}}"; do
    mkdir -p "/mnt/binds${{binds[number]}}"
    mount --bind "${{sources[number]}}" "/mnt/binds${{binds[number]}}"
done
for path in "${{readonly[@]}}"; do
    mkdir -p "/mnt/binds$path"
    mount --bind "$path" "/mnt/binds$path"
done
chmod 755 /mnt/up
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
R=/mnt/root
# A host begins without what root did on this machine.
rm -rf $R/root/.ssh $R/root/.config/elasticctl $R/root/.local/state/elasticctl
rm -rf $R/etc/elasticctl $R/var/lib/elasticctl $R/var/log/elasticctl
for layer in "${{layers[@]}}"; do cp -a "$layer/." $R/; done
chown root:root $R
chmod 755 $R
for directory in tmp run mnt; do mount -t tmpfs -o mode=755 tmpfs $R/$directory; done
chmod 1777 $R/tmp
mkdir -p $R/run/sshd $R/run/lock
mount -t proc proc $R/proc
mount -t sysfs -o ro sysfs $R/sys
mount -t tmpfs tmpfs $R/sys/fs/cgroup 2>/dev/null && mount -t cgroup2 cgroup2 $R/sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs $R/dev
for name in null zero full random urandom tty; do touch $R/dev/$name; mount --bind /dev/$name $R/dev/$name; done
ln -s /proc/self/fd $R/dev/fd; ln -s fd/0 $R/dev/stdin; ln -s fd/1 $R/dev/stdout; ln -s fd/2 $R/dev/stderr
mkdir $R/dev/pts $R/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts $R/dev/pts; ln -s pts/ptmx $R/dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs $R/dev/shm
for path in "${{binds[@]}}"; do mkdir -p "$R$path"; mount --bind "/mnt/binds$path" "$R$path"; done
for path in "${{readonly[@]}}"; do
    mkdir -p "$R$path"
    mount --bind "/mnt/binds$path" "$R$path"
    mount -o remount,bind,ro "$R$path"
done
chmod 711 $R/root # a Python that lies below it may be executed by everybody
printf '%s' {hosts} > $R/etc/hosts
echo {name} > $R/etc/hostname
hostname {name}
ip link set lo up
cd $R
mkdir -p mnt/old
pivot_root . mnt/old
umount -l /mnt/old
cd /
: > {ready}
exec /bin/bash -c 'trap "exit 0" TERM; while :; do sleep 1000000 & wait $!; done'
"""


SSHD_CONFIG = b"""
HostKey /run/sshd/key
PidFile /run/sshd/pid
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100:30:200
Subsystem sftp internal-sftp
"""


class NotPermitted(Exception):
    """This machine does not permit the creation of namespaces."""


class Host:
    """One host. Others reach it at its `addresses`, one per network; its name resolves to the first."""

    def __init__(
        self, name: str, addresses: tuple[str, ...], keeper: subprocess.Popen[bytes], init: int, cgroup: Path | None
    ) -> None:
        self.name = name
        self.addresses = addresses
        self._keeper = keeper
        self._init = init
        self._cgroup = cgroup

    def entering(self, user: str = "root") -> list[str]:
        """Return the prefix of a command that is to run here as `user`."""
        enter = ["nsenter", "--target", str(self._init), *(f"--{kind}" for kind in ENTER), "--root", "--wd"]
        if self._cgroup is not None:
            enter = ["/bin/sh", "-c", f'echo $$ > {self._cgroup}/cgroup.procs; exec "$@"', "-", *enter]
        return enter if user == "root" else [*enter, *AS_USER.format(user=user).split()]

    def run(
        self,
        *command: str,
        user: str = "root",
        given: bytes | None = None,
        check: bool = True,
        variables: Mapping[str, str] | None = None,
        limit_s: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` here to its end. Raises AssertionError with its output, if `check` and it fails."""
        done = subprocess.run(
            [*self.entering(user), *command],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            env=self.environment(user, variables),
            timeout=limit_s,
        )
        text = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check:
            line = shlex.join(command)
            assert text.returncode == 0, f"{self.name}$ {line}\nexit {text.returncode}\n{text.stdout}\n{text.stderr}"
        return text

    def shell(
        self, line: str, user: str = "root", check: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command line here, in the user's home."""
        return self.run("bash", "-c", f"cd; {line}", user=user, check=check, variables=variables)

    def start(self, *command: str, log: Path, user: str = "root", variables: Mapping[str, str] | None = None) -> None:
        """Start `command` here in the background, with its output in `log`."""
        with log.open("ab") as out:
            subprocess.Popen(
                [*self.entering(user), "setsid", "--fork", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment(user, variables),
            ).wait()

    def environment(self, user: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a fresh login, without any variable of this process."""
        home = "/root" if user == "root" else f"/home/{user}"
        base = {"PATH": PATH, "HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        return {**base, **(variables or {})}

    def write(self, path: str, content: bytes, mode: int = 0o644, owner: str = "root") -> None:
        """Write the file `path` on this host."""
        line = 'umask 077; cat > "$1"; chmod "$2" "$1"; chown "$3:" "$1"'
        self.run("sh", "-c", line, "-", path, f"{mode:o}", owner, given=content)

    @property
    def runs(self) -> bool:
        return self._keeper.poll() is None

    def kill(self) -> None:
        """Switch the host off: all its processes end at once, and its memory is lost."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._keeper.wait()
        if self._cgroup is not None:
            remove_cgroup(self._cgroup)

    def processes(self) -> list[int]:
        """Return the process ids, in this machine's numbering, of the host's processes."""
        mine = os.readlink(f"/proc/{self._init}/ns/pid")
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/ns/pid") == mine:
                        found.append(int(entry))
        return sorted(found)


class Lab:
    """Hosts on one switch; a context manager."""

    def __init__(
        self, names: Sequence[str], shared: Mapping[Path, str] | Iterable[Path] = (), layers: Iterable[Path] = ()
    ) -> None:
        """shared: directories that all hosts see and may write to, as on a file server; mapped to their paths on the hosts, else
        at the same path as here.

        layers: directories with additional files of all hosts, such as installed programs.

        Raises NotPermitted if this machine does not permit namespaces.
        """
        self._require()
        self._names = tuple(names)
        places = shared if isinstance(shared, Mapping) else {path: str(path.absolute()) for path in shared}
        self._shared = {place: str(path.absolute()) for path, place in places.items()}
        self._layers = [str(path.absolute()) for path in layers]
        self._directory = Path(tempfile.mkdtemp(prefix="elasticctl-lab-"))
        self.hosts: dict[str, Host] = {}
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Lab:
        try:
            self._switch = self._keep("unshare", "--net", "--kill-child", "sleep", "infinity")
            self._until(lambda: _namespace(self._switch) != _namespace(None), "the switch has a network of its own")
            for network in range(len(NETWORKS)):
                self.on_switch("ip", "link", "add", f"br{network}", "type", "bridge")
                self.on_switch("ip", "link", "set", f"br{network}", "up")
            for name in self._names:
                self.add(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def address(self, name: str, network: int = 0) -> str:
        return f"{NETWORKS[network]}.{self._names.index(name) + 1}"

    def add(self, name: str) -> Host:
        """Boot a host, again if it was killed."""
        ready = f"/run/ready-{name}"
        hosts = "".join(["127.0.0.1 localhost\n", *(f"{self.address(each)} {each}\n" for each in self._names)])
        script = self._directory / f"{name}.sh"
        script.write_text(
            f"binds=({shlex.join(self._shared)}) sources=({shlex.join(self._shared.values())})\n"
            f"layers=({shlex.join(self._layers)}) readonly=({shlex.quote(str(ROOT))})\n"
            + BOOT.format(hosts=shlex.quote(hosts), name=name, ready=ready)
        )
        cgroup = self._cgroup(name)
        log = self._directory / f"{name}.log"
        keeper = self._keep(
            "bash", "-c", f'{f"echo $$ > {cgroup}/cgroup.procs; " if cgroup else ""}exec "$@"', "-",
            "unshare", *(f"--{kind}" for kind in ENTER), "--fork", "--kill-child", "bash", str(script), log=log,
        )  # fmt: skip
        self._until(lambda: _child(keeper.pid) is not None or keeper.poll() is not None, f"{name} has an init")
        init = _child(keeper.pid)
        if init is None:
            raise NotPermitted(f"host {name}: {log.read_text(errors='replace').strip()}")
        self._until(
            lambda: Path(f"/proc/{init}/root{ready}").exists() or keeper.poll() is not None, f"{name} boots", log
        )
        if keeper.poll() is not None:
            raise NotPermitted(f"host {name}: {log.read_text(errors='replace').strip()}")
        addresses = tuple(self.address(name, network) for network in range(len(NETWORKS)))
        host = self.hosts[name] = Host(name, addresses, keeper, init, cgroup)
        for network, address in enumerate(addresses):
            card, port = f"eth{network}", self._port(name, network)
            number = self._names.index(name) + 1
            with contextlib.suppress(NotPermitted):  # of a killed host, which the kernel may not have removed yet
                self.on_switch("ip", "link", "delete", port)
            other = ["name", card, "address", f"02:77:00:00:{network:02x}:{number:02x}", "netns", str(init)]
            self.on_switch("ip", "link", "add", port, "type", "veth", "peer", *other)
            self.on_switch("ip", "link", "set", port, "master", f"br{network}", "up")
            host.run("ip", "address", "add", f"{address}/24", "dev", card)
            host.run("ip", "link", "set", card, "up")
        return host

    def unplug(self, name: str) -> None:
        """Pull the cables of a host: no frame passes any more, and no peer is notified."""
        for network in range(len(NETWORKS)):
            self.on_switch("ip", "link", "set", self._port(name, network), "nomaster")

    def plug(self, name: str) -> None:
        for network in range(len(NETWORKS)):
            self.on_switch("ip", "link", "set", self._port(name, network), "master", f"br{network}")
        for host in self.hosts.values():  # a host that has failed to resolve a neighbour does not retry at once
            host.run("ip", "neighbour", "flush", "all", check=False)

    def _port(self, name: str, network: int) -> str:
        return f"port{self._names.index(name)}.{network}"

    def close(self) -> None:
        for host in self.hosts.values():
            host.kill()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        for cgroup in CGROUPS.glob(f"{self._directory.name}-*"):  # of a host that has failed to boot
            remove_cgroup(cgroup)
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- ssh

    def add_user(self, user: str, on: Iterable[str] | None = None) -> None:
        """Create a user with a home, on all hosts or some of them."""
        for host in self.hosts.values() if on is None else [self.hosts[name] for name in on]:
            host.run("useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user)

    def serve_ssh(self, users: Sequence[str] = ("root",)) -> None:
        """Run a real sshd on each host. These users can log in from each host to each other with a key, without a prompt."""
        if not Path(SSHD).exists():
            raise NotPermitted(f"{SSHD} is missing: scripts/need-sshd")
        for kind in ("host", "user"):
            if not (self._directory / kind).exists():
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", kind, "-f", str(self._directory / kind)]
                subprocess.run(command, check=True, env={"PATH": PATH})
        files = {name: (self._directory / name).read_bytes() for name in ("host", "host.pub", "user", "user.pub")}
        known = "".join(f"{name},{self.address(name)} {files['host.pub'].decode()}" for name in self._names).encode()
        for host in self.hosts.values():
            host.write("/run/sshd/key", files["host"], 0o600)
            host.write("/run/sshd/config", SSHD_CONFIG, 0o600)
            for user in users:
                home = host.environment(user)["HOME"]
                host.run("install", "-d", "-m", "700", "-o", user, "-g", user, f"{home}/.ssh")
                for name, content in (
                    ("id_ed25519", files["user"]), ("authorized_keys", files["user.pub"]), ("known_hosts", known)
                ):  # fmt: skip
                    host.write(f"{home}/.ssh/{name}", content, 0o600, user)
            host.run(SSHD, "-f", "/run/sshd/config", "-E", "/run/sshd/log")

    # -- creation

    @staticmethod
    def _require() -> None:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise NotPermitted("hosts are namespaces of Linux, and only root may make them")
        missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
        if missing:
            raise NotPermitted(f"missing: {', '.join(missing)} (Debian: apt-get install util-linux iproute2)")

    def _cgroup(self, name: str) -> Path | None:
        """Return the control group that is the root of the host's own tree, where this machine has cgroups (version 2)."""
        path = CGROUPS / f"{self._directory.name}-{name}"
        try:
            path.mkdir(exist_ok=True)
        except OSError:
            return None
        if not (path / "cgroup.procs").exists():
            path.rmdir()
            return None
        return path

    def _keep(self, *command: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start `command`, which ends with this process."""
        out = log.open("ab") if log is not None else None
        try:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=out or subprocess.DEVNULL,
                stderr=out or subprocess.DEVNULL,
                env={"PATH": PATH},
                start_new_session=True,
            )
        finally:
            if out is not None:
                out.close()

    def on_switch_keep(self, *command: str) -> subprocess.Popen[bytes]:
        """Start `command` in the network of the switch, with pipes to its stdin and stdout. It ends with this process."""
        assert self._switch is not None
        enter = ["setpriv", "--pdeathsig", "KILL", "nsenter", "--target", str(self._switch.pid), "--net"]
        return subprocess.Popen(
            [*enter, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": PATH},
            start_new_session=True,
        )

    def on_switch(self, *command: str) -> None:
        """Run `command` in the network of the switch. Raises NotPermitted if it fails."""
        assert self._switch is not None
        enter = ["nsenter", "--target", str(self._switch.pid), "--net"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, env={"PATH": PATH})
        if done.returncode:
            raise NotPermitted(f"{shlex.join(command)}: {done.stderr.strip()}")

    def _until(self, probe: object, what: str, log: Path | None = None) -> None:
        assert callable(probe)
        deadline = time.monotonic() + BOOTED_WITHIN_S
        while not probe():
            if time.monotonic() > deadline:
                said = log.read_text(errors="replace").strip() if log is not None else ""
                raise NotPermitted(f"not within {BOOTED_WITHIN_S:.0f} s: {what}: {said}")
            time.sleep(0.01)


def remove_cgroup(path: Path) -> None:
    """Remove a control group and those below it, all without processes."""
    for directory, _, _ in os.walk(path, topdown=False):
        for _ in range(100):
            try:
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError:  # its last processes are still exiting
                time.sleep(0.02)


def _child(pid: int) -> int | None:
    """Return the only child of process `pid`; None if there is none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _namespace(process: subprocess.Popen[bytes] | None) -> str:
    try:
        return os.readlink(f"/proc/{process.pid if process else 'self'}/ns/net")
    except OSError:
        return ""
