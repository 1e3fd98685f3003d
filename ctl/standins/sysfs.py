"""The kernel's tree of PCI devices and network cards (sysfs) of a described server, as directories and links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GPU_FACT = re.compile(r"gpu (\d+) (path|node) (\S+)", re.ASCII)
NIC = re.compile(r"nic (\S+) speed (\d+) node (-?\d+) path (\S+)", re.ASCII)  # the speed in Mb/s


@dataclass
class _Device:
    path: str
    node: int = -1


def write(description: str, root: Path) -> None:
    """Make below `root` the part of `/sys` about the GPUs and the network cards in a description."""
    for directory in ("bus/pci/devices", "class/net"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    for gpu in _gpus(description):
        _device(root, gpu)
    for name, speed, node, path in NIC.findall(description):
        device = _device(root, _Device(path, int(node)))
        interface = device / "net" / name
        interface.mkdir(parents=True, exist_ok=True)
        (interface / "speed").write_text(f"{speed}\n")
        _link(interface / "device", device)
        _link(root / "class/net" / name, interface)


def _gpus(description: str) -> Iterator[_Device]:
    found: dict[int, _Device] = {}
    for number, fact, value in GPU_FACT.findall(description):
        device = found.setdefault(int(number), _Device(""))
        if fact == "path":
            device.path = value
        else:
            device.node = int(value)
    return (device for device in found.values() if device.path)


def _device(root: Path, device: _Device) -> Path:
    directory = root / "devices" / device.path
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "numa_node").write_text(f"{device.node}\n")
    _link(root / "bus/pci/devices" / directory.name, directory)
    return directory


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
