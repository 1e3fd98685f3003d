"""The gradient of a step whose parameters are divided by `fully_shard`, with the bits of one worker that has all of
them.

All workers run their loop bodies together, since each layer is gathered from all of them. In round j the worker of rank
r runs the body of virtual worker j W + r (W: number of workers), so a round has neighbouring leaves of the canonical
tree (`gradients. reduction`). Where no such virtual worker has samples, a worker runs a body on a batch of virtual
worker 0, without a leaf.

FSDP calls `_Gather` to gather a layer, and `_Reduce` with a body's gradient of it. There each worker receives its rows
of all workers' gradients, and adds them to its tree. So of a layer's gradient a worker keeps log2 N + 1 parts of 1/W
each. With W = 1 FSDP calls no collective, and `_Taken` takes the gradient.

Bodies that use layers in another order than on other workers would exchange wrong data, or wait for ever. Therefore the
workers compare what each of them is about to do, before each collective and behind each body.

A loop body cannot be interrupted and continued. If a worker is lost in it, its rows are lost anyway, and this process
ends.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from ...protocol.errors import UserError
from ..communication.communicator import Communicator, CommunicatorBroken
from ..gradients.reduction import TreeAccumulator, are_siblings
from .fsdp import SEEN, Layer, Parameter, hide

UNLIKE = (
    "loop bodies of one step have used the layers under fully_shard in different orders, or different ones: each layer "
    "is gathered from all workers, so all bodies have to run the same layers, with one backward() each"
)


class Rounds:
    """The loop bodies of a step, and the trees of their gradients.

    For one thread, and autograd's of its backward passes.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        reset: Callable[[], None],
        leaves: int,
        weight: Callable[[int], float],
        has_samples: Callable[[int], bool],
        lost: Callable[[str], NoReturn],
    ) -> None:
        """reset: ends FSDP's work for a body. leaves: number of virtual workers. weight, has_samples: of a virtual
        worker in the step in progress. lost: ends this process for a reason."""
        self.layers = list(layers)
        self._reset = reset
        self.leaves = leaves
        self.trained: list[Parameter] = [each for layer in layers for each in layer.trained]
        self._weight = weight
        self._has_samples = has_samples
        self._lost = lost
        self._communicator = Communicator.alone()
        self._shows = False
        self.in_body = False
        for layer in layers:
            layer.take_over(_Gather(self, layer), _Reduce(self, layer), _Taken(self, layer))
            for each in layer.trained:
                each.tensor.register_post_accumulate_grad_hook(hide)  # type: ignore[no-untyped-call]
        self.begin()

    def enter(self, communicator: Communicator) -> None:
        """Run the next steps among other workers."""
        self._communicator = communicator

    # -- a step

    def begin(self, shows: bool = False) -> None:
        """Begin a step. shows: its bodies run on this worker alone, and their results do not count."""
        self._shows = shows
        self._round = -1
        self._trees: list[TreeAccumulator[torch.Tensor]] = [TreeAccumulator(self.leaves) for _ in self.layers]
        self.in_body = False

    def count(self) -> int:
        """Return the number of rounds of the step in progress, equal on all workers."""
        size = self._communicator.size
        last = max(each for each in range(self.leaves) if self._has_samples(each))
        return last // size + 1

    def body_begins(self) -> None:
        """Begin the next body of the step."""
        self._round += 1
        self._reduced: dict[
            int, tuple[torch.Tensor, int]
        ] = {}  # by layer: FSDP's gradient of this body, and its version
        for each in self.trained:
            each.tensor.grad = None
        self._versions = [each.version for layer in self.layers for each in layer.parameters]
        self._gathered = [each.gathered_version for layer in self.layers for each in layer.parameters]
        self.in_body = True

    def body_ends(self) -> None:
        """End a body.

        Raises UserError if it has changed a gradient or a parameter, or has done other work than other bodies.
        """
        self.in_body = False
        for layer in self.layers:
            layer.check()
        self._reset()
        if not self._shows:
            self._check_untouched()
            self._compare(f"end of {sorted(self._reduced)}")
            for number, layer in enumerate(self.layers):
                if number not in self._reduced:
                    self._add(layer, [None] * self._communicator.size)
        for each in self.trained:
            each.tensor.grad = None

    def _check_untouched(self) -> None:
        every = [each for layer in self.layers for each in layer.parameters]
        gathered = [each.gathered_version for each in every]
        if self._versions != [each.version for each in every] or self._gathered != gathered:
            raise UserError(
                "a loop body changed a parameter itself, perhaps in the forward pass (nn.Embedding's max_norm does): the "
                "body runs once for each virtual worker, and under fully_shard each worker has a part of the parameter. "
                "What the forward pass changes is to be a buffer"
            )
        known = set()
        for output, version in self._reduced.values():
            if output._version != version:
                raise UserError(SEEN)
            known.add(output.untyped_storage().data_ptr())
        for each in self.trained:
            grad: Any = each.tensor.grad
            own = getattr(grad, "_local_tensor", None)
            if grad is not None and (
                own is None or grad._version != 0 or own.untyped_storage().data_ptr() not in known
            ):
                raise UserError(SEEN)

    def total(self) -> list[torch.Tensor]:
        """Return this worker's rows of the step's gradient, the mean over all virtual workers, for each trained
        parameter.
        """
        found: list[torch.Tensor] = []
        for layer, tree in zip(self.layers, self._trees, strict=True):
            done = (self._round + 1) * self._communicator.size
            for leaf in range(done, self.leaves):  # without samples, in a short step
                tree.push(leaf, self._zeros(layer))
            (root,) = tree.nodes()
            assert (root.lo, root.hi) == (0, self.leaves), (
                f"the gradient of [{root.lo}, {root.hi}) is not that of a step"
            )
            flat = root.buffer
            if self.leaves > 1:
                flat.div_(self.leaves)
            offset = 0
            for each in layer.trained:
                found.append(flat[offset : offset + each.local.numel()])
                offset += each.own.padded_sharded_param_size.numel()
        return found

    # -- FSDP's collectives

    def gather(self, layer: Layer, output: torch.Tensor, own: torch.Tensor) -> None:
        """Gather a layer's parameters in `output`."""
        if self._shows:
            output.zero_()
            return
        self._compare(f"gather {layer.number}")
        try:
            self._communicator.wait(self._communicator.all_gather(output, own))
        except CommunicatorBroken as error:
            self._end(error)

    def reduce(self, layer: Layer, gradient: torch.Tensor) -> None:
        """Add all workers' gradients of a layer to the trees. gradient: this worker's, one row for each worker."""
        if self._shows:
            return
        self._take_note(layer)
        self._compare(f"reduce {layer.number}")
        size = self._communicator.size
        rows = torch.empty_like(gradient).view(size, -1)
        try:
            work = self._communicator.all_to_all(rows, gradient.view(size, -1), [1] * size, [1] * size)
            self._communicator.wait(work)
        except CommunicatorBroken as error:
            self._end(error)
        self._add(layer, list(rows))

    def take(self, layer: Layer, gradient: torch.Tensor) -> None:
        """Take the gradient of a worker that is alone; hide the result of FSDP's reduction."""
        if not self._shows and self._communicator.size == 1:
            self._take_note(layer)
            self._add(layer, [gradient])
        gradient.fill_(torch.nan)  # a script that reads it finds no number that depends on the workers
        self._reduced[layer.number] = gradient, gradient._version

    def _take_note(self, layer: Layer) -> None:
        if layer.number in self._reduced:
            raise UserError(
                "a layer under fully_shard was used twice in one loop body, or backward() was called twice: its "
                "gradient would be added up in another order than without fully_shard. Call fully_shard on the module "
                "that calls the layer instead"
            )

    def _add(self, layer: Layer, leaves: Sequence[torch.Tensor | None]) -> None:
        """Add the leaves of the present round, by rank, to a layer's tree. None: zeros."""
        tree = self._trees[layer.number]
        for rank, gradient in enumerate(leaves):
            leaf = self._round * len(leaves) + rank
            if leaf >= self.leaves:
                return
            if gradient is None or not self._has_samples(leaf):
                tree.push(leaf, self._zeros(layer))
                continue
            weight = self._weight(leaf)
            if weight != 1.0:
                gradient = gradient * weight
            nodes = tree.nodes()
            adds = nodes and are_siblings((nodes[-1].lo, nodes[-1].hi), (leaf, leaf + 1), self.leaves)
            tree.push(leaf, gradient if adds or weight != 1.0 else gradient.clone())

    def _zeros(self, layer: Layer) -> torch.Tensor:
        return layer.trained[0].local.new_zeros(layer.reduced_elements) if layer.trained else torch.zeros(0)

    def _compare(self, what: str) -> None:
        """Compare the collective that is about to begin with other workers'. Raises UserError on all workers alike."""
        if self._communicator.size == 1:
            return
        number = zlib.crc32(f"{self._round} {what}".encode())
        both = torch.tensor([number, -number], dtype=torch.int64)
        try:
            self._communicator.wait(self._communicator.all_reduce_max(both))
        except CommunicatorBroken as error:
            self._end(error)
        if int(both[0]) != -int(both[1]):
            raise UserError(UNLIKE)

    def _end(self, error: CommunicatorBroken) -> NoReturn:
        self._lost(f"the parameters' parts were lost in a loop body ({error})")


class _Memory:
    """Allocates what FSDP needs for a collective."""

    def __init__(self, rounds: Rounds, layer: Layer) -> None:
        self.rounds = rounds
        self.layer = layer

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Memory):
    """In place of FSDP's all-gather."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        self.rounds.gather(self.layer, output_tensor, input_tensor)


class _Reduce(_Memory):
    """In place of FSDP's reduce-scatter, which is not called where a worker is alone."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        self.rounds.reduce(self.layer, input_tensor)


class _Taken:
    """Called with the result of FSDP's reduction, in place of the all-reduce that hybrid sharding adds."""

    def __init__(self, rounds: Rounds, layer: Layer) -> None:
        self._rounds = rounds
        self._layer = layer

    def __call__(self, gradient: torch.Tensor) -> None:
        self._rounds.take(self._layer, gradient)
