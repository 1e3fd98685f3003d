"""Checks of the connections between GPUs: PCI bridges, by the kernel's sysfs, and InfiniBand adapters.

A bridge with Access Control Services (ACS) redirects writes of one GPU to another GPU, or to a network adapter, to the
root complex. Such transfers are slow, or lost: NCCL hangs in its first operation (nccl #606, #2079; NCCL user guide,
"PCI Access Control Services"). The register is that of `lspci -vv`: PCI Express base specification 7.7.11 (extended
capability 0x000d).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from pathlib import Path

from ...runtime.adapters import ACTIVE, adapters, described, go_together, word
from .checks import Finding, Register, absent, ok, warning, worst
from .targets import Subject, Target

CHECKS = Register(Subject.SERVER)
NVIDIA = "0x10de"
DISPLAY = "0x03"
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
NAMED = 4
EXTENDED, ACS, MOST_CAPABILITIES = 0x100, 0x000D, 64
CONTROL = 6  # offset of the control register in the capability
SENDS_UP = {  # control bits that redirect or block transfers between devices below a bridge; names of `lspci`
    0x01: "SrcValid+",
    0x04: "ReqRedir+",
    0x08: "CmpltRedir+",
    0x10: "UpstreamFwd+",
    0x20: "EgressCtrl+",
}


def gpus_on(root: Path) -> list[Path]:
    """Return the PCI devices that are NVIDIA GPUs. root: /sys."""
    devices = sorted((root / "bus/pci/devices").glob("*"))
    return [each for each in devices if word(each / "vendor") == NVIDIA and word(each / "class").startswith(DISPLAY)]


def adapters_on(root: Path) -> list[Path]:
    """Return the InfiniBand and RoCE adapters. root: /sys."""
    return sorted((root / "class/infiniband").glob("*"))


def access_control(config: bytes) -> int | None:
    """Return the ACS control register of a device with this configuration space. None: the device has no ACS, or the space ends
    before it, as in virtual machines, which show 256 bytes."""
    at = EXTENDED
    for _ in range(MOST_CAPABILITIES):
        if at + 4 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == ACS:
            return int(struct.unpack_from("<H", config, at + CONTROL)[0]) if at + CONTROL + 2 <= len(config) else None
        at = header >> 20
        if at < EXTENDED:  # end of the list of capabilities, or an empty list
            return None
    return None


def _bridges_above(device: Path) -> list[str]:
    """Return the addresses of the PCI bridges between the processor and a device."""
    parts = [part for part in device.resolve().parts if ADDRESS.fullmatch(part)]
    return parts[:-1]


@CHECKS.check(
    "acs",
    "a PCI bridge above GPUs sends what they write to each other through the processor (ACS): NCCL hangs, or is slow",
    "switch ACS off in the BIOS, or `setpci -s BRIDGE ECAP_ACS+6.w=0000` at each start; in a virtual machine on its host",
    once=True,
)
def acs(target: Target) -> Finding:
    root = target.machine.sys
    ends = [*gpus_on(root), *((each / "device") for each in adapters_on(root))]
    if len(ends) < 2 or not gpus_on(root):
        return absent("there are no GPUs that could write to each other, or to an InfiniBand adapter")
    bridges = Counter(bridge for end in ends for bridge in _bridges_above(end))
    if not bridges:
        return absent("the kernel does not tell what is above the GPUs, as in some virtual machines")
    wrong: dict[str, str] = {}
    short = 0
    for address in sorted(bridges):
        config = (root / "bus/pci/devices" / address / "config").read_bytes()
        if len(config) <= 64 and target.machine.uid != 0:
            return absent("root sees this")
        short += len(config) <= EXTENDED
        bits = [name for bit, name in SENDS_UP.items() if (access_control(config) or 0) & bit]
        if bits:
            wrong[address] = " ".join(bits)
    if wrong:
        named = ", ".join(f"{address} ({bits})" for address, bits in list(wrong.items())[:NAMED])
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        return warning(
            f"ACS is on in the bridges above GPUs: {named}{more}; NCCL may hang in its first operation, or be slow",
            "switch ACS off in the BIOS (where this is a virtual machine's host, ATS on instead); until the next start "
            f"`for b in {' '.join(wrong)}; do setpci -s $b ECAP_ACS+6.w=0000; done`; "
            "or NCCL_P2P_DISABLE=1 in `worker_environment`, which is slow",
        )
    if short == len(bridges):
        return absent(f"{len(bridges)} bridges above the GPUs do not show their ACS register, as in virtual machines")
    return ok(f"off in all {len(bridges)} bridges above {len(gpus_on(root))} GPUs")


@CHECKS.check(
    "infiniband",
    "a port of an InfiniBand or RoCE adapter is down, or the adapters are unlike those of another server with GPUs",
    "`ibstat`, cables and switches; `NCCL_IB_HCA` or `NCCL_IB_DISABLE=1` in `worker_environment` of all servers",
)
def infiniband(target: Target) -> Finding:
    own = adapters(target.machine.sys)
    reach = target.reach
    name = target.described.name
    views = reach.servers if reach is not None and reach.there else ()
    others = {
        str(view.server.server): each
        for view in views
        if (each := view.server.wiring.adapters) is not None and view.alive and view.server.wiring.gpus
        if str(view.server.server) != name
    }
    if not own and not any(others.values()):
        return absent("there are no InfiniBand or RoCE adapters")
    wrong = [
        warning(f"{each.name} is {each.state or 'in no known state'}", "`ibstat`; its cable, or its switch")
        for each in own
        if each.state != ACTIVE
    ]
    here = [each for each in own if each.state == ACTIVE]
    for other in sorted(others):
        there = [each for each in others[other] if each.state == ACTIVE]
        if described(there) == described(here):
            continue
        sides = ([each.link_layer for each in side] for side in (here, there))
        meant = (
            "NCCL may use fewer of them"
            if go_together(sides)
            else "workers of a job on both talk over sockets, and other programs hang"
        )
        wrong.append(
            warning(
                f"{other} has other adapters with a link: {described(there)}, and {described(here)} are here: {meant}",
                "`ibstat` on both; or name those that all have: NCCL_IB_HCA in `worker_environment` of all servers",
            )
        )
        if len(wrong) >= NAMED:
            break
    return worst(wrong, ok(f"{described(own)}, like {len(others)} other servers" if others else described(own)))
