"""GPUs that CUDA shows to a process, and their order: the rules of CUDA_VISIBLE_DEVICES. Pure.

* Devices have the order of the list, so a process's position among its job's GPUs on a server is its CUDA index.
* An entry is an index or a UUID. Entries after the first one of the other kind are ignored (torch parses the list likewise:
  pytorch #90543). So a list has entries of one kind.
* CUDA_DEVICE_ORDER defines the indices: by default the fastest GPU is first; in NVML, `nvidia-smi` and this project, the lowest
  PCI address. So the agent sets PCI_BUS_ID.
* A process sees one instance of divided GPUs (MIG), the first in the list, and no whole GPU beside it (NVIDIA MIG user guide,
  "CUDA device enumeration"; pytorch #95784, #102715).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.model import Gpu

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
INSTANCE = "MIG-"


def shown(own: Gpu, wanted: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs in `wanted` that a process with the GPU `own` can see at once, in their order."""
    return (own,) if any(gpu.uuid.startswith(INSTANCE) for gpu in wanted) else tuple(wanted)


def listed(gpus: Sequence[Gpu]) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES."""
    by_uuid = all(gpu.uuid for gpu in gpus)
    return ",".join(gpu.uuid if by_uuid else str(gpu.index) for gpu in gpus)
