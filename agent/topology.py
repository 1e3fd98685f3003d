"""Inventory of this server: its GPUs and their wiring, as driver and kernel report them, or its CPU slots.

Theory of operation
-------------------
The inventory is made when the agent starts, and again when other GPUs, other MIG instances or another driver answer
(`inventory_refresh`). CPU slots are offered only if the configuration has `cpu_slots`. Otherwise the server offers GPUs, and each
defect is a *trouble* of a GPU or of the server: a driver that does not start, a GPU that does not answer or has disappeared. Such
a GPU stays in the list with its number (`gpu_numbers`), so that no other GPU gets this number.

The scheduler and the replication compare the *places* of GPUs (`model.GpuPlace`). NVML names the closest common ancestor of two
GPUs in the PCIe tree. GPUs with an ancestor no higher than a given level form a group (Elan IV builds its tree of workers from
the same levels):

    one board, one switch, several switches    -> one `switch`   (Elan's L1)
    a host bridge, a NUMA node                 -> one `socket`   (L2)
    the system                                 -> neither        (L3)

NVML's levels "node" and "system" distinguish NUMA nodes. If a socket has several NUMA nodes, each counts as a socket of its own,
since the link between them is shared as well. If the driver does not report the ancestor of two GPUs, it follows from their paths
in the kernel's tree of PCI devices. If some pair still has no answer, the NUMA node of each GPU stands for its socket.

The *wiring* (`model.Wiring`) has the other facts, for display: addresses, switches, speeds, network cards. A value that cannot be
read is unknown, and never an error.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pynvml
from msgspec.structs import replace

from ..protocol.model import (
    Gpu,
    GpuKind,
    GpuPlace,
    GpuWiring,
    NvLinks,
    Severity,
    Trouble,
    Wiring,
)
from ..runtime.adapters import adapters
from . import gpu_numbers, nvml, sysfs
from .devices import NVIDIA, Nodes
from .gpu_numbers import Known
from .nvml import NVSWITCH, Card, Counted, DriverFailed, DriverReport, Levels
from .visible_gpus import VisibleGpus

log = logging.getLogger(__name__)

SYSFS = Path("/sys")
ALL = VisibleGpus({})
NODES = "devices/system/node"
ANSWERED_WITHIN_S = (
    60.0  # for all queries of the driver together: with persistence mode off it initializes each GPU first
)
HANGS = f"it has not answered within {ANSWERED_WITHIN_S:.0f} s"


@dataclass(frozen=True)
class Inventory:
    """GPUs or CPU slots of a server, their wiring, and their troubles."""

    gpus: tuple[Gpu, ...]
    troubles: tuple[Trouble, ...] = ()
    wiring: Wiring = field(default_factory=Wiring)
    cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # processors near each GPU, by its index
    nodes: Nodes = field(default_factory=dict)  # device files of each GPU, by its index
    counted: Counted | None = None  # devices that answered the driver's queries; None: no driver, or CPU slots


def interface_of(address: str) -> str:
    """Return the name of this server's network interface with this IP address; "": there is none."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return ""
    for name, owned in psutil.net_if_addrs().items():
        for each in owned:
            try:
                found = ipaddress.ip_address(each.address.partition("%")[0])
            except ValueError:  # a hardware address
                continue
            if found == wanted:
                return name
    return ""


