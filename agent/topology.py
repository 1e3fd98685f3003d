"""What this server offers: its GPUs as the driver's library (NVML) tells, or CPU slots where there is no driver.

Theory of operation
-------------------
A GPU's *place* (`model.GpuPlace`) is gathered here, once, since only here the driver can be asked. NVML names the closest common
ancestor of two GPUs in the PCIe tree; the GPUs with an ancestor no higher than a given level form groups (Elan IV builds its
tree of workers from the same levels):

    one board, one switch, several switches    -> one `switch`   (Elan's L1)
    a host bridge, a NUMA node                 -> one `socket`   (L2)
    the system                                 -> neither        (L3)

NVML's "node" and "system" tell NUMA nodes apart. Where a socket has several of them, they count as sockets of their own: what
lies between them is shared as well.

Whatever does not answer is unknown, and never an error: a driver too old, a virtual machine, a GPU that has fallen off the bus.
If not all pairs of GPUs have an answer, the NUMA node of each GPU stands for its socket.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pynvml

from ..protocol.model import Gpu, GpuKind, GpuPlace

log = logging.getLogger(__name__)

NODES = Path("/sys/devices/system/node")
NUMA_WORDS = 16  # of 64 bits, one for each NUMA node
NVSWITCH = "switch"
PciAddress = tuple[int, int, int]  # domain, bus, device

Levels = Mapping[tuple[int, int], int]  # for pairs of GPUs, the smaller index first


def interface_of(address: str) -> str:
    """The network interface of this server that has this IP address; "": none has."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return ""
    for name, owned in psutil.net_if_addrs().items():
        for each in owned:
            try:
                found = ipaddress.ip_address(each.address.partition("%")[0])
            except ValueError:  # of hardware
                continue
            if found == wanted:
                return name
    return ""


def discover(cpu_slots: int | None) -> tuple[Gpu, ...]:
    """GPUs by NVML's index; `cpu_slots` CPU slots if that is given; a slot per core if there is no NVIDIA driver."""
    if cpu_slots is not None:
        return cpu(cpu_slots)
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        cores = psutil.cpu_count() or 1
        log.info("no NVIDIA driver (%s): offering %d CPU slots", error, cores)
        return cpu(cores)
    try:
        return cuda()
    finally:
        pynvml.nvmlShutdown()


# --------------------------------------------------------------------------------------------------------------- CPU slots


def cpu(slots: int, nodes: Path = NODES) -> tuple[Gpu, ...]:
    """`slots` places for workers that compute on the CPU."""
    place = GpuPlace(socket=only_node(nodes))
    return tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot", place=place) for index in range(slots))


def only_node(nodes: Path = NODES) -> int | None:
    """The NUMA node, if there is just one. A CPU slot is not bound to cores, so among several nodes it has none."""
    found = [int(path.name.removeprefix("node")) for path in sorted(nodes.glob("node[0-9]*"))]
    return found[0] if len(found) == 1 else None


# -------------------------------------------------------------------------------------------------------------------- GPUs


