"""Tensors of all virtual workers in one loop body (`run.gather`): negatives of the whole global batch, as in CLIP and
SimCLR.

The loss L_v of virtual worker v depends on embeddings e_u of all virtual workers u, and a step's gradient is that of
the mean of all L_v. Bodies run one after the other, so no body can wait for the embeddings of the next. As in gradient
caching (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup") a step's bodies run
several times instead, on the same batches, with the same random numbers:

1. In the first *pass* each body gives e_v. The result of `gather` has the right shape and other contents, and nothing that
   the body computes counts.
2. The workers exchange all e_u. In the second pass `gather` returns them, and the gradient of L_v by each e_u is kept.
   Nothing else counts.
3. The workers add up these gradients over v, in the order of the canonical tree (`gradients.reduction`). The third pass is
   the step's own. In it the gradient that flows from `gather` into the graph of e_v is that sum.

So a step needs memory for the activations of one micro-batch only, and each number is a function of the state, the
seed, the step and the virtual worker: the bits are the same for every number of workers. If no call needs the gradients
of other virtual workers (`differentiable=False`), the second pass is left out.

A body that computes another e_v in a later pass, or another gradient, keeps a value that changes from pass to pass. The
resulting error says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..protocol.errors import UserError
from .communication.communicator import Communicator
from .gradients.reduction import TreeAccumulator
from .inband import exchange
from .plain import inline, pack, restored, unpack

GIVES, LOSES, COUNTS = range(3)  # the passes
CHANGES = (
    "run.gather(): {what} in step {step} is another one when the loop body runs again for virtual worker {virtual_worker}. With "
    "prepare(…, gathers=True) the body runs three times for each step, so it must not go on from what it has left itself: a "
    "counter, a generator of its own, what another run.gather() of the same body has returned"
)


@dataclass
class _Given:
    """The argument of one call of `gather` in a body."""

    tensor: torch.Tensor
    differentiable: bool

    def same_kind(self, other: _Given) -> bool:
        one, two = self.tensor, other.tensor
        return (one.shape, one.dtype, self.differentiable) == (two.shape, two.dtype, other.differentiable)


class Alone:
    """The passes of a step whose bodies gather nothing, or are alone in it: there is one, which counts."""

    refuses = ""  # why bodies need the loop over batches
    number = COUNTS

    def begin(self, step: int) -> None:
        """Begin a step, or begin it again."""

    def begin_body(self) -> None:
        """Begin the body of a virtual worker."""

    def end_body(self, virtual_worker: int) -> None:
        """End a body at its `optimizer.step()`.

        Raises UserError if its gradient is incomplete or has changed since the second pass.
        """

    def gather(self, virtual_worker: int, tensor: torch.Tensor, differentiable: bool) -> torch.Tensor:
        """Return this tensor of all virtual workers: [N * B, ...].

        Raises UserError if the body behaves differently than in a pass before.
        """
        return tensor

    def exchange(self, communicator: Communicator) -> None:
        """End a pass: exchange its results with the other workers, and begin the next.

        A collective, also for joining workers.

        Raises CommunicatorBroken; UserError on every worker alike.
        """


class Gathering(Alone):
    """The gathered tensors of a step. For the training thread."""

    refuses = "prepare() was given gathers=True"

    def __init__(self, virtual_workers: int, device: torch.device) -> None:
        self._n = virtual_workers
        self._device = device
        self.begin(-1)

    def begin(self, step: int) -> None:
        self._step = step
        self._given: dict[int, list[_Given]] = {}  # arguments of this worker's bodies, by virtual worker
        self._all: list[list[_Given]] = []  # arguments of all bodies, by call and virtual worker
        self._sums: list[torch.Tensor | None] = []  # by call: the gradient of the sum of all losses
        self._leaves: dict[int, list[torch.Tensor | None]] = {}  # results of this worker's bodies in the second pass
        # gradients of the present body's calls, one for each backward pass
        self._got: list[list[torch.Tensor] | None] = []
        self._calls = 0  # number of calls in the present body
        self.number = GIVES

    def begin_body(self) -> None:
        self._calls, self._got = 0, []

    def gather(self, virtual_worker: int, tensor: torch.Tensor, differentiable: bool) -> torch.Tensor:
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
            raise UserError("run.gather() takes a tensor with a row for each sample")
        call, self._calls = self._calls, self._calls + 1
        given = _Given(tensor.detach(), differentiable and tensor.dtype.is_floating_point)
        if self.number == GIVES:
            self._given.setdefault(virtual_worker, []).append(_Given(given.tensor.clone(), given.differentiable))
            return torch.cat([tensor] * self._n)
        if call >= len(self._all):
            raise self._changes("the number of its calls", virtual_worker)
        rows = self._all[call]
        if not given.same_kind(rows[virtual_worker]) or not _same_bits(given.tensor, rows[virtual_worker].tensor):
            raise self._changes("the tensor that it is given", virtual_worker)
        whole = torch.cat([each.tensor for each in rows])
        if not given.differentiable:
            own = [each.tensor if u != virtual_worker else tensor for u, each in enumerate(rows)]
            self._note(virtual_worker, None)
            return torch.cat(own)
        if self.number == LOSES:
            self._note(virtual_worker, whole.requires_grad_())
            return whole
        total = self._sums[call]
        assert total is not None
        size = len(tensor)
        arrived: list[torch.Tensor] = []
        self._got.append(arrived if tensor.requires_grad else None)
        return _Gathered.apply(tensor, whole, total[virtual_worker * size :][:size], arrived)  # type: ignore[no-any-return,no-untyped-call]

    def _note(self, virtual_worker: int, leaf: torch.Tensor | None) -> None:
        if self.number == LOSES:
            self._leaves.setdefault(virtual_worker, []).append(leaf)
        else:
            self._got.append(None)

    def end_body(self, virtual_worker: int) -> None:
        if self.number == GIVES:
            return
        if self._calls != len(self._all):
            raise self._changes("the number of its calls", virtual_worker)
        if self.number == LOSES:
            return
        for call, arrived in enumerate(self._got):
            if arrived is None:
                continue
            total = self._sums[call]
            if not arrived and total is not None and bool(total.any()):
                raise UserError(
                    f"run.gather(): the loss of virtual worker {virtual_worker} in step {self._step} does not depend on what it "
                    "has returned, and those of others do: use it in every loop body alike"
                )
            leaf = self._leaves[virtual_worker][call] if virtual_worker in self._leaves else None
            if arrived and leaf is not None:
                first = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                if not _same_bits(_added(arrived), first):
                    raise self._changes("the gradient of its loss", virtual_worker)

    def _changes(self, what: str, virtual_worker: int) -> UserError:
        return UserError(CHANGES.format(what=what, step=self._step, virtual_worker=virtual_worker))

    # -- between two passes

    def exchange(self, communicator: Communicator) -> None:
        if self.number == GIVES:
            self._exchange_given(communicator)
            self.number = LOSES if any(rows[0].differentiable for rows in self._all) else COUNTS
        else:
            self._sums = [self._sum(communicator, call) for call in range(len(self._all))]
            self.number = COUNTS

    def _exchange_given(self, communicator: Communicator) -> None:
        own = {
            virtual_worker: [[each.tensor, each.differentiable] for each in given]
            for virtual_worker, given in self._given.items()
        }
        found: dict[int, list[_Given]] = {}
        for payload in self._told(communicator, own):
            for virtual_worker, given in payload.items():
                found[virtual_worker] = [_Given(tensor, differentiable) for tensor, differentiable in given]
        self._given = {}
        if not found:
            return
        first = found[min(found)]
        for virtual_worker in range(self._n):
            given = found.get(virtual_worker, [])
            alike = len(given) == len(first) and all(map(_Given.same_kind, given, first))
            if not alike:
                raise UserError(
                    f"run.gather(): virtual worker {min(found)} has given {_described(first)} in step {self._step}, and virtual "
                    f"worker {virtual_worker} {_described(given)}: every loop body has to give tensors of the same shapes. In an "
                    "epoch's last step batches are smaller, unless prepare() is given drop_last=True"
                )
        self._all = [[found[virtual_worker][call] for virtual_worker in range(self._n)] for call in range(len(first))]

    def _sum(self, communicator: Communicator, call: int) -> torch.Tensor | None:
        if not self._all[call][0].differentiable:
            return None
        kind = self._all[call][0].tensor.dtype
        wide = torch.float32 if kind.itemsize < 4 else kind
        tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(self._n)
        for virtual_worker in sorted(self._leaves):
            leaf = self._leaves[virtual_worker][call]
            assert leaf is not None
            gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            tree.push(virtual_worker, gradient.to(wide, copy=True))
        own = {node.lo: [node.hi, node.buffer] for node in tree.nodes()}
        nodes = {lo: node for payload in self._told(communicator, own) for lo, node in payload.items()}
        whole: TreeAccumulator[torch.Tensor] = TreeAccumulator(self._n)
        for lo in sorted(nodes):
            hi, buffer = nodes[lo]
            whole.push_node(lo, hi, buffer)
        (root,) = whole.nodes()
        return root.buffer.to(kind)

    def _told(self, communicator: Communicator, own: dict[int, Any]) -> Iterator[dict[int, Any]]:
        """Yield the values of each worker, with tensors on this worker's device."""

        def tensor(content: Any, present: Any) -> torch.Tensor:
            return restored(content).to(self._device)

        for payload in exchange(communicator, {"gathered": pack(own, "what run.gather() was given", inline)}):
            yield unpack(payload["gathered"], tensor)


class _Gathered(torch.autograd.Function):
    """The tensors of all virtual workers; its backward pass returns the gradient of all losses by this virtual worker's
    tensor.
    """

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, whole: torch.Tensor, total: torch.Tensor, arrived: list[torch.Tensor]
    ) -> torch.Tensor:
        """own: tensor of this virtual worker, [B, ...]. whole: of all, [N * B, ...]. total: the gradient of all losses
        by `own`. arrived: collects each gradient by `whole`.
        """
        ctx.total, ctx.arrived = total, arrived
        return whole.view_as(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the whole gradient in the first of several backward passes, and zeros in later ones."""
        ctx.arrived.append(gradient.clone())
        return ctx.total if len(ctx.arrived) == 1 else torch.zeros_like(ctx.total), None, None, None


def _added(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the gradients, added in the order in which autograd accumulates them."""
    total = gradients[0].clone()
    for each in gradients[1:]:
        total += each
    return total


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    flats = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*flats)


def _described(given: Sequence[_Given]) -> str:
    shapes = ", ".join(f"{[*each.tensor.shape]}" for each in given)
    return f"tensors of the shapes {shapes}" if given else "none"