def discover(
    state: Path,
    now_s: float,
    cpu_slots: int | None = None,
    kind: GpuKind = GpuKind.CUDA,
    library: str | None = None,
    root: Path = SYSFS,
    visible: VisibleGpus = ALL,
) -> Inventory:
    """Return the inventory: `cpu_slots` CPU slots, or else the GPUs with their numbers, which are kept in the directory `state`.

    `kind`: device type on which workers of these GPUs compute. `library`: path of NVML, if the system does not find it.
    `root`: of sysfs. `visible`: the GPUs to offer. Raises OperatorError if the record of numbers cannot be used.
    """
    plugged = Wiring(nics=sysfs.nics(root), adapters=adapters(root))
    if cpu_slots is not None:
        return Inventory(cpu(cpu_slots, root), wiring=plugged)
    known = gpu_numbers.load(state)
    try:
        told = _asked(library)
    except DriverFailed as error:
        silent = visible.only(gpu_numbers.Bound({}, {each.number: (each, None) for each in known}))
        found = tuple(_remembered(each, kind) for each, _ in silent.missing.values())
        return Inventory(found, (no_driver(error, now_s),), plugged)
    bound = gpu_numbers.bind(known, told.cards)
    if bound.known != known:
        gpu_numbers.save(state, bound.known)
    limits = tuple(visible.troubles(bound, now_s))
    bound = visible.only(bound)
    paths = {card.pci: sysfs.above(root, card.pci) for card in bound.cards.values() if card.pci}
    places = _places(bound.cards, told.levels, paths)
    gpus = [
        *(_gpu(number, card, places[number], kind) for number, card in bound.cards.items()),
        *(_remembered(each, kind) for each, _ in bound.missing.values()),
    ]
    wiring = replace(
        plugged,
        gpus=tuple(_wiring(number, told, paths, bound.cards, root) for number in sorted(bound.cards)),
        driver=told.driver,
    )
    near = {number: card.cpus for number, card in bound.cards.items() if card.cpus and kind is GpuKind.CUDA}
    troubles = (*limits, *_troubles(bound, now_s, bool(visible)))
    uuids = {number: each.uuid for number, (each, _) in bound.missing.items()}
    for trouble in troubles:
        which = f"GPU {trouble.gpu} {uuids.get(trouble.gpu, '')}".rstrip() + ": " if trouble.gpu is not None else ""
        log.error("%s%s", which, trouble.text)
    nodes = {number: _nodes(card, root) for number, card in bound.cards.items()}
    return Inventory(tuple(sorted(gpus, key=lambda gpu: gpu.index)), troubles, wiring, near, nodes, Counted.of(told))


def _nodes(card: Card, root: Path) -> tuple[tuple[int, int], ...]:
    """Return the device files that belong to this GPU alone; none if they are unknown."""
    drawn = root / "bus/pci/devices" / card.pci / "drm" if card.pci else None
    return () if card.minor is None else ((NVIDIA, card.minor), *(sysfs.nodes(drawn) if drawn is not None else ()))


def _asked(library: str | None) -> DriverReport:
    """Return the driver's report. Raises DriverFailed, also if the driver hangs: then a thread that waits for it stays behind."""
    answers: list[DriverReport | Exception] = []

    def question() -> None:
        try:
            with nvml.session(library):
                answers.append(nvml.look())
        except Exception as error:  # the waiting caller raises it
            answers.append(error)

    thread = threading.Thread(target=question, name="nvml", daemon=True)
    thread.start()
    thread.join(ANSWERED_WITHIN_S)
    if not answers:
        raise DriverFailed(HANGS, absent=False)
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


# -------------------------------------------------------------------------------------------------------------- troubles


def no_driver(error: DriverFailed, now_s: float) -> Trouble:
    """Return the trouble of a server without a working driver."""
    if error.absent:
        text = f"no NVIDIA driver ({error}): install it, or set cpu_slots in the agent's configuration and restart the agent"
        code = "no-driver"
    else:
        text = f"the NVIDIA driver does not work ({error}): see nvidia-smi; after an update of the driver restart the server"
        code = "nvml-failed"
    log.error("%s", text)
    return Trouble(code=code, severity=Severity.NO_NEW_WORK, text=text, since_s=now_s)


