"""The layers to which a script has applied `fully_shard` (PyTorch's FSDP2): checks, and this worker's part of each
parameter.

A script applies `fully_shard` with a mesh of one worker, `run.mesh()`, so that each parameter is a DTensor of which
this worker has all rows. `Layer.place` gives the same objects a mesh of several workers and this worker's rows: FSDP
then gathers and frees the layer around its use. The parameters stay the same objects, since the optimizer refers to
them.

FSDP keeps the numbers that it needs in private attributes. Those set here are of torch 2.13; `check` refuses a version
without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._pytree import tree_map

from ...protocol.errors import UserError
from .intervals import Interval
from .mesh import Mesh, info

SEEN = (
    "a gradient was read or changed between backward() and optimizer.step(), and under fully_shard no worker has it "
    "there. To clip the step's gradient: run.clip(1.0), or prepare(…, max_grad_norm=1.0)"
)
DIRECT = (
    "the loss of a loop body contains a parameter under fully_shard itself (such as a penalty of its norm): its gradient "
    "would pass by the layer's. Compute the term in the forward pass of the module that has the parameter, or use the "
    "optimizer's weight_decay="
)
KINDS = (torch.float32, torch.float64, torch.bfloat16)
_OF_GROUPS = (
    "fsdp_params",
    "mesh_info",
    "post_forward_mesh_info",
    "_all_gather_comm",
    "_reduce_scatter_comm",
    "_all_reduce_hook",
    "reduce_grads",
    "unshard_in_backward",
    "reduce_scatter_unused_params",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
    "_to_sharded",
)
_OF_PARAMETERS = (
    "sharded_param",
    "_sharded_param_data",
    "_sharding_spec",
    "_spmd_mesh",
    "_shard_mesh",
    "_orig_size",
    "all_gather_outputs",
    "sharded_size",
    "contiguous_sharded_stride",
    "padded_sharded_param_size",
)


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether the script has applied `fully_shard` to the model or to a part of it."""
    return any(isinstance(each, FSDPModule) for each in model.modules())


