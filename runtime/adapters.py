"""InfiniBand and RoCE adapters of this machine, from sysfs, and whether NCCL can use them together with another machine's.

NCCL uses adapters where it finds some, decided in each process alone, and sockets elsewhere. Processes that decided differently
wait for each other forever (nccl #234, #2428). So workers compare their adapters before they connect, and use sockets where the
adapters do not match (`worker/communication/groups.py`); `doctor` compares the adapters that servers report.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..protocol.model import Adapter

SYSFS, DEV = Path("/sys"), Path("/dev")
MOST_ADAPTERS = 64
ACTIVE = "ACTIVE"
GIGABIT_BYTES = 1e9 / 8


def adapters(root: Path = SYSFS) -> tuple[Adapter, ...]:
    """Return each port of each adapter, by name ("mlx5_0:1"). root: /sys."""
    found = []
    for port in sorted((root / "class/infiniband").glob("*/ports/*")):
        rate = re.match(r"([0-9.]+) Gb/sec", word(port / "rate"))  # "200 Gb/sec (4X HDR)"
        found.append(
            Adapter(
                name=f"{port.parent.parent.name}:{port.name}",
                link_layer=word(port / "link_layer"),
                state=word(port / "state").partition(":")[2].strip(),  # "4: ACTIVE"
                bytes_per_s=float(rate[1]) * GIGABIT_BYTES if rate else 0.0,
            )
        )
    return tuple(found[:MOST_ADAPTERS])


def usable(environ: Mapping[str, str], root: Path = SYSFS, dev: Path = DEV) -> tuple[Adapter, ...]:
    """Return the ports that NCCL would use in a process with this environment: device files it may open, with an active link."""
    if environ.get("NCCL_IB_DISABLE", "0") != "0" or environ.get("NCCL_NET", "").lower() == "socket":
        return ()
    closed = set(_closed(root, dev))
    wanted = environ.get("NCCL_IB_HCA", "")
    return tuple(
        each
        for each in adapters(root)
        if each.state == ACTIVE and each.name.partition(":")[0] not in closed and _is_named(each.name, wanted)
    )


def _closed(root: Path, dev: Path) -> Iterator[str]:
    """Yield adapters of which this process may not open the device file, as in a container that was given only some."""
    for entry in (root / "class/infiniband_verbs").glob("uverbs*"):
        if not os.access(dev / "infiniband" / entry.name, os.R_OK | os.W_OK):
            yield word(entry / "ibdev")


def _is_named(name: str, wanted: str) -> bool:
    """Apply NCCL_IB_HCA: `^` excludes names, `=` matches exactly, else a prefix matches; a port may follow after a colon."""
    if not wanted:
        return True
    listed = wanted.lstrip("^=").split(",")
    exact = wanted.lstrip("^").startswith("=")
    own, _, port = name.partition(":")
    among = any(
        (own == each if exact else own.startswith(each)) and number in ("", port)
        for each, _, number in (part.partition(":") for part in listed)
    )
    return among is not wanted.startswith("^")


def go_together(sides: Iterable[Iterable[str]]) -> bool:
    """Return whether NCCL can connect processes with adapters of these link layers: all have a layer in common, or none has
    any."""
    layers = [frozenset(side) for side in sides]
    return not any(layers) or bool(frozenset.intersection(*layers))


def described(found: Iterable[Adapter]) -> str:
    """Return a summary: "8x InfiniBand 400 Gbit/s, 1x Ethernet 25 Gbit/s"; "none"."""
    kinds = Counter((each.link_layer or "unknown", each.bytes_per_s) for each in found)
    ordered = sorted(kinds.items(), key=lambda item: (-item[0][1], item[0][0]))
    texts = [f"{count}x {layer} {speed / GIGABIT_BYTES:.0f} Gbit/s" for (layer, speed), count in ordered]
    return ", ".join(texts) or "none"


def word(file: Path) -> str:
    """Return the text of one of the kernel's small files; "" if it cannot be read."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
