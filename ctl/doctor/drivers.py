"""Checks of a server's GPUs: the driver, its library (NVML), each GPU, torch and NCCL over them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pynvml
from msgspec.structs import replace

from ...protocol.texts import gpu_count, ranges
from ...protocol.variables import REPEATABLE
from ...runtime.adapters import word
from . import interpreters
from .buses import adapters_on, gpus_on
from .checks import Finding, Register, absent, failure, ok, warning, worst
from .interpreters import ASKED_WITHIN_S, Interpreter, numbers
from .network import owned
from .targets import Subject, Target

CHECKS = Register(Subject.SERVER)
DRIVER_WITHIN_S = 60.0  # without persistence mode, the driver initialises each GPU at the first query
NAMED = 4

INIT = {  # by error code of nvmlInit: cause and remedy
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "the driver's library libnvidia-ml.so.1 is not there",
        "install NVIDIA's driver (Debian: `apt install nvidia-driver`), or name the library: `nvml_library`",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA driver is not loaded",
        "`modprobe nvidia`; `dmesg` says why it fails; after an update of the kernel build it anew (`dkms autoinstall`)",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver that is loaded and its library are of different versions: it was updated and not loaded anew",
        "restart this server; without jobs `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia` does, too",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "whoever asks may not use the GPUs' device files",
        "`ls -l /dev/nvidia*`: mode 0666, or be in their group (video, render)",
    ),
    pynvml.NVML_ERROR_IRQ_ISSUE: ("a GPU gets no interrupts", "`dmesg`; restart this server; look at its BIOS"),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "a GPU has fallen off the bus",
        "restart this server; if it comes back, replace the GPU",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: ("a GPU needs a reset", "`nvidia-smi --gpu-reset`, or restart this server"),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the kernel keeps the driver's library from the GPUs",
        "look at the limits of the container or the service; `dmesg`",
    ),
}


def _without_gpus(target: Target) -> Finding | None:
    """Return a finding if the server is not expected to have a GPU; else None."""
    assert target.daemon is not None
    slots = target.daemon.option("cpu_slots")
    if slots is not None:
        return absent(f"this server offers {slots} CPU slots, and no GPU")
    return None


def _library(target: Target) -> str | None:
    assert target.daemon is not None
    found = target.daemon.option("nvml_library")
    return None if found is None else str(found)


def _stood_in(target: Target) -> bool:
    """Return whether the GPUs are stand-ins: workers compute on the CPU."""
    assert target.daemon is not None
    return bool(target.daemon.option("worker_device") == "cpu")


@CHECKS.check(
    "driver",
    "there is no GPU, NVIDIA's driver is not loaded (another one holds the GPUs), or device files are missing or closed",
    "install the driver, `modprobe nvidia`; `systemctl start elasticctl-devices`; or set `cpu_slots`",
)
def driver(target: Target) -> Finding:
    if (none := _without_gpus(target)) is not None:
        return none
    if _stood_in(target):
        return absent("the GPUs of this server are stand-ins")
    gpus = gpus_on(target.machine.sys)
    told = word(target.machine.proc / "driver/nvidia/version")
    slots = "; without GPUs set `cpu_slots` in the agent's configuration"
    if not told:
        if not gpus:
            return failure(
                "there is no NVIDIA GPU, and no driver: this server offers nothing",
                f"`lspci -d 10de:` shows GPUs{slots}",
            )
        held = {(gpu / "driver").resolve().name for gpu in gpus if (gpu / "driver").exists()} - {"nvidia"}
        by = f", {', '.join(sorted(held))} holds them" if held else ""
        return failure(
            f"{len(gpus)} NVIDIA GPUs are here, and their driver is not loaded{by}",
            "install NVIDIA's driver and restart (Debian: `apt install nvidia-driver`), or `modprobe nvidia`",
        )
    version = re.search(r"\d{3}\.\d+(\.\d+)?", told)
    files = [target.machine.dev / name for name in ("nvidiactl", "nvidia-uvm", "nvidia0")]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        return failure(
            f"the driver is loaded, and device files are missing: {', '.join(missing)}",
            "`systemctl start elasticctl-devices`, or `nvidia-modprobe -c=0 -u`; then restart the agent",
        )
    closed = [str(path) for path in files if path.stat().st_mode & 0o006 != 0o006]
    if closed:
        return warning(
            f"not everybody may use {', '.join(closed)}: only jobs of accounts in the group can",
            "NVreg_DeviceFileMode=0666 for the module nvidia, or put people into the group",
        )
    count = f", {gpu_count(len(gpus))} on the bus" if gpus else ""
    return ok(f"NVIDIA {version[0] if version else 'driver'}{count}")


def _begun(target: Target) -> Finding | None:
    """Load and initialise NVML; return the fault if that fails."""
    library = _library(target)
    if library is not None:
        try:
            ctypes.CDLL(library)  # later loads of a library of this name get this one
        except OSError as error:
            return failure(f"nvml_library: {error}", "correct it in the agent's configuration")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        found, remedy = INIT.get(
            error.value, (f"the driver's library does not start: {error}", "`nvidia-smi`, `dmesg`; restart this server")
        )
        return failure(found, remedy)
    return None


@CHECKS.check(
    "nvml",
    "the driver's library is missing, does not start or does not fit the driver; a GPU does not answer or is missing",
    "as the sentence says: restart after an update of the driver; `dmesg`; replace a GPU that keeps failing",
    limit_s=DRIVER_WITHIN_S,
)
def nvml(target: Target) -> Finding:
    if (none := _without_gpus(target)) is not None:
        return none
    if (failed := _begun(target)) is not None:
        return failed
    names: list[str] = []
    wrong: list[Finding] = []
    modes: list[tuple[int, Finding]] = []
    silent: dict[tuple[str, str], list[int]] = {}  # GPUs that do not answer, those with the same reason together
    notes: list[str] = []
    count = pynvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            names.append(_text(pynvml.nvmlDeviceGetName(handle)))
            pynvml.nvmlDeviceGetUUID(handle)
            if not _memory_is_told(handle):
                notes.append("no memory of their own is told")
        except pynvml.NVMLError as error:
            told = INIT.get(error.value, (f"{error}", "`nvidia-smi -q -i`, `dmesg`; restart this server"))
            silent.setdefault(told, []).append(index)
            continue
        modes += [(index, finding) for finding in _modes(index, handle)]
        notes += list(_notes(index, handle))
    for (found, remedy), indices in silent.items():
        who = f"GPU {indices[0]} does" if len(indices) == 1 else f"GPUs {ranges(indices)} do"
        wrong.append(failure(f"{who} not answer: {found}", remedy))
    wrong += _together(modes)
    on_bus = 0 if _stood_in(target) else len(gpus_on(target.machine.sys))
    if on_bus > count:
        wrong.append(
            failure(
                f"{gpu_count(on_bus)} {'is' if on_bus == 1 else 'are'} on the bus, and the driver knows {count}",
                "`dmesg`; restart this server; replace the GPU",
            )
        )
    if not count:
        wrong.append(failure("the driver finds no GPU", "`lspci -d 10de:` and `dmesg` say more; or set `cpu_slots`"))
    kinds = ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
    version = _asked(pynvml.nvmlSystemGetDriverVersion)
    tail = f"; {'; '.join(dict.fromkeys(notes))}" if notes else ""
    return worst(wrong, ok(f"{kinds}, driver {_text(version or '?')}{tail}"))


def _together(findings: Sequence[tuple[int, Finding]]) -> list[Finding]:
    """Return findings of single GPUs, with their numbers; equal ones are joined."""
    alike: dict[Finding, list[int]] = {}
    for index, finding in findings:
        alike.setdefault(replace(finding, found=finding.found.replace(f"GPU {index} ", "{} ")), []).append(index)
    return [
        replace(finding, found=finding.found.format(f"GPU{'s' if len(indices) > 1 else ''} {ranges(indices)}"))
        for finding, indices in alike.items()
    ]


def _memory_is_told(handle: Any) -> bool:
    """Return whether the GPU reports its memory: a GPU that shares the processor's memory may not. Raises NVMLError."""
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:
        return False
    return True


