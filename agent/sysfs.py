"""PCI devices and network cards as the kernel lists them (sysfs). A missing value is unknown, and never an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..protocol.model import Nic

PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", re.ASCII)
MOST_NICS = 64
MEGABIT_BYTES = 1e6 / 8
GIGABIT_BYTES = 1e9 / 8


def pci_devices(directory: Path) -> tuple[str, ...]:
    """Return the PCI devices on the way to a device, from the host bridge to itself. Empty: it is not one, or its place
    is unknown.
    """
    try:
        parts = directory.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    begin = next((at for at, part in enumerate(parts) if HOST_BRIDGE.fullmatch(part)), None)
    if begin is None:
        return ()
    found = [parts[begin]]
    for part in parts[begin + 1 :]:
        if not PCI.fullmatch(part):
            break  # entries that a driver has put below the device
        found.append(part)
    return tuple(found) if len(found) > 1 else ()


def above(root: Path, address: str) -> tuple[str, ...]:
    """Return the PCI devices above the one with this address, from the host bridge on."""
    return pci_devices(root / "bus/pci/devices" / address)[:-1] if PCI.fullmatch(address) else ()


def numa_node(device: Path) -> int | None:
    """Return the NUMA node of a device, or None if it is unknown."""
    found = _number(device / "numa_node")
    return found if found is not None and found >= 0 else None


def nics(root: Path) -> tuple[Nic, ...]:
    """Return the network cards, by name: those that are PCI devices, each once. Virtual functions are left out."""
    found: dict[str, Nic] = {}
    for interface in _listed(root / "class/net"):
        _add(found, interface, (_number(interface / "speed") or 0) * MEGABIT_BYTES)
    for adapter in _listed(root / "class/infiniband"):
        rates = [_rate(port / "rate") for port in _listed(adapter / "ports")]
        _add(found, adapter, max(rates, default=0.0))
    return tuple(sorted(found.values(), key=lambda nic: nic.name))[:MOST_NICS]


def _add(found: dict[str, Nic], interface: Path, bytes_per_s: float) -> None:
    device = interface / "device"
    devices = pci_devices(device)
    if not devices or (device / "physfn").exists():
        return
    address = devices[-1]
    known = found.get(address)
    found[address] = Nic(
        name=known.name if known is not None else interface.name,
        pci=address,
        above=devices[:-1],
        node=numa_node(root_device) if (root_device := _pci_directory(device, address)) is not None else None,
        bytes_per_s=max(bytes_per_s, known.bytes_per_s if known is not None else 0.0, 0.0),
    )


def _pci_directory(device: Path, address: str) -> Path | None:
    """Return the directory of the PCI device `address`, which is `device` or above it."""
    resolved = device.resolve()
    return next((path for path in (resolved, *resolved.parents) if path.name == address), None)


def _rate(file: Path) -> float:
    """Return the rate (bytes/s) of an InfiniBand port: "200 Gb/sec (4X HDR)"."""
    match = re.match(r"([0-9.]+) Gb/sec", _text(file))
    return float(match[1]) * GIGABIT_BYTES if match else 0.0


def _listed(directory: Path) -> Iterable[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return ()


def _number(file: Path) -> int | None:
    try:
        return int(_text(file))
    except ValueError:
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # also for a card without a cable, which reports no speed
        return ""


def nodes(directory: Path) -> tuple[tuple[int, int], ...]:
    """Return major and minor numbers of the device files that a driver has made for a device: ``DIRECTORY/NAME/dev``."""
    found = []
    for path in sorted(directory.glob("*/dev")):
        try:
            major, _, minor = path.read_text(encoding="ascii").strip().partition(":")
            found.append((int(major), int(minor)))
        except (OSError, ValueError):
            continue
    return tuple(found)
