"""The DeviceMesh that a script passes to `fully_shard`: this worker alone, or the workers that have parts of the
parameters.

PyTorch's FSDP2 reads sizes and ranks from a mesh, and calls its process group for collectives. The process groups of an
elastic job change with its workers, and each wait on one of them must end when a worker is lost. So this mesh has no
process group: FSDP's collectives go through the runtime's communicator (`rounds`), and any other collective on the mesh
is an error.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.tensor import DTensor

from ...protocol.errors import UserError

# Found in torch's error when a script calls a collective on the mesh, such as DTensor.full_tensor().
NO_GROUP = (
    "of run.mesh(), on which only fully_shard communicates: an elastic job's parameters are gathered by run.save()"
)


class Members:
    """Stands for a process group where FSDP asks for its size and rank."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class Mesh(DeviceMesh):
    """A mesh of one dimension without a process group."""

    def __init__(self, device_type: str, rank: int = 0, size: int = 1) -> None:
        super().__init__(device_type, torch.arange(size), _init_backend=False, _rank=rank)
        names: Any = [NO_GROUP]
        self._dim_group_names = names
        self._members = Members(rank, size)

    def get_group(self, mesh_dim: int | str | None = None) -> Any:
        """Return the size and the rank of this worker. No collective can be called on the result."""
        return self._members

    def get_rank(self) -> int:
        """Return the rank of this worker in the mesh."""
        return self._members.rank()

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the rank of this worker in the mesh."""
        return self._members.rank()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or written to a file, with a parameter of which this worker may have a part only."""
        raise UserError(
            "a parameter under fully_shard was copied or saved: each worker has a part of it. Write the model by "
            "run.save(model, path) after the loop; `elasticctl export` writes the job's checkpoints"
        )


def _number(operator: Any, given: Any, named: Any) -> Any:
    """Return the number in a DTensor of one element, which PyTorch takes from this worker's part alone.

    Raises UserError if other workers have other parts. NaN is returned: of a gradient, which no worker has.
    """
    (tensor,) = given
    found = operator(tensor._local_tensor)
    mesh, whole = tensor.device_mesh, all(each.is_replicate() for each in tensor.placements)
    if isinstance(mesh, Mesh) and mesh.size() > 1 and not whole and not math.isnan(found):
        raise UserError(
            "a number was read from parameters under fully_shard in the loop (such as float(parameter.norm())), where "
            "each worker has a part of them: read it before or after the loop"
        )
    return found


_handlers: Any = DTensor._op_dispatcher._custom_op_handlers
_handlers[torch.ops.aten._local_scalar_dense.default] = _number


def info(device_type: str, rank: int, size: int) -> FSDPMeshInfo:
    """Return FSDP's description of a mesh of `size` workers."""
    return FSDPMeshInfo(Mesh(device_type, rank, size), shard_mesh_dim=0)