def _troubles(bound: gpu_numbers.Bound, now_s: float, limited: bool) -> Iterable[Trouble]:
    if not bound.cards and not bound.missing and not limited:
        text = "the NVIDIA driver finds no GPU: `lspci -d 10de:` and `dmesg` say more"
        yield Trouble(code="no-gpu", severity=Severity.NO_NEW_WORK, text=text, since_s=now_s)
    for number, card in sorted(bound.cards.items()):
        if card.error:
            yield _silent(number, card, now_s)
        elif card.divided:
            text = (
                "it is in MIG mode and has no instance: make some (nvidia-smi mig -cgi ... -C) "
                "or switch it off (nvidia-smi -mig 0)"
            )
            yield Trouble(code="mig-empty", severity=Severity.NO_NEW_WORK, text=text, gpu=number, since_s=now_s)
    for number, (_, failing) in sorted(bound.missing.items()):
        yield _silent(number, failing, now_s)


def _silent(number: int, card: Card | None, now_s: float) -> Trouble:
    """Return the trouble of a GPU that does not answer. Its text has no number, so that equal troubles can be shown together."""
    mend = "restart the server; if it stays so, look at its seat, its power and `dmesg`"
    if card is None:
        code, what = "gpu-missing", "is not counted by the driver any more"
        mend += f". If it was taken out, remove it from {gpu_numbers.FILE} in the agent's state directory"
    elif card.lost:
        code, what = "gpu-lost", "has fallen off the bus"
    else:
        code, what = "gpu-error", f"does not answer ({card.error})"
    text = f"it {what}: {mend}"
    severity = Severity.STOP if code == "gpu-lost" else Severity.NO_NEW_WORK
    return Trouble(code=code, severity=severity, text=text, gpu=number, since_s=now_s)


# -------------------------------------------------------------------------------------------------------------- CPU slots


def cpu(slots: int, root: Path = SYSFS) -> tuple[Gpu, ...]:
    """Return `slots` CPU slots, for workers that compute on the CPU."""
    place = GpuPlace(socket=only_node(root / NODES))
    return tuple(Gpu(index=index, kind=GpuKind.CPU, name="CPU slot", place=place) for index in range(slots))


def only_node(nodes: Path) -> int | None:
    """Return the number of the only NUMA node; None if there are several, as a CPU slot is not bound to cores."""
    found = [int(path.name.removeprefix("node")) for path in sorted(nodes.glob("node[0-9]*"))]
    return found[0] if len(found) == 1 else None


# ------------------------------------------------------------------------------------------------------------------- GPUs


def _gpu(number: int, card: Card, place: GpuPlace, kind: GpuKind) -> Gpu:
    name = card.name or "GPU that does not answer"
    return Gpu(index=number, kind=kind, name=name, uuid=card.uuid, memory_bytes=card.memory_bytes, place=place)


def _remembered(known: Known, kind: GpuKind) -> Gpu:
    return Gpu(index=known.number, kind=kind, name=known.name, uuid=known.uuid, memory_bytes=known.memory_bytes)


def _wiring(
    number: int, told: DriverReport, paths: Mapping[str, tuple[str, ...]], cards: Mapping[int, Card], root: Path
) -> GpuWiring:
    card = cards[number]
    node = card.node if card.node is not None else sysfs.numa_node(root / "bus/pci/devices" / card.pci)
    return GpuWiring(
        index=number,
        pci=card.pci,
        above=paths.get(card.pci, ()),
        node=node if card.pci else card.node,
        cpus=ranges(card.cpus),
        pcie=f"{card.pcie[0]}.0 x{card.pcie[1]}" if card.pcie else "",
        pcie_bytes_per_s=card.pcie_bytes_per_s,
        nvlinks=_nvlinks(card, cards),
        peers=_peers(card, told.direct, cards),
        parent=card.parent,
    )


def _peers(card: Card, direct: Mapping[tuple[int, int], bool], cards: Mapping[int, Card]) -> tuple[int, ...] | None:
    """Return the numbers of GPUs that a GPU reaches directly; none for a MIG instance; None: unknown."""
    if not card.uuid or not any(card.index in pair for pair in direct):
        return None
    return tuple(
        number
        for number, other in sorted(cards.items())
        if not card.parent
        and not other.parent
        and direct.get((min(card.index, other.index), max(card.index, other.index)), False)
    )


