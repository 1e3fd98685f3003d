"""Checks of a server and of the controller's machine, each with its fault brought about."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd.agent.config import others_may_change
from elasticd.ctl.doctor import limits, mounts
from elasticd.ctl.doctor.checks import Outcome
from elasticd.ctl.reach import Reach, Step
from elasticd.protocol.messages import ServerView
from elasticd.protocol.model import Adapter, GpuWiring, Server, ServerId, Wiring
from elasticd.runtime.keys import KeyDirectory

LINK = "ip link add dum0 type veth peer name dum1; ip address add 10.98.0.1/24 dev dum0; ip link set dum0 up"
FAR = "tcp://controller.lab:7701"


def failed(found: Any, *words: str) -> bool:
    return found.outcome is Outcome.FAILURE and bool(found.remedy) and all(word in found.found for word in words)


def warned(found: Any, *words: str) -> bool:
    return found.outcome is Outcome.WARNING and bool(found.remedy) and all(word in found.found for word in words)


# -- the daemon


def test_a_daemon_that_does_not_run_is_named_with_the_end_of_its_log(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "agent.log").write_text("began\nthe disk is full\n")
    assert failed(bench.look("daemon", bench.target()), "no agent runs with", "the disk is full")
    pid = bench.stand_in()
    assert bench.look("daemon", bench.target()).found.startswith(f"process {pid} runs")


def test_a_unit_that_failed_is_stale_or_not_enabled_is_told(bench: Any, tmp_path: Path) -> None:
    units, tools = tmp_path / "units", tmp_path / "tools"
    units.mkdir()
    tools.mkdir()
    python = next(iter(bench.desk().python.split()))
    (units / "elasticctl-agent.service").write_text(
        f"[Service]\nExecStart={python} -I -m elasticd.agent --config {tmp_path}/agent.yaml\n"
    )
    told = {"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0", "NeedDaemonReload": "no"}

    def look(**changes: str) -> Any:
        lines = "\n".join(f"{name}={value}" for name, value in {**told, **changes}.items())
        (tools / "systemctl").write_text(f"#!/bin/sh\ncat <<END\n{lines}\nEND\n")
        (tools / "systemctl").chmod(0o755)
        machine = msgspec_replace(bench.machine, units=(units,), environ={"PATH": f"{tools}:{os.environ['PATH']}"})
        return bench.look("unit", bench.target(machine=machine))

    assert look().outcome is Outcome.OK
    assert failed(look(ActiveState="failed"), "has failed")
    assert failed(look(ActiveState="inactive"), "is inactive")
    assert warned(look(UnitFileState="disabled"), "does not start with the machine")
    assert warned(look(NeedDaemonReload="yes"), "has changed since systemd read it")
    assert warned(look(NRestarts="7"), "was started again 7 times")
    (units / "elasticctl-agent.service").write_text(
        f"[Service]\nExecStart=/nowhere/python -m elasticd.agent --config {tmp_path}/agent.yaml\n"
    )
    assert failed(look(), "/nowhere/python, which is not there")


def msgspec_replace(machine: Any, **changes: Any) -> Any:
    return type(machine)(**{**machine.__dict__, **changes})


# -- directories


def test_state_that_is_anothers_open_or_a_file_is_a_failure(bench: Any, tmp_path: Path, as_root: None) -> None:
    tmp_path.chmod(0o755)
    target = bench.target(state_directory="/var/tmp/elasticctl-doctor-none")
    assert "is not there yet" in bench.look("state", target).found
    state = tmp_path / "agent"
    state.mkdir(mode=0o700)
    target = bench.target(allow_root_jobs=True, controller=f"ipc://{tmp_path}/agents")
    assert bench.look("state", target).outcome is Outcome.OK
    state.chmod(0o775)
    assert failed(bench.look("state", target), "others may write to")
    state.chmod(0o700)
    os.chown(state, 4321, 4321)
    assert failed(bench.look("state", target), "belongs to 4321, and the daemon runs as root")
    state.rmdir()
    state.write_text("")
    assert failed(bench.look("state", target), "is no directory")


def test_directories_behind_a_closed_one_are_out_of_reach_for_other_accounts(open_bench: Any, as_root: None) -> None:
    home = open_bench.directory / "home"
    home.mkdir(mode=0o755)
    for name in ("state", "check", "x"):
        (home / name).mkdir(mode=0o711)
    target = open_bench.target(
        state_directory=f"{home}/state", checkpoint_directory=f"{home}/check", scratch_directory=f"{home}/x/scratch"
    )
    for name in ("state", "checkpoints", "scratch"):
        assert "pass through" not in open_bench.look(name, target).found, name
    home.chmod(0o700)
    for name in ("state", "checkpoints", "scratch"):
        assert failed(open_bench.look(name, target), f"cannot pass through {home}"), name


@pytest.mark.cluster
def test_a_full_or_read_only_disk_and_one_in_memory_are_failures(bench: Any) -> None:
    state, other = bench.directory / "agent", bench.directory / "check"
    state.mkdir(mode=0o711)
    other.mkdir()
    file = bench.file("agent", checkpoint_directory=str(other), allow_root_jobs=True)
    before = f"mount -t tmpfs -o size=1M,mode=711 tmpfs {state}; mount -t tmpfs -o ro tmpfs {other}"
    text = bench.run(file, "--only", "state", "--only", "checkpoints", before=before)
    assert f"{state} is full: 1 MiB are left" in text
    assert f"{state} is in memory (tmpfs)" in text
    assert f"{other} can only be read" in text
    assert "a restart loses all checkpoints" in text
    before = f"mount -t tmpfs -o size=2G,nr_inodes=20,mode=711 tmpfs {state}; (cd {state}; touch $(seq 19) || true)"
    assert "hardly any inodes left" in bench.run(file, "--only", "state", before=before)


def test_a_controllers_store_on_the_network_is_a_failure(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "controller").mkdir(mode=0o711)
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:1 / {tmp_path} rw - nfs4 nas:/lab\\040data rw\n"
    )
    target = bench.target("controller")
    target = type(target)(**{**target.__dict__, "machine": msgspec_replace(bench.machine, proc=proc)})
    assert failed(bench.look("state", target), "is on the network (nfs4), where SQLite cannot keep its promises")
    found = mounts.mount_of(tmp_path, proc)
    assert (found.at, found.kind, found.source) == (str(tmp_path), "nfs4", "nas:/lab data")
    assert mounts.mount_of(Path("/usr"), proc).kind == "ext4"


def test_checkpoints_where_others_rename_or_the_agent_may_not_write(open_bench: Any) -> None:
    bench, tmp_path = open_bench, open_bench.directory
    directory = tmp_path / "check"
    directory.mkdir()
    target = bench.target(checkpoint_directory=str(directory), controller=FAR, key_file="/none", allow_root_jobs=True)
    assert warned(bench.look("checkpoints", target), "no job survives its last server")
    directory.chmod(0o777)
    assert failed(bench.look("checkpoints", target), "rename what is others' there")
    directory.chmod(0o1777)
    assert "rename" not in bench.look("checkpoints", target).found
    (tmp_path / "file").write_text("")
    assert failed(
        bench.look("checkpoints", bench.target(checkpoint_directory=str(tmp_path / "file"))), "is no directory"
    )


def test_what_an_agent_of_another_account_may_not_write(bench: Any, tmp_path: Path, as_root: None) -> None:
    directory = tmp_path / "check"
    directory.mkdir(mode=0o755)
    target = bench.target(checkpoint_directory=str(directory), log_file=str(directory / "agent.log"))
    daemon = msgspec.structs.replace(target.daemon, owner=4321)
    target = type(target)(**{**target.__dict__, "daemon": daemon})
    assert failed(bench.look("checkpoints", target), "4321, as the agent, may not make directories")
    assert failed(bench.look("log", target), "4321 may not make a file in")
    missing = bench.target(state_directory=str(directory / "a" / "b"))
    missing = type(missing)(**{**missing.__dict__, "daemon": msgspec.structs.replace(missing.daemon, owner=4321)})
    assert failed(bench.look("state", missing), "is missing, and 4321 may not make it")


def test_a_log_without_a_directory_or_of_another_account(bench: Any, tmp_path: Path) -> None:
    assert failed(bench.look("log", bench.target(log_file=f"{tmp_path}/none/agent.log")), "there is no directory")
    assert bench.look("log", bench.target(log_file=f"{tmp_path}/agent.log")).outcome is Outcome.OK
    assert bench.look("log", bench.target()).outcome is Outcome.ABSENT


def test_scratch_in_memory_or_with_a_long_path(bench: Any) -> None:
    found = bench.look("scratch", bench.target(scratch_directory="/dev/shm/" + "long" * 20, allow_root_jobs=True))
    assert warned(found, "more than 60 bytes", "is in memory (tmpfs)")


def test_a_socket_directory_that_was_cleaned_away_or_where_nobody_listens(bench: Any, tmp_path: Path) -> None:
    sockets = tmp_path / "s"
    options = {"socket_directory": str(sockets), "allow_root_jobs": True, "controller": f"ipc://{tmp_path}/agents"}
    assert bench.look("sockets", bench.target(**options)).outcome is Outcome.ABSENT
    bench.file("agent", **options)
    bench.stand_in()
    assert failed(bench.look("sockets", bench.target(**options)), "has been removed while the agent runs")
    sockets.mkdir(mode=0o700)
    assert failed(bench.look("sockets", bench.target(**options)), "nobody listens")
    sockets.chmod(0o777)
    assert failed(bench.look("sockets", bench.target(**options)), "others may write to")
    sockets.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sockets / "workers"))
        listener.listen()
        assert bench.look("sockets", bench.target(**options)).outcome is Outcome.OK


def test_a_program_that_others_can_change_is_named(bench: Any, tmp_path: Path, as_root: None) -> None:
    program = tmp_path / "python"
    program.write_text("")
    program.chmod(0o777)
    target = bench.target()
    changeable = [str(path) for path in others_may_change((program,))]
    described = msgspec.structs.replace(target.described, changeable=changeable)
    target = type(target)(**{**target.__dict__, "daemon": msgspec.structs.replace(target.daemon, described=described)})
    assert warned(bench.look("programs", target), f"executes what others may change: {program}")


# -- network


def test_a_servers_key_that_is_missing_open_or_anothers(bench: Any, tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path / "keys")
    keys.make()
    keys.add("server:s1", "", tmp_path / "s1.key")
    keys.add("server:other", "", tmp_path / "other.key")

    def look(**options: object) -> Any:
        return bench.look("key", bench.target(controller=FAR, **options))

    assert look(key_file=str(tmp_path / "s1.key")).outcome is Outcome.OK
    assert failed(look(), "wants a key, and the configuration names none")
    assert failed(look(key_file=str(tmp_path / "none.key")), "no such file")
    assert failed(look(key_file=str(tmp_path / "other.key")), "is the key of server:other, and this is server s1")
    (tmp_path / "s1.key").chmod(0o640)
    assert failed(look(key_file=str(tmp_path / "s1.key")), "is open to others")


def test_an_address_that_is_none_of_ours_or_loopback(bench: Any) -> None:
    def look(address: str, controller: str = FAR) -> Any:
        return bench.look("address", bench.target(address=address, controller=controller, key_file="/none"))

    assert failed(look("203.0.113.7"), "is the address of no interface")
    assert failed(look("gpu1"), "is not an IP address")
    assert failed(look("127.0.0.1"), "is loopback: workers of other servers cannot reach")
    assert look("127.0.0.1", controller="ipc:///run/agents").outcome is Outcome.OK


@pytest.mark.cluster
def test_an_interface_that_is_down_is_named(bench: Any) -> None:
    file = bench.file("agent", address="10.99.0.1", controller=FAR, key_file="/none")
    before = "ip link add dum0 type veth peer name dum1; ip address add 10.99.0.1/24 dev dum0"
    assert "dum0, which has 10.99.0.1, is down" in bench.run(file, "--only", "address", before=before)
    assert "10.99.0.1 (dum0" in bench.run(
        file, "--only", "address", before=f"{before}; ip link set dum1 up; ip link set dum0 up", code=0
    )


@pytest.mark.cluster
def test_a_name_that_is_unknown_or_leads_elsewhere(bench: Any, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    nsswitch = tmp_path / "nsswitch.conf"
    nsswitch.write_text("hosts: files\n")
    file = bench.file("agent")
    before = f"ip link set lo up; hostname gpu77; mount --bind {hosts} /etc/hosts; mount --bind {nsswitch} /etc/nsswitch.conf"
    for line, said, code in (
        ("127.0.0.1 localhost", "this machine does not know its own name, gpu77", 1),
        ("10.1.2.3 gpu77", "gpu77 leads to 10.1.2.3, which is not this machine", 1),
        ("127.0.1.1 gpu77", "programs that tell others their host name are not found", 0),
    ):
        hosts.write_text(f"{line}\n")
        assert said in bench.run(file, "--only", "host-name", before=before, code=code)
    hosts.write_text("10.98.0.1 gpu77\n")
    more = f"{before}; {LINK}"
    assert "gpu77 is 10.98.0.1, and back" in bench.run(file, "--only", "host-name", before=more, code=0)
    hosts.write_text("10.98.0.1 other\n10.98.0.1 gpu77\n")
    assert "and that is called other" in bench.run(file, "--only", "host-name", before=more, code=0)


@pytest.mark.cluster
def test_a_name_service_that_hangs_is_told(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:30\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    server = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53)); "
        "print(flush=True); s.recv(9); s.recv(9)"
    )
    before = (
        f"ip link set lo up; hostname gpu77; mount --bind {tmp_path}/nsswitch.conf /etc/nsswitch.conf\n"
        f"mount --bind {tmp_path}/resolv.conf $(readlink -f /etc/resolv.conf)\n"
        f'coproc {bench.desk().python} -c "{server}" >/dev/null 2>&1; sleep 1; trap "kill $COPROC_PID" EXIT'
    )
    text = bench.run(bench.file("agent"), "--only", "host-name", before=before)
    assert "the name service does not answer within 4 s, asked for gpu77" in text


@pytest.mark.cluster
def test_few_ports_are_told(bench: Any) -> None:
    before = "echo '60000 60099' > /proc/sys/net/ipv4/ip_local_port_range"
    text = bench.run(bench.file("agent"), "--only", "ports", before=before)
    assert "only 100 ports to connect from and listen at (60000-60099)" in text


# -- limits


def test_few_open_files_are_told_of_the_daemon_that_runs(bench: Any) -> None:
    bench.file("agent")
    assert bench.look("open-files", bench.target()).outcome is Outcome.ABSENT
    bench.stand_in(limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096)))
    assert failed(bench.look("open-files", bench.target()), "only 512 open files")


def test_few_processes_of_an_account_are_told(bench: Any, as_root: None) -> None:
    bench.file("agent")
    bench.stand_in(limit=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (300, 300)))
    target = bench.target()
    daemon = msgspec.structs.replace(target.daemon, owner=4321)
    assert failed(
        bench.look("processes", type(target)(**{**target.__dict__, "daemon": daemon})), "only 300 threads and processes"
    )


def test_few_tasks_of_the_service_are_told(bench: Any, tmp_path: Path) -> None:
    bench.file("agent")
    pid = bench.stand_in()
    proc = tmp_path / "proc"
    (proc / str(pid)).mkdir(parents=True)
    for name in ("limits", "cgroup"):
        (proc / str(pid) / name).write_text(Path(f"/proc/{pid}/{name}").read_text())
    (proc / str(pid) / "cgroup").write_text("0::/system.slice/elasticctl-agent.service\n")
    (proc / "sys").symlink_to("/proc/sys")
    group = tmp_path / "sys/fs/cgroup/system.slice/elasticctl-agent.service"
    group.mkdir(parents=True)
    (group / "pids.max").write_text("256\n")
    (group.parent / "pids.max").write_text("max\n")
    target = bench.target()
    machine = msgspec_replace(bench.machine, proc=proc, sys=tmp_path / "sys")
    assert failed(bench.look("processes", type(target)(**{**target.__dict__, "machine": machine})), "only 256 threads")


def gpu_at(root: Path, *path: str, gpu: bool = True) -> Path:
    """A PCI device below these bridges, in a kernel tree made by the test."""
    device = root / "devices/pci0000:40" / "/".join(path)
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n" if gpu else "0x15b3\n")
    (device / "class").write_text("0x030200\n" if gpu else "0x020700\n")
    (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for at in (device, *device.parents):
        if at.name.startswith("pci"):
            break
        link = root / "bus/pci/devices" / at.name
        if not link.is_symlink():
            link.symlink_to(at)
    return device


def test_memory_that_infiniband_cannot_lock_is_told(bench: Any, tmp_path: Path) -> None:
    bench.file("agent")
    bench.stand_in(limit=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)))
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    target = bench.target(machine=msgspec_replace(bench.machine, sys=tmp_path / "sys"))
    assert failed(bench.look("locked-memory", target), "1 InfiniBand adapter: a process of a job may lock only 64 KiB")
    assert bench.look("locked-memory", bench.target()).outcome is not Outcome.FAILURE


def test_memory_that_processes_of_eight_gpus_cannot_lock_is_told(bench: Any, tmp_path: Path) -> None:
    bench.file("agent")
    for number in range(8):
        gpu_at(tmp_path / "sys", "0000:40:01.1", f"0000:4{number}:00.0")
    bench.stand_in(limit=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 8 << 20)))

    def look(**changes: Any) -> Any:
        target = bench.target(machine=msgspec_replace(bench.machine, sys=tmp_path / "sys"))
        daemon = msgspec.structs.replace(target.daemon, **changes)
        return bench.look("locked-memory", type(target)(**{**target.__dict__, "daemon": daemon}))

    assert warned(look(owner=4321), "8 GPUs: a process of a job may lock only 64 KiB")
    assert warned(look(owner=0), "8 GPUs: a process of a job may lock only 8 MiB"), (
        "jobs raise theirs to the hard limit"
    )


def test_a_service_that_does_not_run_has_the_limits_that_systemd_would_give_it(bench: Any, tmp_path: Path) -> None:
    units, tools = tmp_path / "units", tmp_path / "tools"
    units.mkdir()
    tools.mkdir()
    unit = units / "elasticctl-agent.service"
    unit.write_text(f"[Service]\nExecStart=python -m elasticd.agent --config {tmp_path}/agent.yaml\n")
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)

    def look(value: str) -> Any:
        (tools / "systemctl").write_text(f"#!/bin/sh\necho LimitMEMLOCK={value}\n")
        (tools / "systemctl").chmod(0o755)
        machine = msgspec_replace(
            bench.machine, units=(units,), sys=tmp_path / "sys", environ={"PATH": f"{tools}:{os.environ['PATH']}"}
        )
        return bench.look("locked-memory", bench.target(machine=machine))

    assert failed(look("8388608"), "may lock only 8 MiB (LimitMEMLOCK of elasticctl-agent)")
    assert look("infinity").outcome is Outcome.OK
    assert look("").outcome is Outcome.ABSENT


# -- the PCI bus


def configuration_space(control: int | None, capability: int = 0x148) -> bytes:
    """PCI configuration space of a bridge: another extended capability, then ACS with this control register, or no ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | (0 if control is None else capability) << 20).to_bytes(4, "little")
    if control is not None:
        space[capability : capability + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[capability + 6 : capability + 8] = control.to_bytes(2, "little")
    return bytes(space)


def test_a_bridge_that_sends_what_gpus_say_to_each_other_elsewhere_is_named(bench: Any, tmp_path: Path) -> None:
    """The registers of nccl #2079 (0x1d) and nccl #606 (0x01), and of a bridge without a GPU below it."""
    root = tmp_path / "sys"
    gpu_at(root, "0000:40:01.1", "0000:41:00.0")
    gpu_at(root, "0000:40:03.1", "0000:61:00.0")
    gpu_at(root, "0000:40:05.1", "0000:81:00.0", gpu=False)

    def look(first: int | None, second: int | None, cut: int = 4096) -> Any:
        for name, control in (("0000:40:01.1", first), ("0000:40:03.1", second), ("0000:40:05.1", 0x1D)):
            (root / "bus/pci/devices" / name / "config").write_bytes(configuration_space(control)[:cut])
        return bench.look("acs", bench.target(machine=msgspec_replace(bench.machine, sys=root)))

    found = look(0x00, 0x1D)
    assert warned(found, "0000:40:03.1 (SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+)")
    assert "0000:40:01.1" not in found.found
    assert "0000:40:05.1" not in found.found
    assert "for b in 0000:40:03.1; do setpci -s $b ECAP_ACS+6.w=0000" in found.remedy
    assert warned(look(0x01, None), "0000:40:01.1 (SrcValid+)")
    assert look(0x00, None).outcome is Outcome.OK
    assert look(0x40, 0x02).outcome is Outcome.OK, "neither bit sends anything elsewhere"
    assert "do not show their ACS register" in look(0x1D, 0x1D, cut=256).found


def test_a_configuration_space_that_is_damaged_tells_nothing(bench: Any) -> None:
    from elasticd.ctl.doctor.buses import access_control

    assert access_control(configuration_space(0x1D)) == 0x1D
    assert access_control(configuration_space(0x1D)[:0x14B]) is None
    circle = bytearray(4096)
    circle[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert access_control(bytes(circle)) is None
    assert access_control(b"\xff" * 4096) is None
    assert access_control(b"") is None


def ports(*layers: str, state: str = "ACTIVE") -> tuple[Adapter, ...]:
    return tuple(
        Adapter(name=f"mlx5_{n}:1", link_layer=layer, state=state, bytes_per_s=25e9) for n, layer in enumerate(layers)
    )


def test_servers_whose_adapters_are_unlike_are_named(bench: Any, tmp_path: Path) -> None:
    """On a server with one InfiniBand port with a link."""
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE"), ("link_layer", "InfiniBand"), ("rate", "200 Gb/sec (4X HDR)")):
        (port / name).write_text(text)
    target = bench.target(machine=msgspec_replace(bench.machine, sys=tmp_path / "sys"))

    def look(**others: tuple[Adapter, ...] | None) -> Any:
        views = []
        for name, told in others.items():
            wiring = Wiring(gpus=(GpuWiring(index=0),), adapters=told)
            server = Server(server=ServerId(name), address="10.0.0.9", gpus=(), wiring=wiring)
            views.append(ServerView(server=server, alive=True, last_heard_s=0.0, used={}))
        reach = Reach(address="x", step=Step.THERE, servers=tuple(views))
        return bench.look("infiniband", type(target)(**{**target.__dict__, "reach": reach}))

    assert look().outcome is Outcome.OK
    assert look(s1=(), s2=ports("InfiniBand"), old=None).found == "1x InfiniBand 200 Gbit/s, like 1 other servers"
    without = look(s2=())
    assert warned(without, "s2 has other adapters with a link: none, and 1x InfiniBand 200 Gbit/s are here")
    assert "workers of a job on both talk over sockets" in without.found
    assert "talk over sockets" in look(s2=ports("InfiniBand", state="DOWN")).found
    assert "NCCL may use fewer of them" in look(s2=ports("InfiniBand", "InfiniBand")).found
    (port / "state").write_text("1: DOWN")
    assert warned(look(), "mlx5_0:1 is DOWN")


def test_a_single_gpu_writes_to_no_other_one(bench: Any, tmp_path: Path) -> None:
    gpu_at(tmp_path / "sys", "0000:40:01.1", "0000:41:00.0")
    target = bench.target(machine=msgspec_replace(bench.machine, sys=tmp_path / "sys"))
    assert bench.look("acs", target).outcome is Outcome.ABSENT


@pytest.mark.cluster
def test_shared_memory_that_is_small_full_or_closed(bench: Any) -> None:
    file = bench.file("agent")
    for options, more, said, code in (
        ("size=64M,mode=1777", "", "/dev/shm has only 64 MiB: a data loader with workers fails", 1),
        ("size=2G,mode=755", "", "/dev/shm has mode 0755: jobs need 1777", 1),
        ("size=512M,mode=1777", "", "few data loaders find room", 0),
        ("size=1G,mode=1777", "; fallocate -l 1000M /dev/shm/full", "/dev/shm is nearly full", 0),
        ("size=2G,mode=1777", "", "2 GiB, 2 GiB free", 0),
    ):
        text = bench.run(file, "--only", "shm", before=f"mount -t tmpfs -o {options} tmpfs /dev/shm{more}", code=code)
        assert said in text, text


@pytest.mark.cluster
def test_missing_control_groups_are_told(bench: Any, as_root: None) -> None:
    file = bench.file("agent")
    text = bench.run(file, "--only", "cgroups", before="umount -R /sys/fs/cgroup", code=0)
    assert "there are no control groups: workers run without limits" in text
    before = (
        "umount -R /sys/fs/cgroup; mount -t tmpfs tmpfs /sys/fs/cgroup; mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup"
    )
    assert "is read-only: workers run without limits" in bench.run(file, "--only", "cgroups", before=before, code=0)


def test_what_holds_of_control_groups_is_asked_of_the_agent_that_runs(bench: Any, as_root: None) -> None:
    bench.file("agent")
    assert "only it can tell" in bench.look("cgroups", bench.target()).found
    pid = bench.stand_in()

    def told(**document: object) -> Any:
        target = bench.target()
        described = msgspec.structs.replace(target.described, isolation=document)
        target = type(target)(
            **{**target.__dict__, "daemon": msgspec.structs.replace(target.daemon, described=described, pid=pid)}
        )
        return bench.look("cgroups", target)

    assert warned(told(), "it is not known")
    assert warned(told(pid=pid + 1, unheld=""), "it is not known")
    assert failed(told(pid=pid, unheld="it has no control group: permission denied"), "no job runs here", "denied")
    assert warned(told(pid=pid, unheld="", serves=True, notes=["tmp: it is switched off"]), "tmp: it is switched off")
    assert "tried by the agent" in told(pid=pid, unheld="", serves=True, notes=[]).found
    assert "nothing keeps them apart" in told(pid=pid, unheld="").found


def test_memory_that_is_not_promised_is_told(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text("2\n")
    target = bench.target()
    target = type(target)(**{**target.__dict__, "machine": msgspec_replace(bench.machine, proc=tmp_path / "proc")})
    assert warned(bench.look("memory", target), "vm.overcommit_memory=2")


def test_a_clock_that_nobody_keeps_is_told(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, error_s = limits.kernel_clock()
    assert error_s >= 0
    monkeypatch.setattr(limits, "kernel_clock", lambda: (True, 0.02))
    assert bench.look("clock-source", bench.target()).outcome is Outcome.OK
    monkeypatch.setattr(limits, "kernel_clock", lambda: (False, 16.0))
    assert bench.look("clock-source", bench.target()).outcome is Outcome.WARNING
    assert isinstance(kept, bool)


def test_people_without_an_account_here_are_named(bench: Any, tmp_path: Path, as_root: None) -> None:
    keys = KeyDirectory(tmp_path / "keys")
    keys.make()
    keys.add("user:alice", "nobody-such", tmp_path / "alice.key")
    keys.add("user:bob", "root", tmp_path / "bob.key")
    controller = bench.target("controller", keys_directory=str(tmp_path / "keys"))
    target = bench.target(checkpoint_directory=str(tmp_path / "check"))
    target = type(target)(**{**target.__dict__, "daemons": (controller.daemon, target.daemon)})
    assert failed(bench.look("accounts", target), "this server has no account nobody-such: their jobs cannot run")
    keys.revoke("user:alice")
    assert bench.look("accounts", target).outcome is Outcome.OK
    (tmp_path / "check").mkdir()
    (tmp_path / "check" / "theirs").mkdir()
    os.chown(tmp_path / "check" / "theirs", 54321, 54321)
    assert warned(bench.look("accounts", target), "checkpoints belong to user 54321")


# -- the controller's machine


def test_a_port_that_another_program_holds_and_an_address_that_is_not_ours(bench: Any) -> None:
    def look(address: str) -> Any:
        return bench.look("listening", bench.target("controller", listen_clients=address))

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert failed(look(f"tcp://127.0.0.1:{port}"), f"port {port}", f"is held by process {os.getpid()}")
    assert "is free" in look(f"tcp://127.0.0.1:{port}").found
    assert failed(look("tcp://203.0.113.7:7700"), "203.0.113.7 is not an address of this machine")
    assert failed(look("tcp://no-such-host.invalid:7700"), "is no name that this machine knows")


def test_a_controller_that_runs_and_does_not_listen_is_told(bench: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = f"tcp://127.0.0.1:{other.getsockname()[1]}"
    bench.file("controller", listen_clients=free)
    pid = bench.stand_in("controller")
    found = bench.look("listening", bench.target("controller", listen_clients=free))
    assert failed(found, f"the controller runs (process {pid}) and does not listen at {free}")


def test_keys_that_are_missing_or_open(bench: Any, tmp_path: Path) -> None:
    def look(**options: object) -> Any:
        return bench.look("keys", bench.target("controller", keys_directory=str(tmp_path / "keys"), **options))

    remote = {"listen_agents": "tcp://127.0.0.1:7701"}
    assert look().outcome is Outcome.ABSENT
    assert failed(look(**remote), "there are no keys")
    keys = KeyDirectory(tmp_path / "keys")
    keys.make()
    assert failed(look(**remote), "no server has a key")
    keys.add("server:s1", "", tmp_path / "s1.key")
    assert "0 users, 0 operators, 1 server; 0 revoked" in look(**remote).found
    (tmp_path / "keys").chmod(0o755)
    assert failed(look(**remote), "is open to others")
    (tmp_path / "keys").chmod(0o700)
    (tmp_path / "keys" / "known.json").write_text("[]")
    assert failed(look(**remote), "is not a list of principals")


def test_a_wrong_configuration_is_told_with_its_line(bench: Any) -> None:
    text = bench.run(bench.file("controller", server_lease_s=-1), "--only", "configuration")
    assert "server_lease_s" in text
    assert "line" in text
