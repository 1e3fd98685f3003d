"""Report of NVIDIA's driver on a server's GPUs through its library (NVML), as plain values. The agent reads all of it
at its start, and again when the answering GPUs have changed (`count`).

Any single missing value is unknown, and never an error: the driver may be too old, or the machine virtual. A GPU that
does not identify itself has an error, with which it stays in the list.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pynvml

log = logging.getLogger(__name__)

NUMA_WORDS = 16  # of 64 bits, one for each NUMA node
CPU_WORDS = 64  # of 64 bits, one for each processor
P2P_READ, P2P_WORKS = 0, 0  # of nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t
NVSWITCH = "switch"
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # of PCIe, by generation

Levels = Mapping[tuple[int, int], int]  # closest common ancestors (nvmlGpuTopologyLevel_t), the smaller index first


class DriverFailed(Exception):
    """The driver's library does not start. `absent`: no driver is installed."""

    def __init__(self, text: str, absent: bool) -> None:
        super().__init__(text)
        self.absent = absent


@dataclass(frozen=True)
class Card:
    """A GPU as the driver counts it, or a part of one (a MIG instance)."""

    index: int  # of the whole GPU
    uuid: str = ""
    name: str = ""
    memory_bytes: int = 0  # 0: unknown
    pci: str = ""  # "0000:07:00.0", as the kernel writes it
    node: int | None = None
    cpus: tuple[int, ...] = ()
    pcie: tuple[int, int] | None = None  # generation, width
    links: tuple[str, ...] = ()  # the other ends of its NVLinks: PCI addresses, or NVSWITCH
    link_bytes_per_s: float = 0.0  # of one of them
    parent: str = ""  # UUID of the whole GPU, for an instance
    minor: int | None = None  # of its device file, /dev/nvidiaN; None: unknown
    divided: bool = False  # MIG mode is on
    error: str = ""  # why it does not identify itself
    lost: bool = False  # it does not answer at all any more

    @property
    def pcie_bytes_per_s(self) -> float:
        """Return the speed in one direction; 0: unknown."""
        return LANE_BYTES_PER_S.get(self.pcie[0], 0.0) * self.pcie[1] if self.pcie else 0.0


@dataclass(frozen=True)
class DriverReport:
    """The driver's full report."""

    cards: tuple[Card, ...]  # instances in place of a GPU that is divided into some
    levels: Levels = field(default_factory=dict)
    # Whether they read each other's memory directly (P2P)
    direct: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    driver: str = ""


@dataclass(frozen=True)
class Counted:
    """The answering GPUs, as far as an inventory depends on them."""

    driver: str
    gpus: frozenset[str]  # UUIDs of whole GPUs
    parts: frozenset[tuple[str, str]]  # of a whole GPU and of its instance; "": the GPU is divided, but has no instance

    @classmethod
    def of(cls, told: DriverReport) -> Counted:
        """Return the counts of a full report."""
        cards = [card for card in told.cards if card.uuid]
        return cls(
            driver=told.driver,
            gpus=frozenset(card.parent or card.uuid for card in cards),
            parts=frozenset(
                (card.parent or card.uuid, card.uuid if card.parent else "") for card in cards if _part(card)
            ),
        )

    def outdates(self, before: Counted) -> bool:
        """Return whether an inventory of `before` is wrong now. GPUs that stopped answering do not make it wrong: they
        are lost, and keep their places.
        """
        parts = frozenset(pair for pair in before.parts if pair[0] in self.gpus)
        return self.driver != before.driver or bool(self.gpus - before.gpus) or self.parts != parts


def _part(card: Card) -> bool:
    return bool(card.parent) or card.divided


@contextmanager
def session(library: str | None) -> Iterator[None]:
    """Context manager with NVML initialised. Raises DriverFailed."""
    begin(library)
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def begin(library: str | None) -> None:
    """Load and initialise NVML, until `nvmlShutdown`. Raises DriverFailed."""
    if library is not None:
        try:
            ctypes.CDLL(library)  # later loads of a library of this name get this one
        except OSError as error:
            raise DriverFailed(f"nvml_library: {error}", absent=True) from None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        raise DriverFailed(str(error), absent=True) from None
    except pynvml.NVMLError as error:
        raise DriverFailed(str(error), absent=False) from None


def look() -> DriverReport:
    """Return the full report. NVML must be initialised. Raises DriverFailed if not even the number of GPUs is
    available.
    """
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise DriverFailed(str(error), absent=False) from None
    handles: dict[int, Any] = {}
    cards: list[Card] = []
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            cards += _cards(index, handle)
            handles[index] = handle
        except pynvml.NVMLError as error:
            lost = isinstance(error, pynvml.NVMLError_GpuIsLost)
            cards.append(Card(index=index, error=str(error), lost=lost))
    version = text(ask("its version", pynvml.nvmlSystemGetDriverVersion) or "")
    return DriverReport(tuple(cards), _levels(handles), _direct(handles), version)


def count() -> Counted:
    """Return the GPUs that answer now. NVML must be initialised. Raises DriverFailed."""
    gpus: list[str] = []
    parts: list[tuple[str, str]] = []
    try:
        number = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise DriverFailed(str(error), absent=False) from None
    for index in range(number):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(pynvml.nvmlDeviceGetUUID(handle))
            if _divided(handle):
                own = [text(pynvml.nvmlDeviceGetUUID(part)) for part in _parts_of(handle)]
                parts += [(uuid, each) for each in own or [""]]
            gpus.append(uuid)
        except pynvml.NVMLError:
            continue  # the GPU is lost, perhaps since long
    version = text(ask("its version", pynvml.nvmlSystemGetDriverVersion) or "")
    return Counted(version, frozenset(gpus), frozenset(parts))


