"""The DeviceMesh that a script passes to `fully_shard`: this worker alone, or the workers that have parts of the
parameters.

PyTorch's FSDP2 reads sizes and ranks from a mesh, and calls its process group for collectives. The process groups of an
elastic job change with its workers, and each wait on one of them must end when a worker is lost. So this mesh has none
of PyTorch's process groups: FSDP's collectives go through the runtime's communicator (`rounds`). `Gathers` stands for a
process group in DTensor's collectives, and only gathers (`DTensor.full_tensor()`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.tensor import DTensor, placement_types

from ...protocol.errors import UserError

# Found in torch's error when a script calls a collective on a mesh of which the workers have changed.
NO_GROUP = (
    "of run.mesh(), on which only fully_shard communicates: parameters are gathered by full_tensor(), and in the same "
    "loop body or code between two steps in which they were read"
)
SUMMED = (
    "a sum over the workers' parts of parameters under fully_shard was asked for in a loop body (such as that of "
    "parameter.norm()): its bits depend on the number of workers. Write parameter.full_tensor() first, or read the number "
    "in a function of run.every or between two epochs, where each worker has the whole model"
)
NO_GRADIENT = (
    "torch.autograd.grad(), or backward(inputs=...), was asked for gradients of parameters under fully_shard, and finds "
    "none (with allow_unused=True it returns None): the loss depends on the gathered layers. Call loss.backward(), which "
    "gives the parameters their gradients"
)
Gather = Callable[[torch.Tensor, torch.Tensor], None]
_registry: Any = torch._C._distributed_c10d


class Members:
    """Stands for a process group where FSDP asks for its size and rank."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class Gathers(dist.ProcessGroup):
    """Stands for the process group of a mesh in DTensor's collectives."""

    def __init__(self, rank: int, size: int, gather: Gather) -> None:
        """gather: gathers its second argument, of equal size on all workers, in the first. Raises UserError."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._gather = gather

    def getBackendName(self) -> str:
        return "elastic"

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        """Gather each input."""
        for output, own in zip(outputs, inputs, strict=True):
            self._gather(output, own)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return _registry._create_work_from_future(done)  # in Python, it could be freed before PyTorch waits for it

    def allreduce(self, *given: Any) -> NoReturn:
        """Refuse: the bits of a sum depend on the number of workers."""
        raise UserError(SUMMED)

    allreduce_coalesced = reduce_scatter_tensor_coalesced = allreduce  # type: ignore[assignment]


class Mesh(DeviceMesh):
    """A mesh of one dimension without a process group of PyTorch's."""

    def __init__(self, device_type: str, rank: int = 0, size: int = 1, gather: Gather | None = None) -> None:
        """gather: for DTensor's collectives; None: these are errors."""
        super().__init__(device_type, torch.arange(size), _init_backend=False, _rank=rank)
        names: Any = [NO_GROUP]
        self._dim_group_names = names
        self._members = Members(rank, size)
        if gather is not None and size > 1:
            # DTensor's operators cache meshes of equal sizes, also retired ones: the name must stay the same.
            self._gathers = Gathers(rank, size, gather)
            names[0] = f"{NO_GROUP} ({size} workers)"
            _registry._unregister_process_group(names[0])
            _registry._register_process_group(names[0], self._gathers)

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
            "run.save(model, path), or get plain tensors by parameter.full_tensor(), which all workers have to call; "
            "`elasticctl export` writes the job's checkpoints"
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
            "a number was read from parameters under fully_shard in a loop body (such as float(parameter.norm())), where "
            "each worker has a part of them: write parameter.full_tensor() first, or read it in a function of run.every "
            "or between two epochs, where each worker has the whole model"
        )
    return found


def _backward(inner: Callable[..., Any], outputs: Any, gradients: Any, *given: Any, **named: Any) -> Any:
    """Handle torch.autograd.grad() and backward(). given: two flags, and the tensors of which gradients are wanted."""
    if any(isinstance(each, DTensor) and isinstance(each.device_mesh, Mesh) for each in given[2]):
        raise UserError(NO_GRADIENT)
    return inner(outputs, gradients, *given, **named)


def _scatter(
    inner: Callable[..., Any], output: torch.Tensor, parts: Any, mesh: DeviceMesh, *given: Any, **named: Any
) -> Any:
    """Handle the collective of `distribute_tensor`. parts: one for each worker. Raises UserError in the loop."""
    if not isinstance(mesh, Mesh):
        return inner(output, parts, mesh, *given, **named)
    if mesh.size() > 1:
        raise UserError(
            "distribute_tensor() was called with the mesh of run.mesh() in the loop: call it before prepare()"
        )
    return output.copy_(parts[0])


def _write_items(self: DTensor, inner: Callable[..., Any], *given: Any) -> Any:
    """Handle torch.distributed.checkpoint.save(). Raises UserError where workers have different parts."""
    if isinstance(self.device_mesh, Mesh) and self.device_mesh.size() > 1:
        raise UserError(
            "torch.distributed.checkpoint.save() was given parameters under fully_shard in a loop body: without PyTorch's "
            "process group each worker would write its part over the others'. Write run.save(model, path), or save in a "
            "function of run.every under `if run.is_leader:`, where each worker has the whole model; `elasticctl export` "
            "writes the job's checkpoints in that format"
        )
    return inner(self, *given)


_tensor: Any = DTensor
_tensor.__create_write_items__ = partialmethod(_write_items, _tensor.__create_write_items__)
_placements: Any = placement_types
_placements.mesh_scatter = partial(_scatter, _placements.mesh_scatter)
_autograd: Any = torch.autograd
_autograd._engine_run_backward = partial(_backward, _autograd._engine_run_backward)
_handlers: Any = DTensor._op_dispatcher._custom_op_handlers
_handlers[torch.ops.aten._local_scalar_dense.default] = _number


def info(device_type: str, rank: int, size: int, gather: Gather | None = None) -> FSDPMeshInfo:
    """Return FSDP's description of a mesh of `size` workers. gather: as in `Mesh`."""
    return FSDPMeshInfo(Mesh(device_type, rank, size, gather), shard_mesh_dim=0)
