"""docs/first-hour.md and docs/first-job.md, executed: five hosts, twelve users, every command of the pages and its output.

Exceptions:

* ``apt-get``, ``git clone`` and ``make install`` need the Internet. The hosts get the files of `make install` as a layer of
  their root, and PyTorch from the environment of this test.
* No systemd boots here. `systemctl.py`, installed as systemctl, starts the daemon of a unit as the unit's user. tests/systemd
  tests the units themselves.
* There are no GPUs: `cpu_slots: 8` is added to each agent's configuration.

Output on a page must appear; digits, spaces and the rest after a "…" may differ.
"""

from __future__ import annotations

import re
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.conftest import run_make

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SERVERS = ("gpu1", "gpu2", "gpu3", "gpu4")
NEW = "gpu5"
USERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy", "mallory", "niaj")
NOT_TYPED = ("apt-get ", "git clone ", "make -C ")
PROMPT = re.compile(r"(?P<who>each|gpu\d|[a-z]+@gpu\d)?(?P<sign>[#$]) (?P<command>.+)")
COMES_WITHIN_S = 60.0
REVOKED_WITHIN_S = 10.0
LOOKS = ("elasticctl servers", "elasticctl status", "elasticctl logs")


@dataclass
class Typed:
    """A command of a page."""

    hosts: tuple[str, ...]
    user: str
    command: str
    shown: list[str] = field(default_factory=list)


def commands(page: str, alone: tuple[str, str] = ("gpu2", "alice")) -> Iterator[Typed]:
    """Commands of the page's console blocks; `alone`: host and user of a prompt without a name."""
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        now: Typed | None = None
        for line in block.splitlines():
            if found := PROMPT.fullmatch(line):
                if now is not None:
                    yield now
                who = found["who"]
                user, _, host = (who or "@".join(reversed(alone))).rpartition("@")
                now = Typed(SERVERS if host == "each" else (host,), user or "root", found["command"])
            elif line.startswith(">"):
                assert now is not None, line
                now.command += "\n" + line[2:]
            else:
                assert now is not None, line
                now.shown.append(line)
        if now is not None:
            yield now


def plain(text: str) -> str:
    return " ".join(re.sub(r"\d+", "0", text).split())


def comes(shown: str, said: list[str]) -> bool:
    begin, dots, _ = shown.partition("…")
    if dots:
        return any(line.startswith(plain(begin)) for line in said)
    return plain(shown) in said


class Desk:
    """Runs the commands of a page on the hosts, and records the output."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.record: list[str] = []
        self._directories: dict[str, str] = {}  # working directory of each user, as set by `cd`

    def record_of(self, word: str) -> str:
        """The commands that contain `word`, with their output."""
        return "\n".join(entry for entry in self.record if word in entry)

    def type(self, host: str, typed: Typed) -> None:
        prompt = f"{host}#" if typed.user == "root" else f"{typed.user}@{host}$"
        if typed.command.startswith(NOT_TYPED):
            self.record.append(f"{prompt} {typed.command}    (not typed here)")
            return
        if typed.command.startswith("systemctl enable --now elasticctl-agent"):
            self.lab[host].shell("echo 'cpu_slots: 8' >> /etc/elasticctl/agent.yaml")
        deadline = time.monotonic() + COMES_WITHIN_S
        while True:
            done = self._once(host, typed)
            said = [plain(line) for line in (done.stdout + done.stderr).splitlines()]
            missing = [line for line in typed.shown if not comes(line, said)]
            if not missing or not typed.command.startswith(LOOKS) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        self.record.append(f"{prompt} {typed.command}\n{done.stdout}{done.stderr}".rstrip())
        assert not missing, f"{missing} should have come of:\n{self.record[-1]}"
        refused = any(line.startswith("elasticctl: ") for line in typed.shown)
        assert refused == bool(done.returncode), f"exit code {done.returncode}\n" + "\n".join(self.record[-3:])

    def _once(self, host: str, typed: Typed) -> Any:
        where = self._directories.get(typed.user, "~")
        mark = "//here:"
        line = f"cd {where}\n{typed.command}\ncode=$?; echo {mark}$PWD; exit $code"
        done = self.lab[host].shell(line, user=typed.user, check=False)
        out, _, directory = done.stdout.rpartition(mark)
        self._directories[typed.user] = directory.strip() or where
        done.stdout = out
        return done


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of `make install`, with PyTorch."""
    stage = tmp_path_factory.mktemp("stage")
    run_make(stage)
    stage.chmod(0o755)
    packages = Path(sysconfig.get_path("purelib"))
    if not packages.is_relative_to(ROOT):
        pytest.skip(f"PyTorch is at {packages}, which the hosts do not see")
    for site in stage.glob("opt/elasticctl/lib/python3*/site-packages"):
        (site / "checkout.pth").write_text(f"{packages}\n")
    systemctl = stage / "usr/local/sbin/systemctl"
    systemctl.parent.mkdir(parents=True, exist_ok=True)
    systemctl.write_text((HERE / "systemctl.py").read_text())
    systemctl.chmod(0o755)
    return stage


@pytest.fixture
def desk(make_lab: Callable[..., Any], installed: Path, tmp_path: Path) -> Iterator[Desk]:
    for name in ("home", "data"):
        (tmp_path / name).mkdir()
    shared = {tmp_path / "home": "/home", tmp_path / "data": "/data"}
    lab = make_lab(*SERVERS, NEW, users=USERS, ssh=True, layers=(installed,), shared=shared)
    for host in lab.hosts.values():
        host.shell("systemd-sysusers /usr/local/lib/sysusers.d/elasticctl.conf")
        host.shell("systemd-tmpfiles --create /usr/local/lib/tmpfiles.d/elasticctl.conf")
        host.shell("chmod 755 /data")
    made = Desk(lab)
    yield made
    print("\n".join(made.record))
    for host in lab.hosts.values():
        print(f"--- {host.name}\n" + host.shell("tail -n 15 /var/log/elasticctl-*.log", check=False).stdout)


def test_the_pages_work_when_typed(desk: Desk) -> None:
    hosts = desk.lab.hosts
    owners: set[str] = set()
    for typed in commands("first-hour.md"):
        if typed.user == "bob" and "cancel" in typed.command:
            deadline = time.monotonic() + COMES_WITHIN_S
            while not owners and time.monotonic() < deadline:  # until Alice's program runs on some host
                lines = [host.shell("ps -eo user:20,args").stdout.splitlines() for host in hosts.values()]
                owners = {line.split()[0] for found in lines for line in found if line.endswith("time.sleep(3600)")}
        for host in typed.hosts:
            desk.type(host, typed)
    assert owners == {"alice"}, "jobs run as their owners"
    assert "carol" in desk.record_of("audit.log")
    deadline = time.monotonic() + REVOKED_WITHIN_S
    while hosts["gpu3"].shell("elasticctl status", user="bob", check=False).returncode == 0:
        assert time.monotonic() < deadline, "who was revoked is still let in"

    for typed in commands("first-job.md"):
        desk.type(typed.hosts[0], typed)
    view = hosts["gpu1"].shell("elasticctl status --all", user="alice").stdout
    assert re.search(r"first-\d+ +alice +finished", view), view
    assert re.search(r"second-\d+ +alice +cancelled", view), view
    assert "resized" in hosts["gpu1"].shell("elasticctl events first").stdout
    alive = re.findall(r"^(gpu\d) +alive", hosts["gpu1"].shell("elasticctl servers").stdout, re.MULTILINE)
    assert alive == [*SERVERS, NEW]