def _modes(index: int, handle: Any) -> Iterator[Finding]:
    """Yield findings on modes that wait for a reset, and on a GPU divided into no instance."""
    ecc = _asked(pynvml.nvmlDeviceGetEccMode, handle)
    if ecc is not None and ecc[0] != ecc[1]:
        yield warning(
            f"ECC of GPU {index} changes with its next reset", "`nvidia-smi --gpu-reset`, or restart this server"
        )
    mig = _asked(pynvml.nvmlDeviceGetMigMode, handle)
    if mig is None:
        return
    if mig[0] != mig[1]:
        yield warning(
            f"MIG of GPU {index} changes with its next reset", "`nvidia-smi --gpu-reset`, or restart this server"
        )
    if mig[0] and not _instances(handle):
        yield failure(
            f"MIG mode of GPU {index} is on, without an instance, so nothing is offered there",
            "make some (`nvidia-smi mig -cgi ... -C`), or switch it off (`nvidia-smi -mig 0`)",
        )


def _notes(index: int, handle: Any) -> Iterator[str]:
    if (ecc := _asked(pynvml.nvmlDeviceGetEccMode, handle)) is not None and not ecc[0]:
        yield "ECC is off"
    if (mig := _asked(pynvml.nvmlDeviceGetMigMode, handle)) is not None and mig[0]:
        yield f"GPU {index} has {_instances(handle)} MIG instances"


