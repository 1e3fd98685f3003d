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
workers compare what each of them is about to do, before each collective and behind each body (`meet`).

The model may also be called without a gradient, in a body and behind its `optimizer.step()` (an evaluation), and a
parameter may be gathered (`DTensor.full_tensor()`): workers are at the same place of their scripts there.

A loop body cannot be interrupted and continued. If a worker is lost in it, its rows are lost anyway, and this process
ends.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import torch

from ...protocol.errors import UserError
from ..communication.communicator import Communicator, CommunicatorBroken
from ..gradients.reduction import TreeAccumulator, are_siblings
from ..inband import exchange
from ..source.own_code import loop_frame
from ..source.save_calls import is_for_leader
from .fsdp import SEEN, Hide, Layer, Parameter

UNLIKE = (
    "loop bodies of one step have used the layers under fully_shard in different orders, or different ones: each layer "
    "is gathered from all workers, so all bodies have to run the same layers, with one backward() each"
)
ONE_ALONE = (
    "{line} uses the model under fully_shard on one worker alone, under a condition on its rank: each layer is gathered "
    "from all workers, which have to make the same call. Make it on all of them (run.save writes once for the job, and "
    "run.log prints once), or in a function of run.every or between two epochs, where each worker has the whole model"
)
TWICE = (
    "a layer under fully_shard was used twice in one loop body, or backward() was called twice: its gradient would be "
    "added up in another order than without fully_shard. For several backward() of one batch, call "
    "model.set_requires_gradient_sync(False) before all but the last one, and model.set_requires_gradient_sync(True) "
    "before the last. A model that is called twice for one loss is to be called once, with both inputs (torch.cat); for a "
    "layer that is used twice, call fully_shard on the module that calls the layer instead"
)
OUTSIDE = (
    "backward() was called for the model under fully_shard outside a loop body, or behind its optimizer.step(): no worker "
    "has the gradient there. Evaluate under torch.no_grad()"
)
NOTHING_LEFT = (
    "a backward pass through the model has left no gradient in any of its parameters, as that of torch.autograd.grad() "
    "does: under fully_shard a loop body calls loss.backward() alone, which gives the parameters their gradients"
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
        self._hide = Hide()
        for layer in layers:
            layer.take_over(_Gather(self, layer), _Reduce(self, layer), _Taken(self, layer), self._backward_comes)
            for each in layer.trained:
                each.tensor.register_post_accumulate_grad_hook(self._hide)  # type: ignore[no-untyped-call]
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
        self.in_step = False  # the script is in a body or behind it, and makes the same calls as on other workers

    def count(self) -> int:
        """Return the number of rounds of the step in progress, equal on all workers."""
        size = self._communicator.size
        last = max(each for each in range(self.leaves) if self._has_samples(each))
        return last // size + 1

    def body_begins(self) -> None:
        """Begin the next body of the step."""
        self._reset()  # behind the body before, the script may have called the model
        self._round += 1
        self._reduced: set[int] = set()  # numbers of the layers with a gradient of this body
        self._has_gradient = False  # of some parameter
        self._hide.begin()
        for each in self.trained:
            each.tensor.grad = None
        self._versions = [each.version for layer in self.layers for each in layer.parameters]
        self._gathered = [each.gathered_version for layer in self.layers for each in layer.parameters]
        self.in_body = self.in_step = True

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
            self.meet(f"the end of a body with gradients of {sorted(self._reduced)}")
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
        if self._reduced and not self._has_gradient:
            raise UserError(NOTHING_LEFT)
        if not all(self._hide.has_left(each.tensor) for each in self.trained):
            raise UserError(SEEN)

    def step_failed(self) -> None:
        """Take note that the step is not applied: what the script computes behind it does not count."""
        self._shows = True

    def step_ends(self) -> None:
        """End the step, when the script asks for the next batch."""
        self.in_step = False
        self._reset()

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
            flat = root.buffer.to(layer.parameters[0].tensor.dtype)
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
        self.meet(f"a use of layer {layer.number}")
        self._gather_all(output, own)

    def gather_tensor(self, output: torch.Tensor, own: torch.Tensor) -> None:
        """Gather a parameter for the script, which calls `DTensor.full_tensor()`. Raises UserError."""
        if self._shows:
            output.zero_()
            return
        if not self.in_step or output.numel() != own.numel() * self._communicator.size:
            raise UserError(
                "a copy of parameters under fully_shard that was made in a loop body was read behind it, and each worker has "
                "a part of it: read it in the body (full_tensor()), or read the model itself between two steps"
            )
        self.meet(f"full_tensor() of {output.numel()} elements")
        self._gather_all(output, own)

    def _gather_all(self, output: torch.Tensor, own: torch.Tensor) -> None:
        try:
            self._communicator.wait(self._communicator.all_gather(output, own))
        except CommunicatorBroken as error:
            self._end(error)

    def _backward_comes(self, layer: Layer, reduce: Callable[[], None]) -> None:
        """Handle FSDP's work behind a layer's backward pass. reduce: this work."""
        self._has_gradient |= layer.has_gradient
        layer.fill_up()
        try:
            reduce()
        finally:
            self._hide.expects = False

    def reduce(self, layer: Layer, gradient: torch.Tensor) -> None:
        """Add all workers' gradients of a layer to the trees. gradient: this worker's, one row for each worker."""
        if self._shows:
            return
        self._take_note(layer)
        self.meet(f"a gradient of layer {layer.number}")
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
        self._reduced.add(layer.number)
        self._hide.expects = True

    def _take_note(self, layer: Layer) -> None:
        if not self.in_body:
            raise UserError(OUTSIDE)
        if layer.number in self._reduced:
            raise UserError(TWICE if self._has_gradient else NOTHING_LEFT)

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
        return torch.zeros(layer.reduced_elements, dtype=layer.reduced_type, device=layer.parameters[0].local.device)

    def meet(self, what: str) -> None:
        """Compare what this worker is about to do with other workers, before a collective. Raises UserError on all
        workers alike.
        """
        if self._communicator.size == 1 or self._shows:
            return
        number = zlib.crc32(f"{self._round} {what}".encode())
        both = torch.tensor([number, -number], dtype=torch.int64)
        try:
            self._communicator.wait(self._communicator.all_reduce_max(both))
            if int(both[0]) != -int(both[1]):
                frame = sys._getframe(1)
                own = {"what": what, "line": _line(frame), "alone": is_for_leader(frame)}
                raise UserError(_difference(exchange(self._communicator, own)))
        except CommunicatorBroken as error:
            self._end(error)

    def _end(self, error: CommunicatorBroken) -> NoReturn:
        self._lost(f"the parameters' parts were lost in a loop body ({error})")


def _difference(told: Sequence[dict[str, Any]]) -> str:
    """Return the sentence for workers that are about to do different things. told: by each of them."""
    alone = [each["line"] for each in told if each["alone"]]
    if alone and len(alone) < len(told):
        return ONE_ALONE.format(line=alone[0])
    first = told[0]
    other = next((each for each in told if each["what"] != first["what"]), first)
    return (
        f"{UNLIKE} ({first['line']} comes to {first['what']}, and on another worker {other['line']} to {other['what']})"
    )


def _line(frame: FrameType) -> str:
    """Return the line of the script's own code in which it is."""
    own = loop_frame(frame)
    return f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno}" if own is not None else "the script"


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
