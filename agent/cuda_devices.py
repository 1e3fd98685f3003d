"""Which GPUs CUDA shows a process, and in which order: the rules of CUDA_VISIBLE_DEVICES, purely.

* Devices have the order of the list, so a process's place among its job's GPUs on a server is an index of CUDA there.
* An entry is an index or a UUID, and what comes behind the first entry of another kind is not seen (torch reads the list
  likewise: pytorch #90543). So a list has entries of one kind.
* An index is counted as CUDA_DEVICE_ORDER says: by default the fastest GPU is the first one, elsewhere (NVML, `nvidia-smi`, here)
  the one with the lowest PCI address. So the agent sets PCI_BUS_ID.
* Of instances of divided GPUs (MIG) a process sees one, the first of the list, and no whole GPU beside it (NVIDIA MIG user guide,
  "CUDA device enumeration"; pytorch #95784, #102715).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.model import Gpu

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
INSTANCE = "MIG-"


def shown(own: Gpu, wanted: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Those of the GPUs in `wanted` that a process whose own is `own` can see at once, in their order."""
    return (own,) if any(gpu.uuid.startswith(INSTANCE) for gpu in wanted) else tuple(wanted)


def listed(gpus: Sequence[Gpu]) -> str:
    """The value of CUDA_VISIBLE_DEVICES."""
    by_uuid = all(gpu.uuid for gpu in gpus)
    return ",".join(gpu.uuid if by_uuid else str(gpu.index) for gpu in gpus)