def _instances(handle: Any) -> int:
    most = _asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    return sum(_asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) is not None for number in range(most))


def _asked(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer; None if NVML does not support the query."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@CHECKS.check(
    "persistence",
    "persistence mode is off: the driver unloads a GPU that nobody uses, and each start of a job waits for it",
    "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1`",
    limit_s=DRIVER_WITHIN_S,
)
def persistence(target: Target) -> Finding:
    if (none := _without_gpus(target)) is not None:
        return none
    if _begun(target) is not None:
        return absent("the driver's library does not start: see `nvml`")
    off = []
    told = 0
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = _asked(pynvml.nvmlDeviceGetHandleByIndex, index)
        mode = None if handle is None else _asked(pynvml.nvmlDeviceGetPersistenceMode, handle)
        told += mode is not None
        if mode == 0:
            off.append(str(index))
    if off:
        return warning(
            f"persistence mode is off on GPU {', '.join(off)}", "`systemctl enable --now nvidia-persistenced`"
        )
    return ok("on") if told else absent("the driver does not tell")


@CHECKS.check(
    "torch",
    "jobs' interpreter cannot load torch or elasticctl; torch's CUDA does not fit driver or GPUs; NCCL or Gloo is missing, "
    "or NCCL fails after an abort",
    "install the torch that fits (`nvidia-smi` shows the driver's CUDA); `make install EXTRAS=worker`; --python PATH",
    limit_s=ASKED_WITHIN_S + 5,
)
def torch(target: Target) -> Finding:
    found = interpreters.ask(target.python, target.machine.environ)
    if isinstance(found, str):
        return failure(
            f"{target.python}: {found}", "install elasticctl once more, or name the interpreter of jobs: --python PATH"
        )
    if not found.elasticctl:
        return failure(
            f"{target.python} cannot load elasticctl: {found.elasticctl_error}",
            f"{target.python} -m pip install elasticctl",
        )
    if found.torch_error and "No module named 'torch'" in found.torch_error:
        return warning(
            f"{target.python} has no torch: each job brings an environment of its own, and starts seconds later",
            "`make install EXTRAS=worker`, or name the interpreter of jobs: --python PATH",
        )
    if found.torch_error:
        return failure(f"{target.python} cannot load torch: {found.torch_error}", "install torch once more")
    wrong = list(_fits(target, found))
    cuda = f", CUDA {found.cuda}" if found.cuda else ", for CPUs"
    nccl = f", NCCL {found.nccl_version}" if found.nccl_version else ""
    return worst(wrong, ok(f"torch {found.torch}{cuda}{nccl}, {'Gloo' if found.gloo else 'no Gloo'} ({target.python})"))


