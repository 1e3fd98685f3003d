"""``python -m elasticd.ctl.remote``: the part of `elasticctl up --hosts` that runs on a host, started through ssh.

One request in JSON comes by the standard input, one line with the answer goes out. No action begins before the whole
request has arrived. One directory holds all files of one server of one cluster: the agent's configuration, its key, its
log and its state. It is in the user's state directory (mode 0700), for root in /var/lib, since other accounts cannot
reach into root's home. A home directory that several hosts share does no harm.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from .. import __version__
from ..protocol.errors import ElasticError, RequestRefused
from ..protocol.messages import PROTOCOL_VERSION
from ..runtime.processes import start_ticks
from . import leftovers
from .record import Daemon

ANSWER = b"elasticctl-remote: "
AGENT = "agent"
KEY = "agent.key"
RECORD = "daemon.json"
READY_WITHIN_S = 120.0
TOLD_LINES = 5

Identifier = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Look(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Report versions, and the state of this server's agent."""

    cluster: Identifier
    server: Identifier


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start the agent, unless it runs."""

    cluster: Identifier
    server: Identifier
    options: dict[str, str | int | bool]  # the agent's configuration without paths, which the host adds
    key: str | None = None  # a key file's text; None: the key on the host


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the agent and its workers, and remove their files, unless `keep` is set."""

    cluster: Identifier
    server: Identifier
    keep: bool = False


Request = Look | Start | Stop


class Seen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to `Look`."""

    version: str
    protocol: int
    runs: bool
    public: str = ""  # public key of the server; "": the host has no key
    log: str = ""  # the agent's last lines


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The agent runs."""

    new: bool  # the agent was started by this request


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Neither the agent nor a worker runs."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request failed."""

    reason: str


Answer = Seen | Started | Stopped | Failed


def directory_of(cluster: str, server: str) -> Path:
    """Return the directory of one server of one cluster on its host."""
    base = os.environ.get("XDG_STATE_HOME") or (
        "/var/lib" if os.getuid() == 0 else str(Path.home() / ".local" / "state")
    )
    return Path(base) / "elasticctl" / "hosts" / cluster / server


def answer(request: Request) -> Answer:
    """Carry the request out and return its answer. Raises ElasticError, OSError."""
    directory = directory_of(request.cluster, request.server)
    match request:
        case Look():
            return Seen(
                version=__version__,
                protocol=PROTOCOL_VERSION,
                runs=_runs(directory),
                public=_public(directory),
                log=_tail(directory),
            )
        case Start():
            return _start(directory, request)
        case Stop():
            return _stop(directory, request.keep)


def _runs(directory: Path) -> bool:
    return leftovers.daemon_runs(directory, _record(directory), AGENT)


def _start(directory: Path, request: Start) -> Started:
    if _runs(directory):
        return Started(new=False)
    was_there = directory.exists()
    try:
        _lay_out(directory, request)
        _launch(directory)
    except BaseException:
        if not was_there:
            shutil.rmtree(directory, ignore_errors=True)
            _remove_empty(directory)
        raise
    return Started(new=True)


def _lay_out(directory: Path, request: Start) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (directory.parent.parent, directory.parent, directory):
        each.chmod(0o711 if os.getuid() == 0 else 0o700)  # root starts workers of other accounts, which pass through
    (directory / "log").mkdir(mode=0o700, exist_ok=True)
    if request.key is not None:
        _write_secret(directory / KEY, request.key)
    options = {
        "checkpoint_directory": str(directory / "checkpoints"),
        **request.options,
        "server": request.server,
        "key_file": str(directory / KEY),
        "state_directory": str(directory / AGENT),
    }
    (directory / f"{AGENT}.yaml").write_text(yaml.safe_dump(options, sort_keys=False))


def _launch(directory: Path) -> None:
    """Start the agent and wait until it reports that it is ready. Raises RequestRefused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ready:
        ready.bind("")  # the kernel chooses a name, outside of the file system
        name = ready.getsockname()
        assert isinstance(name, bytes)
        with (directory / "log" / f"{AGENT}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticd.agent", "--config", str(directory / f"{AGENT}.yaml")],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": "@" + name[1:].decode()},
                start_new_session=True,
            )
        _write_record(directory, {AGENT: Daemon(process.pid, start_ticks(process.pid) or 0)})
        try:
            _wait_until_ready(directory, process, ready)
        except BaseException:
            process.kill()
            process.wait()
            raise


def _wait_until_ready(directory: Path, process: subprocess.Popen[bytes], ready: socket.socket) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if select.select([ready], [], [], 0.05)[0] and b"READY=1" in ready.recv(4096):
            return
        if process.poll() is not None:
            raise RequestRefused(f"its agent does not start: {_tail(directory) or f'exit code {process.returncode}'}")
    raise RequestRefused(f"its agent is not ready within {READY_WITHIN_S:.0f} s: {_tail(directory)}")


def _stop(directory: Path, keep: bool) -> Stopped:
    left = leftovers.stop_everything(directory, _record(directory))
    if left:
        raise RequestRefused(f"these processes do not end: {', '.join(map(str, left))}")
    if keep:
        with contextlib.suppress(FileNotFoundError):
            (directory / RECORD).unlink()
    elif directory.exists():
        _remove_sockets(directory)
        shutil.rmtree(directory)
        _remove_empty(directory)
    return Stopped()


def _remove_sockets(directory: Path) -> None:
    with contextlib.suppress(OSError):
        sockets = Path((directory / AGENT / "socket_directory").read_text().strip())
        if sockets.is_absolute() and sockets.name and sockets.is_dir():
            shutil.rmtree(sockets, ignore_errors=True)
            sockets.parent.rmdir()


def _remove_empty(directory: Path) -> None:
    """Remove the empty parent directories, up to elasticctl's own."""
    for above in list(directory.parents)[:3]:
        with contextlib.suppress(OSError):
            above.rmdir()


# -- files


def _record(directory: Path) -> dict[str, Daemon]:
    try:
        return msgspec.json.decode((directory / RECORD).read_bytes(), type=dict[str, Daemon])
    except (OSError, msgspec.MsgspecError):
        return {}


def _write_record(directory: Path, daemons: dict[str, Daemon]) -> None:
    temporary = directory / f"{RECORD}.new"
    temporary.write_bytes(msgspec.json.encode(daemons))
    os.replace(temporary, directory / RECORD)


def _write_secret(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _public(directory: Path) -> str:
    """Return the public key in the server's key file, or ""."""
    try:
        text = (directory / KEY).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.search(r"^public: *['\"]?(\S{40})['\"]?$", text, re.MULTILINE)
    return found[1] if found else ""


def _tail(directory: Path) -> str:
    try:
        text = (directory / "log" / f"{AGENT}.log").read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TOLD_LINES:])


def main() -> int:
    """Return the exit code: 0 if the request was carried out."""
    # The end of the connection must not interrupt a request that has begun.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        request: Request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found: Answer = Failed(reason=f"elasticctl {__version__} there does not understand the request")
    else:
        try:
            found = answer(request)
        except (ElasticError, OSError) as error:
            found = Failed(reason=str(error))
    sys.stdout.buffer.write(b"\n" + ANSWER + msgspec.json.encode(found) + b"\n")
    return 1 if isinstance(found, Failed) else 0


if __name__ == "__main__":
    sys.exit(main())