class Parameter:
    """A parameter of which this worker has some rows. `position`: its number among all."""

    def __init__(self, own: Any, position: int) -> None:
        """own: FSDP's description of the parameter."""
        self.own = own
        self.position = position
        self.tensor: torch.nn.Parameter = own.sharded_param  # the object that the optimizer has
        self.shape: torch.Size = own._orig_size
        self._row = self.shape[1:].numel()

    @property
    def span(self) -> Interval:
        """The place of all elements."""
        return Interval(self.position, 0, self.shape.numel())

    def rows(self, rank: int, size: int) -> Interval:
        """Return the place of the elements that a rank of `size` workers has: FSDP cuts the first dimension by
        torch.chunk.
        """
        rows = -(-self.shape[0] // size)
        begin, end = (min(each, self.shape[0]) * self._row for each in (rank * rows, (rank + 1) * rows))
        return Interval(self.position, begin, end)

    @property
    def local(self) -> torch.Tensor:
        """This worker's elements, as a view of one dimension."""
        return self._data[: self._local.numel()]

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after this worker's elements have been changed in place or replaced."""
        return self._local.data_ptr(), self._local._version, self.tensor._version

    @property
    def gathered(self) -> torch.Tensor | None:
        """The parameter that FSDP makes of all workers' elements, also while its memory is freed; None: not yet made."""
        found: torch.Tensor | None = getattr(self.own, "_unsharded_param", None)
        return found

    @property
    def gathered_version(self) -> int:
        """A number that is greater after the gathered parameter has been changed in place, such as by a forward pass."""
        return 0 if self.gathered is None else self.gathered._version

    @property
    def has_gradient(self) -> bool:
        """Whether the backward pass has left a gradient, which FSDP has not yet reduced."""
        left = self.gathered is not None and self.gathered.grad is not None
        return left or self.own.unsharded_accumulated_grad is not None

    @property
    def has_hooks(self) -> bool:
        """Whether the script has registered functions for the parameter's gradient, which FSDP passes by or calls with
        a gradient that no worker has."""
        behind: Any = getattr(self.tensor, "_post_accumulate_grad_hooks", None) or {}
        return bool(self.tensor._backward_hooks) or any(not isinstance(each, Hide) for each in behind.values())

    @property
    def _local(self) -> torch.Tensor:
        tensor: Any = self.tensor
        found: torch.Tensor = tensor._local_tensor
        return found

    @property
    def _data(self) -> torch.Tensor:
        data: torch.Tensor = self.own._sharded_param_data
        return data

    def place(self, mesh_info: Any, elements: torch.Tensor) -> None:
        """Let the parameter be divided over another mesh. elements: those of this worker, of one dimension."""
        own, size = self.own, mesh_info.shard_mesh_size
        rows, rest = -(-self.shape[0] // size), self.shape[1:]
        padded = torch.Size([rows, *rest])
        data = elements.new_zeros(padded.numel())
        data[: elements.numel()] = elements
        local = data.view(padded)[: elements.numel() // self._row]
        own.mesh_info = mesh_info
        own._shard_mesh = own._spmd_mesh = mesh_info.mesh
        own._sharding_spec = DTensorSpec(
            mesh_info.mesh, own._spmd_placements, tensor_meta=own._sharding_spec.tensor_meta
        )
        own.padded_sharded_param_size, own.sharded_size = padded, local.size()
        own.contiguous_sharded_stride = local.stride()
        own._sharded_param_data = data
        own.all_gather_outputs = []
        if hasattr(own, "_unsharded_param"):
            del own._unsharded_param
        tensor: Any = self.tensor
        tensor.grad = None
        tensor._local_tensor, tensor._spec = local, own._sharding_spec


class Hidden(torch.Tensor):
    """A parameter's gradient in a loop body, which no worker has: reading gives NaN, and writing is refused.

    Version counters do not show all changes, since those of a DTensor by way of `.data` or of `torch._foreach_*` leave
    them as they are.
    """

    plain: torch.Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, plain: torch.Tensor) -> Hidden:
        """Return a tensor with the memory of `plain`."""
        hidden = torch.Tensor._make_subclass(cls, plain)
        hidden.plain = plain
        return hidden

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.plain)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        """Call an operator with the plain tensors; views are hidden, too. Raises UserError if it writes."""
        memory: set[int] = set()

        def plain(each: Any) -> Any:
            if not isinstance(each, Hidden):
                return each
            if function._schema.is_mutable:
                raise UserError(SEEN)
            memory.add(each.plain.untyped_storage().data_ptr())
            return each.plain

        def hidden(each: Any) -> Any:
            is_view = isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() in memory
            return Hidden.of(each) if is_view else each

        return tree_map(hidden, function(*tree_map(plain, given), **tree_map(plain, named or {})))


class Hide:
    """Refuses changes of the parameters' gradients in a loop body, which FSDP sets. Called when a gradient is set."""

    def __init__(self) -> None:
        self.expects = False  # FSDP is about to set gradients
        self._hidden: dict[int, tuple[Any, torch.Tensor, int]] = {}

    def begin(self) -> None:
        """Begin a loop body."""
        self._hidden = {}

    def __call__(self, parameter: torch.Tensor) -> None:
        """Hide a parameter's gradient. Raises UserError if FSDP has not set it."""
        if not self.expects:
            raise UserError(DIRECT)
        grad: Any = parameter.grad
        plain: torch.Tensor = grad._local_tensor
        grad._local_tensor = Hidden.of(plain)
        self._hidden[id(parameter)] = grad, plain, plain._version

    def has_left(self, parameter: torch.Tensor) -> bool:
        """Return whether a parameter's gradient is as FSDP has set it in this body."""
        grad, plain, version = self._hidden.get(id(parameter), (None, None, 0))
        if parameter.grad is not grad:
            return False
        return grad is None or plain is None or (grad._version == 0 and plain._version == version)


class Layer:
    """The parameters of one call of `fully_shard`, which FSDP gathers and reduces together."""

    def __init__(self, group: Any, number: int, parameters: Sequence[Parameter]) -> None:
        """group: FSDP's."""
        self.group = group
        self.number = number
        self.parameters = list(parameters)

    @property
    def trained(self) -> list[Parameter]:
        """The parameters with gradients, in FSDP's order."""
        return [each for each in self.parameters if each.tensor.requires_grad]

    @property
    def reduced_elements(self) -> int:
        """Number of elements of a reduced gradient on each worker, with FSDP's padding."""
        return sum(each.own.padded_sharded_param_size.numel() for each in self.trained)

    @property
    def reduced_type(self) -> torch.dtype:
        """Type in which gradients are added up, by the mixed-precision policy."""
        policy = self.group.mp_policy
        found: torch.dtype = policy.reduce_dtype or policy.param_dtype or self.parameters[0].tensor.dtype
        return found

    @property
    def has_gradient(self) -> bool:
        """Whether the backward pass has left a gradient in some parameter, which FSDP has not yet reduced."""
        return any(each.has_gradient for each in self.trained)

    def fill_up(self) -> None:
        """Give parameters that earlier backward passes of the body have left out the accumulated type: FSDP reduces
        gradients of one type only.
        """
        accumulated = [each.own.unsharded_accumulated_grad for each in self.trained]
        present = next((each for each in accumulated if each is not None), None)
        for each, grad in zip(self.trained, accumulated, strict=True):
            if present is not None and grad is None and each.gathered is not None:
                each.own.unsharded_accumulated_grad = torch.zeros_like(each.gathered, dtype=present.dtype)

    def take_over(
        self, gather: Any, reduce: Any, taken: Any, behind_backward: Callable[[Layer, Callable[[], None]], None]
    ) -> None:
        """Replace FSDP's collectives, and let it add gradients without a factor.

        behind_backward: called with this layer and FSDP's work behind its backward pass, in place of this work.
        """
        self.group.post_backward = partial(_post_backward, self, self.group.post_backward, behind_backward)
        self._settings = {
            "_all_gather_comm": gather,
            "_reduce_scatter_comm": reduce,
            "_all_reduce_hook": taken,
            "gradient_divide_factor": 1.0,
            "force_sum_reduction_for_comms": True,
            "reduce_scatter_unused_params": True,
            "reduce_grads": True,
            "unshard_in_backward": True,
        }
        for name, value in self._settings.items():
            setattr(self.group, name, value)

    def check(self) -> None:
        """Raise UserError if the script has changed a setting of FSDP's on which the result depends."""
        for name, value in self._settings.items():
            if getattr(self.group, name) != value:
                raise UserError(
                    f"the script has changed a setting of fully_shard behind prepare() ({name.strip('_')}): the "
                    "runtime adds up the gradients of all loop bodies, and needs FSDP as it is there"
                )

    def place(self, mesh_info: Any, elements: Sequence[torch.Tensor]) -> None:
        """Divide the layer over another mesh. elements: of each parameter those of this worker."""
        self.free()
        for each, own in zip(self.parameters, elements, strict=True):
            each.place(mesh_info, own)
        if self.group.post_forward_mesh_info is not None:
            self.group.post_forward_mesh_info = mesh_info
        self.group.mesh_info = mesh_info
        for each in self.parameters:
            each.own.post_forward_mesh_info = self.group.post_forward_mesh_info

    def free(self) -> None:
        """Free what was gathered: the modules have this worker's parts again."""
        self.group._to_sharded()


def _post_backward(layer: Layer, work: Callable[[], None], behind: Callable[..., None], *unused: Any) -> None:
    behind(layer, work)


def states_of(model: torch.nn.Module) -> list[Any]:
    """Return FSDP's states of the model's modules, in their order, each once."""
    states: list[Any] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            if all(state is not each for each in states):
                states.append(state)
    return states


def reset(states: Sequence[Any]) -> None:
    """End FSDP's work for a loop body, wherever it is: modules have this worker's parts again, and nothing is in
    flight.
    """
    for state in states:
        if state._is_root:
            state._reset_iter_state()


def watch_calls(model: torch.nn.Module, check: Callable[[], None], frees: Callable[[], bool]) -> None:
    """Let `check` be called before each forward pass of a module to which the script has applied `fully_shard`.

    Also before a method given to `register_fsdp_forward_method`. frees: returns whether the root's parameters are freed
    behind the pass, as FSDP does not.
    """

    for state in states_of(model):
        before, free = partial(_before, state, check), partial(_free_root, state, frees)
        for module in state._modules:
            module.register_forward_pre_hook(before, prepend=True)
            module.register_forward_hook(free)
        own = state._pre_forward, state._post_forward  # as methods call them; modules call the hooks
        state._pre_forward = partial(_checked, before, own[0])
        state._post_forward = partial(_freed, own[1], free)


def _before(state: Any, check: Callable[[], None], *given: Any) -> None:
    check()
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # memory allocated in this mode could not be used by training
            for group in state._fsdp_param_groups:
                for own in group.fsdp_params:
                    _allocate(own, group)


def _allocate(own: Any, group: Any) -> None:
    """Make the tensor in which FSDP gathers a parameter, without memory yet."""
    if not own.all_gather_outputs:
        dtype = group.mp_policy.param_dtype or own.sharded_param.dtype
        size = own.padded_sharded_param_size.numel()
        own.init_all_gather_outputs([size], [dtype], group.mesh_info.shard_mesh_size, group.device)
        own.free_unsharded_param()


def _checked(check: Callable[[], None], work: Callable[..., Any], *given: Any) -> Any:
    check()
    return work(*given)


def _freed(work: Callable[..., Any], free: Callable[[], None], *given: Any) -> Any:
    output = work(*given)
    free()
    return output


def _free_root(state: Any, frees: Callable[[], bool], *given: Any) -> None:
    if state._is_root and frees():
        for group in state._fsdp_param_groups:
            group.reshard()


def layers_of(model: torch.nn.Module, mesh: Mesh | None) -> list[Layer]:
    """Return the layers to which the script has applied `fully_shard`, in the model's order.

    mesh: the result of `run.mesh()`; None: the script has not called it. Raises UserError, naming what is not
    supported.
    """
    states = states_of(model)
    found: list[Layer] = []
    for state in states:
        groups = state._fsdp_param_groups
        if len(groups) > 1:
            raise UserError(
                "fully_shard was called with a shard_placement_fn that gives one layer several meshes: leave it out"
            )
        for group in groups:
            _check_group(group, mesh)
            first = sum(len(each.parameters) for each in found)
            parameters = [Parameter(own, first + number) for number, own in enumerate(group.fsdp_params)]
            found.append(Layer(group, len(found), parameters))
    _check_all_found(model, found)
    return found


def _check_group(group: Any, mesh: Mesh | None) -> None:
    missing = [name for name in _OF_GROUPS if not hasattr(group, name)]
    missing += [name for own in group.fsdp_params for name in _OF_PARAMETERS if not hasattr(own, name)]
    if missing:
        raise UserError(
            f"fully_shard of torch {torch.__version__} has other internals than those that an elastic job divides anew "
            f"({missing[0]}): use torch 2.13"
        )
    comm = type(group._all_gather_comm).__name__
    of_torch = {"DefaultAllGather", "DefaultReduceScatter"}
    for wrong, text in (
        (
            group.mesh_info.mesh.ndim != 1,
            "a mesh of two dimensions (HSDP): an elastic job divides over all its workers",
        ),
        (
            mesh is None or group.mesh_info.mesh is not mesh,
            "another mesh than run.mesh(), which follows the job's workers: fully_shard(layer, mesh=run.mesh())",
        ),
        (type(group.offload_policy).__name__ != "OffloadPolicy", "an offload policy: leave offload_policy out"),
        (
            group.post_forward_mesh_info is not None and group.post_forward_mesh_info.mesh is not group.mesh_info.mesh,
            "a number for reshard_after_forward: use True or False",
        ),
        (
            any(own.fsdp_placement.dim != 0 for own in group.fsdp_params),
            "a shard_placement_fn: an elastic job divides the first dimension",
        ),
        (any(own.is_dtensor for own in group.fsdp_params), "parameters that are DTensors already (tensor parallelism)"),
        (
            {comm, type(group._reduce_scatter_comm).__name__} != of_torch or group._all_reduce_hook is not None,
            "collectives of its own: an elastic job has its own there",
        ),
        (
            group.gradient_divide_factor is not None or not group.reduce_grads or not group.unshard_in_backward,
            "a setting by set_gradient_divide_factor, set_requires_gradient_sync or set_unshard_in_backward: leave it "
            "out",
        ),
    ):
        if wrong:
            raise UserError(f"fully_shard in an elastic job was given {text}")


def _check_all_found(model: torch.nn.Module, layers: Sequence[Layer]) -> None:
    known = {id(each.tensor) for layer in layers for each in layer.parameters}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known:
            raise UserError(
                f"the parameter {name} is not under fully_shard: call fully_shard(model, mesh=run.mesh()) behind those "
                "of its layers, without ignored_params"
            )
        if parameter.dtype not in KINDS:
            raise UserError(
                f"the parameter {name} is of type {parameter.dtype}: under fully_shard parameters are float32, float64 or "
                "bfloat16"
            )
        if not parameter.numel():
            raise UserError(f"the parameter {name} has no elements, which fully_shard cannot divide: leave it out")
    if len({parameter.dtype for parameter in model.parameters()}) > 1:
        raise UserError(
            "the model has parameters of several types: under fully_shard all are of one. To compute in a shorter one: "
            "fully_shard(…, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))"
        )


def without_parts(value: Any, keep: bool) -> Any:
    """Return a value to be saved, with plain tensors in place of the parameters under `fully_shard`.

    value: as of `state_dict`: mappings, lists and tuples. keep: False puts an empty tensor in place of each. A collective
    if this worker has parts of them. Raises UserError if the parts are of other workers than the present ones.
    """
    if isinstance(value, DTensor):
        tensor: Any = value.detach()
        whole = tensor._local_tensor if value.device_mesh.size() == 1 else tensor.full_tensor()
        return whole if keep else whole.new_empty(0)
    if isinstance(value, dict):
        found = type(value)() if type(value).__name__ == "OrderedDict" else {}
        found.update((key, without_parts(each, keep)) for key, each in value.items())
        return found
    if type(value) in (list, tuple):
        return type(value)(without_parts(each, keep) for each in value)
    return value


def alone(device: torch.device) -> Any:
    """Return FSDP's description of the mesh of a worker that has all of the parameters."""
    return info(device.type, 0, 1)