def _cards(index: int, handle: Any) -> list[Card]:
    """Return a GPU, or its instances. Raises NVMLError if it does not identify itself."""
    card = Card(
        index=index,
        name=text(pynvml.nvmlDeviceGetName(handle)),
        uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=memory(handle)[0],
        pci=_pci(index, handle),
        node=_node(index, handle),
        cpus=_cpus(index, handle),
        pcie=_pcie(index, handle),
        links=tuple(_link_ends(index, handle)),
        link_bytes_per_s=_link_bytes_per_s(handle),
        minor=ask(f"the device file of GPU {index}", pynvml.nvmlDeviceGetMinorNumber, handle),
        divided=_divided(handle),
    )
    return (_instances(card, handle) or [card]) if card.divided else [card]


def _instances(whole: Card, handle: Any) -> list[Card]:
    return [
        Card(
            index=whole.index,
            name=text(pynvml.nvmlDeviceGetName(part)),
            uuid=text(pynvml.nvmlDeviceGetUUID(part)),
            memory_bytes=memory(part)[0],
            pci=whole.pci,
            node=whole.node,
            cpus=whole.cpus,
            pcie=whole.pcie,
            minor=whole.minor,
            parent=whole.uuid,
        )
        for part in _parts_of(handle)
    ]


def memory(handle: Any) -> tuple[int, int]:
    """Return a GPU's total and used memory in bytes; (0, 0): not reported.

    GPUs that share the processor's memory (GB10, Jetson, some of Grace) have none of their own, and virtual GPUs may
    not report it. Any other error is a fault. Raises NVMLError.
    """
    try:
        found = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return 0, 0
    return int(found.total), int(found.used)


def _parts_of(handle: Any) -> Iterator[Any]:
    """Yield handles of the instances of a GPU. Raises NVMLError."""
    for number in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue


def _divided(handle: Any) -> bool:
    try:
        now, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False  # as all GPUs before the A100
    return bool(now == pynvml.NVML_DEVICE_MIG_ENABLE)


def _levels(handles: Mapping[int, Any]) -> dict[tuple[int, int], int]:
    levels: dict[tuple[int, int], int] = {}
    for a, b in combinations(sorted(handles), 2):
        what = f"what GPUs {a} and {b} share"
        level = ask(what, pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[a], handles[b])
        if level is not None:
            levels[a, b] = int(level)
    return levels


def _direct(handles: Mapping[int, Any]) -> dict[tuple[int, int], bool]:
    found: dict[tuple[int, int], bool] = {}
    for a, b in combinations(sorted(handles), 2):
        what = f"whether GPUs {a} and {b} reach each other's memory"
        status = ask(what, pynvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], P2P_READ)
        if status is not None:
            found[a, b] = int(status) == P2P_WORKS
    return found


def _node(index: int, handle: Any) -> int | None:
    """Return the NUMA node, if the driver reports exactly one."""
    what = f"the NUMA node of GPU {index}"
    words = ask(what, pynvml.nvmlDeviceGetMemoryAffinity, handle, NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    bits = _bits(words or ())
    return bits[0] if len(bits) == 1 else None


def _cpus(index: int, handle: Any) -> tuple[int, ...]:
    return _bits(ask(f"the CPUs near GPU {index}", pynvml.nvmlDeviceGetCpuAffinity, handle, CPU_WORDS) or ())


def _bits(words: Any) -> tuple[int, ...]:
    return tuple(64 * position + bit for position, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _pcie(index: int, handle: Any) -> tuple[int, int] | None:
    generation = ask(f"the PCIe generation of GPU {index}", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = ask(f"the PCIe width of GPU {index}", pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return (int(generation), int(width)) if generation and width else None


def _link_ends(index: int, handle: Any) -> Iterator[str]:
    """Yield the devices at the other ends of a GPU's active NVLinks; "": unknown."""
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        what = f"NVLink {number} of GPU {index}"
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, number)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            return  # no NVLink, or no more of them
        except pynvml.NVMLError as error:
            log.info("NVML does not tell %s: %s", what, error)
            return
        if not active:
            continue
        if (
            ask(what, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
            == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            yield NVSWITCH
            continue
        remote = ask(what, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        yield _address(remote) if remote is not None else ""


def _link_bytes_per_s(handle: Any) -> float:
    values = ask(
        "the speed of NVLinks", pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
    )
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return 0.0
    return float(values[0].value.uiVal) * 1e6


def _pci(index: int, handle: Any) -> str:
    found = ask(f"the PCI address of GPU {index}", pynvml.nvmlDeviceGetPciInfo, handle)
    return _address(found) if found is not None else ""


def _address(pci: Any) -> str:
    function = text(pci.busId).rpartition(".")[2] or "0"
    return f"{int(pci.domain):04x}:{int(pci.bus):02x}:{int(pci.device):02x}.{function}"


def ask(what: str, question: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer; None if it has none."""
    try:
        return question(*arguments)
    except pynvml.NVMLError as error:
        log.info("NVML does not tell %s: %s", what, error)
        return None


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