def cuda() -> tuple[Gpu, ...]:
    """The GPUs of an initialised NVML. One that answers with an error is left out, and the log says why."""
    gpus: list[Gpu] = []
    handles: dict[int, Any] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(
                Gpu(
                    index=index,
                    kind=GpuKind.CUDA,
                    name=_text(pynvml.nvmlDeviceGetName(handle)),
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            )
            handles[index] = handle
        except pynvml.NVMLError as error:
            log.error("GPU %d is left out: %s", index, error)
    found = places(tuple(handles), _levels(handles), _nodes(handles), _nvlinks(handles))
    return tuple(msgspec.structs.replace(gpu, place=found[gpu.index]) for gpu in gpus)


def places(
    gpus: tuple[int, ...],
    levels: Levels,
    nodes: Mapping[int, int],
    nvlinks: Mapping[int, tuple[int, ...]],
) -> dict[int, GpuPlace]:
    """Where each of `gpus` sits, from what is known: levels of common ancestors, NUMA nodes, GPUs that NVLink reaches."""
    complete = len(levels) == len(gpus) * (len(gpus) - 1) // 2
    sockets = _groups(gpus, levels, pynvml.NVML_TOPOLOGY_NODE) if complete else nodes
    switches = _groups(gpus, levels, pynvml.NVML_TOPOLOGY_MULTIPLE)
    return {
        gpu: GpuPlace(socket=sockets.get(gpu), switch=switches.get(gpu), nvlinks=nvlinks.get(gpu, ())) for gpu in gpus
    }


def _groups(gpus: tuple[int, ...], levels: Levels, most: int) -> dict[int, int]:
    """The lowest GPU of each one's group: those with a common ancestor at level `most` or below. Without those unheard of."""
    group: dict[int, int] = {}
    for gpu in gpus:
        known = {b if a == gpu else a: level for (a, b), level in levels.items() if gpu in (a, b)}
        if known or len(gpus) == 1:
            group[gpu] = min([gpu, *(group.get(other, gpu) for other, level in known.items() if level <= most)])
    return group


def _levels(handles: Mapping[int, Any]) -> dict[tuple[int, int], int]:
    levels: dict[tuple[int, int], int] = {}
    for a, first in handles.items():
        for b, second in handles.items():
            if a < b:
                level = _ask(f"what GPUs {a} and {b} share", pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
                if level is not None:
                    levels[a, b] = int(level)
    return levels


def _nodes(handles: Mapping[int, Any]) -> dict[int, int]:
    """The NUMA nodes of the GPUs that tell of just one."""
    found: dict[int, int] = {}
    for index, handle in handles.items():
        what = f"the NUMA node of GPU {index}"
        words = _ask(what, pynvml.nvmlDeviceGetMemoryAffinity, handle, NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
        mask = sum(word << (64 * position) for position, word in enumerate(words or ()))
        if mask.bit_count() == 1:
            found[index] = mask.bit_length() - 1
    return found


def _nvlinks(handles: Mapping[int, Any]) -> dict[int, tuple[int, ...]]:
    """The GPUs that each one reaches by NVLink. All that have a link to an NVSwitch reach each other."""
    addresses: dict[PciAddress, int] = {}
    for index, handle in handles.items():
        pci = _ask(f"the PCI address of GPU {index}", pynvml.nvmlDeviceGetPciInfo, handle)
        if pci is not None:
            addresses[_address(pci)] = index
    ends = {index: _link_ends(index, handle) for index, handle in handles.items()}
    switched = [index for index, reached in ends.items() if NVSWITCH in reached]
    found: dict[int, tuple[int, ...]] = {}
    for index, reached in ends.items():
        direct = [addresses[end] for end in reached if end != NVSWITCH and end in addresses]
        peers = {*direct, *(switched if index in switched else ())} - {index}
        found[index] = tuple(sorted(peers))
    return found


def _link_ends(index: int, handle: Any) -> list[PciAddress | str]:
    """What is at the other ends of a GPU's active NVLinks."""
    ends: list[PciAddress | str] = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        what = f"NVLink {number} of GPU {index}"
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, number)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            return ends  # no NVLink, or no more of them
        except pynvml.NVMLError as error:
            log.info("NVML does not tell %s: %s", what, error)
            return ends
        if not active:
            continue
        kind = _ask(what, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.append(NVSWITCH)
            continue
        remote = _ask(what, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        if remote is not None:
            ends.append(_address(remote))
    return ends


def _ask(what: str, question: Callable[..., Any], *arguments: Any) -> Any:
    """NVML's answer; None if it has none."""
    try:
        return question(*arguments)
    except pynvml.NVMLError as error:
        log.info("NVML does not tell %s: %s", what, error)
        return None


def _address(pci: Any) -> PciAddress:
    return int(pci.domain), int(pci.bus), int(pci.device)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# -------------------------------------------------------------------------------------------------------------------- CPUs


def near(gpus: Sequence[Gpu]) -> dict[int, tuple[int, ...]]:
    """The CPUs near each CUDA GPU, by its index, as far as the driver tells."""
    if all(gpu.kind is not GpuKind.CUDA for gpu in gpus):
        return {}
    words = (os.cpu_count() or 1) // 64 + 1
    found: dict[int, tuple[int, ...]] = {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        for gpu in gpus:
            handle = _ask(f"GPU {gpu.index}", pynvml.nvmlDeviceGetHandleByIndex, gpu.index)
            what = f"the CPUs near GPU {gpu.index}"
            masks = _ask(what, pynvml.nvmlDeviceGetCpuAffinity, handle, words) if handle is not None else None
            cpus = tuple(
                64 * position + bit for position, word in enumerate(masks or ()) for bit in range(64) if word >> bit & 1
            )
            if cpus:
                found[gpu.index] = cpus
    finally:
        pynvml.nvmlShutdown()
    return found