def ranges(cpus: Sequence[int]) -> str:
    """Return processors in the kernel's format for lists: "0-15,64-79"."""
    parts: list[list[int]] = []
    for each in cpus:
        if parts and parts[-1][1] == each - 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _nvlinks(card: Card, cards: Mapping[int, Card]) -> tuple[NvLinks, ...]:
    """Return a GPU's NVLinks by the peers at their other ends. A MIG instance, or a GPU that does not answer, is no peer."""
    numbers_at = {each.pci: number for number, each in cards.items() if each.pci and not each.parent}
    counts: dict[int | None, int] = {}
    for end in card.links:
        if end == NVSWITCH or end in numbers_at:
            peer = None if end == NVSWITCH else numbers_at[end]
            counts[peer] = counts.get(peer, 0) + 1
    order = sorted(counts, key=lambda peer: -1 if peer is None else peer)
    return tuple(NvLinks(count=counts[p], peer=p, bytes_per_s=counts[p] * card.link_bytes_per_s) for p in order)


# ----------------------------------------------------------------------------------------------------------------- places


def _places(cards: Mapping[int, Card], levels: Levels, paths: Mapping[str, tuple[str, ...]]) -> dict[int, GpuPlace]:
    """Return the places of the GPUs by their numbers. The place of a GPU that does not answer is unknown."""
    answering = {number: card for number, card in sorted(cards.items()) if card.uuid}
    found: dict[tuple[int, int], int] = {}
    for a, first in answering.items():
        for b, second in answering.items():
            level = _level(first, second, levels, paths) if a < b else None
            if level is not None:
                found[a, b] = level
    nodes = {number: card.node for number, card in answering.items() if card.node is not None}
    reached = {number: _reached(number, answering) for number in answering}
    unknown = {number: GpuPlace() for number in cards}
    return unknown | places(tuple(answering), found, nodes, reached)


def _level(a: Card, b: Card, levels: Levels, paths: Mapping[str, tuple[str, ...]]) -> int | None:
    if a.index == b.index:
        return int(pynvml.NVML_TOPOLOGY_INTERNAL)
    told = levels.get((min(a.index, b.index), max(a.index, b.index)))
    return told if told is not None else path_level(paths.get(a.pci, ()), paths.get(b.pci, ()), a.node, b.node)


def path_level(a: tuple[str, ...], b: tuple[str, ...], node_a: int | None, node_b: int | None) -> int | None:
    """Return NVML's level of the common ancestor of two devices with these PCI devices above them; None: unknown."""
    if not a or not b:
        return None
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if same >= 3:  # host bridge, root port, the upper end of a switch
        return int(pynvml.NVML_TOPOLOGY_SINGLE if len(a) == len(b) == same + 1 else pynvml.NVML_TOPOLOGY_MULTIPLE)
    if same:
        return int(pynvml.NVML_TOPOLOGY_HOSTBRIDGE)
    if node_a is None or node_b is None:
        return None
    return int(pynvml.NVML_TOPOLOGY_NODE if node_a == node_b else pynvml.NVML_TOPOLOGY_SYSTEM)


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
    """Return for each GPU the lowest GPU of its group, in which ancestors are at level `most` or below.

    GPUs without a known level are left out."""
    group: dict[int, int] = {}
    for gpu in gpus:
        known = {b if a == gpu else a: level for (a, b), level in levels.items() if gpu in (a, b)}
        if known or len(gpus) == 1:
            group[gpu] = min([gpu, *(group.get(other, gpu) for other, level in known.items() if level <= most)])
    return group


def _reached(number: int, cards: Mapping[int, Card]) -> tuple[int, ...]:
    """Return the GPUs that NVLink reaches. All GPUs with a link to an NVSwitch reach each other."""
    own = _nvlinks(cards[number], cards)
    peers = {links.peer for links in own if links.peer is not None}
    if any(links.peer is None for links in own):
        peers |= {other for other, card in cards.items() if NVSWITCH in card.links}
    return tuple(sorted(peers - {number}))