def _fits(target: Target, found: Interpreter) -> Iterator[Finding]:
    """Yield the faults of torch on this server."""
    if not found.gloo:
        yield failure("this torch has no Gloo, which workers meet over", "install the usual build of torch")
    if _without_gpus(target) is not None or _stood_in(target) or _begun(target) is not None:
        return
    if not found.cuda:
        yield failure("this torch is built for CPUs, and the server has GPUs", "install a build of torch with CUDA")
        return
    driver = int(_asked(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0)
    there, wanted = (driver // 1000, driver % 1000 // 10), numbers(found.cuda)[:2]
    if driver and wanted[0] > there[0]:
        yield failure(
            f"torch is built for CUDA {found.cuda}, and the driver knows CUDA {there[0]}.{there[1]} at most",
            "install a newer driver, or a torch for an older CUDA",
        )
    elif not found.available:
        yield failure(
            "the driver answers, and torch sees no GPU",
            "`dmesg`; /dev/nvidia-uvm (`nvidia-modprobe -u`); with NVSwitch `systemctl start nvidia-fabricmanager`",
        )
    if not found.nccl:
        yield failure("this torch has no NCCL, so GPUs cannot work together", "install a build of torch with NCCL")
    elif aborts_badly(found.nccl_version):
        first, mended = (".".join(map(str, version)) for version in (ABORTS_BADLY, ABORTS_AGAIN))
        yield failure(
            f"NCCL {found.nccl_version} fails where a communicator is aborted and another one built in the same process, "
            "as after each lost worker",
            f"install a torch with NCCL {mended} or newer, or one before {first}",
        )
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = _asked(pynvml.nvmlDeviceGetHandleByIndex, index)
        capability = None if handle is None else _asked(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        if capability is not None and found.architectures and not runs_on(found.architectures, *capability):
            yield failure(
                f"this torch has no code for GPU {index} (compute capability {capability[0]}.{capability[1]})",
                "install a build of torch for it: newer for new GPUs, older for old ones",
            )


def aborts_badly(nccl: str) -> bool:
    """Return whether NVIDIA advises against this version of NCCL for restarts within a process. Source: README of
    NVIDIA's Resiliency Extension, "Platform Support".
    """
    return ABORTS_BADLY <= numbers(nccl) < ABORTS_AGAIN


def runs_on(architectures: list[str], major: int, minor: int) -> bool:
    """Return whether a build of torch with these architectures (sm_80, compute_90) has code for a GPU. Code serves
    later minors, PTX all later GPUs.
    """
    for each in architectures:
        kind, _, digits = each.partition("_")
        digits = re.sub(r"\D", "", digits)
        if not digits:
            continue
        had = int(digits[:-1]), int(digits[-1])
        if (kind == "sm" and had[0] == major and had[1] <= minor) or (kind == "compute" and had <= (major, minor)):
            return True
    return False


NO_LINK_LAYER = "65534"  # ARPHRD_NONE of the kernel: WireGuard, tun
ABORTS_BADLY, ABORTS_AGAIN = (2, 28, 3), (2, 28, 9)  # versions of NCCL: the first to avoid, the first mended one

HARMFUL = {  # environment variables, and values with which NCCL or torch is slow or fails
    ("NCCL_P2P_DISABLE", "1"): "GPUs do not talk to each other directly",
    ("NCCL_SHM_DISABLE", "1"): "processes of one server do not talk by shared memory",
    ("NCCL_NVLS_ENABLE", "1"): "NVSwitches add, so results depend on the number of GPUs",
    ("NCCL_NVLS_ENABLE", "2"): "NVSwitches add where there are any, so results depend on the number of GPUs",
    ("NCCL_DEBUG", "TRACE"): "NCCL writes logs without end",
    ("NCCL_ASYNC_ERROR_HANDLING", "0"): "a lost peer hangs its job",
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"): "a lost peer hangs its job",
    ("CUDA_LAUNCH_BLOCKING", "1"): "each kernel is waited for",
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "each collective is checked by another one",
}


@CHECKS.check(
    "nccl-variables",
    "variables for all jobs (`worker_environment`, /etc/nccl.conf) name a missing interface, leave a tunnel, or slow training",
    "take them out of agent.yaml or /etc/nccl.conf",
)
def nccl_variables(target: Target) -> Finding:
    assert target.daemon is not None
    given = {
        name: (str(value), target.daemon.file) for name, value in target.daemon.option("worker_environment", {}).items()
    }
    for name, value in _nccl_conf(Path("/etc/nccl.conf")):
        if name not in REPEATABLE:  # the agent's own variables take precedence over the file
            given.setdefault(name, (value, "/etc/nccl.conf"))
    wrong = []
    interfaces = set(psutil.net_if_addrs())
    tunnel, adapters = _tunnel(target), bool(adapters_on(target.machine.sys))
    if tunnel and adapters and given.get("NCCL_IB_DISABLE", ("",))[0] != "1":
        wrong.append(
            failure(
                f"`address` is in the tunnel {tunnel}, and NCCL uses the InfiniBand adapters beside it, unencrypted",
                f'`worker_environment: {{NCCL_IB_DISABLE: "1", NCCL_NET: Socket}}` in {target.daemon.file}',
            )
        )
    for name, (value, source) in given.items():
        harm = HARMFUL.get((name, value))
        if harm:
            wrong.append(warning(f"{name}={value}: {harm}", f"take it out of {source}"))
        if name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            wrong += _interface(name, value, source, interfaces)
        if name == "NCCL_IB_DISABLE" and value == "1" and adapters and not tunnel:
            wrong.append(warning("NCCL_IB_DISABLE=1: the InfiniBand adapters are not used", f"take it out of {source}"))
        if name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            instead = "`visible_gpus` in the agent's configuration says which GPUs it offers"
            wrong.append(warning(f"{name}: the agent sets it for each worker", f"take it out of {source}; {instead}"))
    ours = [name for name in given if name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_"))]
    return worst(wrong, ok(f"{', '.join(ours)}: nothing against that" if ours else "none are set"))


def _tunnel(target: Target) -> str:
    """Return the interface with the agent's `address` if it has no link layer, as the interface of a tunnel; else ""."""
    assert target.daemon is not None
    address = str(target.daemon.option("address", ""))
    name = next((name for name, each in owned(target) if str(each) == address), "")
    path = target.machine.sys / "class/net" / name / "type"
    return name if name and path.exists() and path.read_text(encoding="ascii").strip() == NO_LINK_LAYER else ""


def _interface(name: str, value: str, source: str, interfaces: set[str]) -> Iterator[Finding]:
    """Yield findings on a list of interfaces for NCCL: `^` excludes, `=` means exact names, otherwise prefixes."""
    if value.startswith("^"):
        return
    for each in value.removeprefix("=").split(","):
        exact = value.startswith("=") or name.startswith("GLOO")
        if not any(there == each if exact else there.startswith(each) for there in interfaces):
            yield failure(f"{name}={value}: there is no interface {each}", f"`ip -brief link`; correct it in {source}")
        elif each == "lo":
            yield failure(f"{name}={value}: over loopback no other server is reached", f"correct it in {source}")


def _nccl_conf(path: Path) -> Iterator[tuple[str, str]]:
    for line in (path.read_text(encoding="utf-8", errors="replace") if path.exists() else "").splitlines():
        name, equals, value = line.partition("#")[0].partition("=")
        if equals:
            yield name.strip(), value.strip()
