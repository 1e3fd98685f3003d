"""Accumulation of this worker's part of a step's gradient, one micro-batch after the other (design: worker-runtime 3).

The gradient of each micro-batch is put into flat tensors, which are added up in the order of the canonical tree. A virtual worker
that is a right child is added to its sibling at once, so it needs no memory of its own. Without the canonical order, all
micro-batches are added to one gradient.

Gradients are moved while the backward pass computes others: hooks report which ones are complete, and a complete segment of
parameters is put in its place, which frees its memory for the next. In a step's last micro-batch the reducer is notified, too,
and sends the complete part (as DistributedDataParallel does, but in the parameters' order). This is right only if one backward
pass runs for each micro-batch. So in the first step of a process all gradients stay until `optimizer.step()`, and the passes are
counted. A script with several passes continues in that way. The first step also shows which gradient of a segment is complete
last: from then on only its hook is a Python call, until gradients come in another order.

A script that changes a gradient between `backward()` and `optimizer.step()` changes that of one micro-batch, seldom on purpose.
So it is refused, unless the script has set `overlap=False`. Calls of `clip_grad_norm_` change nothing here (`clip_calls`). They
return the norm of the micro-batch's gradient, which no tensor holds any more once a part has been added to another micro-batch's:
so the norm of each part is computed before, in scripts that clip.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...protocol.errors import UserError
from ..digests import digests, mixed, together
from .layout import Gradient, GradientPool, Layout
from .reduction import Node, Reducer, TreeAccumulator, are_siblings

_Grads = list[torch.Tensor | None]
_Versions = list[int | None]
_version = attrgetter("_version")
_grad = attrgetter("grad")
_is_sparse = attrgetter("is_sparse")


class _Mode(enum.Enum):
    """Behaviour of the hooks in the present micro-batch."""

    OFF = "off"
    WATCHING = "watching"  # observe whether gradients may be moved before `optimizer.step()`
    PLACING = "placing"  # move complete gradients
    PROBING = "probing"  # leave them: this gradient is only digested, and not used


class Accumulation:
    """The gradients of the hosted virtual workers. For one thread, and autograd's thread of its backward passes."""

    def __init__(self, layout: Layout, virtual_workers: int, canonical: bool, overlap: bool) -> None:
        self._layout = layout
        self.leaves = virtual_workers  # number of leaves of the canonical tree: the step's micro-batches
        self._canonical = canonical
        self._overlap = overlap
        self._several = False  # whether several backward passes run for one micro-batch
        # Parameters whose gradients have come for the present micro-batch. Any more have come in several passes.
        self._arrived: deque[torch.Tensor] = deque(maxlen=2 * len(layout.parameters) + 1)
        self._stepped_at: int | None = None  # length of `_arrived` when the script stepped one of several optimizers
        self._observed: list[torch.Tensor | int] | None = (
            None  # digests of the present micro-batch's gradient, by segment
        )
        self._watched_steps = 0
        self.keeps_norms = False  # whether the script needs `norms`
        # Prepared for each segment: its place among the parameters, and these.
        self._places = [slice(segment.positions.start, segment.positions.stop) for segment in layout.segments]
        self._members = [layout.parameters[place] for place in self._places]
        self._segment_of = [i for i, segment in enumerate(layout.segments) for _ in segment.positions]
        self._hooks: list[RemovableHandle] = []
        self._learned = False  # whether hooks know which gradient of each segment comes last
        self.forget()

    def forget(self) -> None:
        """Begin a step with fresh memory: an abandoned operation may still use the old memory."""
        self._pool = GradientPool(self._layout)
        self.begin()

    def prepare(self) -> None:
        """Allocate the memory of the first step in advance: its first use takes longer than the sums."""
        self._pool.give_back(self._layout.allocate())

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def begin(self) -> None:
        """Begin a step."""
        self._tree: TreeAccumulator[Gradient] = TreeAccumulator(self.leaves, self._pool.give_back)
        self._reducer: Reducer | None = None  # reducer of a reduction that has begun
        self._mode = _Mode.OFF
        self._result: Gradient | None = None  # the step's gradient, until it is applied
        self._norms: list[torch.Tensor | None] = []  # of the micro-batch's placed gradients, if `keeps_norms`
        self._sealed: tuple[_Grads, _Versions] | None = None  # of the micro-batch, when the script clipped it

    # -- one micro-batch

    def expect(self, virtual_worker: int, weight: float, last: Reducer | None, observed: bool = False) -> None:
        """Begin the micro-batch of `virtual_worker`; its gradient will be multiplied by `weight`.

        last: the reducer if no other micro-batch follows in this step: it gets the parts of the gradient as soon as they are
        complete. observed: keep a digest of the gradient before the multiplication (`digest`).
        """
        if not self._hooks:
            self._hook()
        self._observed = [] if observed else None
        for parameter in self._layout.parameters:
            parameter.grad = None
        self._weight = weight
        self._ends_step = last is not None
        self._target, self._adds = self._place_for(virtual_worker)
        self._versions: _Versions = [None] * len(self._layout.parameters)
        self._norms = []
        self._sealed = None
        self._arrived.clear()
        self._stepped_at = None
        self._placed = 0  # segments
        self._waiting = [*map(len, self._members)]
        if not self._overlap:
            self._mode = _Mode.OFF
        elif self._watched_steps == 0 or self._several:
            self._mode = _Mode.WATCHING
        else:
            self._mode = _Mode.PLACING
            if last is not None:
                self._start(last)

    def probe(self) -> None:
        """Begin a micro-batch of a virtual worker that another worker hosts. Its gradient is not used; `probed` digests it."""
        for parameter in self._layout.parameters:
            parameter.grad = None
        self._observed = []
        self._mode = _Mode.PROBING

    def probed(self) -> int:
        """End the micro-batch of `probe`. Returns its gradient's digest: that of `digest` on the worker that hosts it."""
        for segment in self._layout.segments:
            self._observe(segment.positions)
        self._mode = _Mode.OFF
        for parameter in self._layout.parameters:
            parameter.grad = None
        return self.digest()

    def digest(self) -> int:
        """Return the digest of the gradient of the last observed micro-batch. Waits for the device."""
        found, self._observed = self._observed, None
        assert found is not None, "the micro-batch was not observed"
        return mixed([int(each) for each in found])

    def completed(self) -> None:
        """End a micro-batch, whose gradient is complete by the script's `optimizer.step()`.

        Raises UserError if a part that was already placed has changed in another backward pass, or if the script has changed the
        gradient since the backward pass."""
        watched = self._mode is _Mode.WATCHING
        twice = self._mode is not _Mode.OFF and len({*map(id, self._arrived)}) < len(self._arrived)
        if twice and not watched:
            raise UserError(
                "backward() was called twice for one batch, after steps in which it was called once: pass overlap=False to "
                "prepare()"
            )
        if self._mode is not _Mode.OFF and not self._was_untouched():
            raise UserError(
                "a gradient was changed between backward() and optimizer.step(). There it is that of one micro-batch, not the "
                "step's. To clip the step's gradient: clip_grad_norm_(model.parameters(), 1.0), run.clip(1.0) or prepare(…, "
                "max_grad_norm=1.0). To change it otherwise: prepare(…, before_update=f). If each micro-batch's is meant: "
                "prepare(…, overlap=False)"
            )
        self._check_seal()
        self._several = self._several or twice
        if self._mode is _Mode.PLACING and self._learned and self._placed < len(self._layout.segments):
            self._hook()  # another order than learned: it may change again
        self._mode = _Mode.OFF
        while self._placed < len(self._layout.segments):
            self._put_next()
        if self._reducer is None and self._canonical:
            self._tree.merge()
        if self._ends_step:
            self._watched_steps += 1
            if watched and not self._several:
                self._learn()
        for parameter in self._layout.parameters:
            parameter.grad = None

    def norms(self) -> dict[torch.Tensor, torch.Tensor] | None:
        """Return the 2-norm of each gradient of the micro-batch so far, by parameter.

        None: a part is not known, since `keeps_norms` was set too late."""
        placed = self._placed_parameters if self._mode is _Mode.PLACING else 0
        if placed > len(self._norms):
            return None
        every = [*self._norms[:placed], *_norms(self._layout.parameters[placed:])]
        pairs = zip(self._layout.parameters, every, strict=True)
        return {parameter: norm for parameter, norm in pairs if norm is not None}

    def seal(self) -> None:
        """Note that the script has clipped the micro-batch's gradient, and so takes it for complete.

        Raises UserError, here and in `completed`, if the gradient has changed since the note before."""
        self._check_seal()
        self._sealed = self._grads()

    def _grads(self) -> tuple[_Grads, _Versions]:
        grads = [*map(_grad, self._layout.parameters)]
        return grads, _versions(grads)

    def _check_seal(self) -> None:
        if self._sealed is None:
            return
        (before, old), (now, new) = self._sealed, self._grads()
        self._sealed = None
        if old != new or not all(map(is_, before, now)):
            raise UserError(
                "a gradient was computed or replaced between clip_grad_norm_() and optimizer.step(). That call clips the step's "
                "gradient: call it once, behind the last backward(). If the gradient of each pass or micro-batch is to be "
                "clipped: prepare(…, overlap=False)"
            )

    def part_stepped(self) -> None:
        """Note that the script has stepped one of several optimizers, all of which it steps for each micro-batch.

        Raises UserError if the script computes gradients between those calls."""
        if self._stepped_at is not None and len(self._arrived) > self._stepped_at:
            raise UserError(
                "backward() was called between two optimizers' step(), and the first of them has not been applied by then: with "
                "several optimizers all are applied together. Two updates from one batch, as in a GAN, are two steps: "
                "prepare(…, updates={'discriminator': first, 'generator': second}), and in the loop `if batches.update == "
                "'discriminator':` with one half, `else:` with the other"
            )
        if len(self._arrived) == self._arrived.maxlen:  # one more would not be counted
            self._arrived.popleft()
        self._stepped_at = len(self._arrived)

    def skip(self, virtual_worker: int) -> None:
        """Take a zero gradient for `virtual_worker`, which has no sample in this step."""
        for parameter in self._layout.parameters:
            parameter.grad = None
        self._weight = 1.0
        target, adds = self._place_for(virtual_worker)
        self._put(self._layout.parameters, target.views, adds)
        if self._canonical:
            self._tree.merge()

    # -- the reduction

    def nodes(self) -> list[Node[Gradient]]:
        """Return the sums of the canonical tree that this worker has, from left to right."""
        return self._tree.nodes()

    def reduce(self, reducer: Reducer, beside: Callable[[], None]) -> Gradient:
        """Complete the step's reduction. Returns the mean over all virtual workers, which is valid until the next step begins.

        beside: as in `Reducer.finish`. Raises CommunicatorBroken.
        """
        if self._reducer is None:
            self._start(reducer)
        assert self._result is not None
        reducer.finish(beside)
        for node in self.nodes():
            if node.buffer is not self._result:
                self._pool.give_back(node.buffer)
        self._tree = TreeAccumulator(self.leaves, self._pool.give_back)
        self._reducer = None
        return self._result

    def applied(self) -> None:
        """Free the gradient's memory, after the update or before another evaluation of the loss."""
        if self._result is not None:
            self._pool.give_back(self._result)
            self._result = None

    def _start(self, reducer: Reducer) -> None:
        """Begin the reduction. Its result overwrites the first node, or new memory on a worker without nodes."""
        nodes = self.nodes()
        self._reducer = reducer
        self._result = nodes[0].buffer if nodes else self._pool.take()
        reducer.start(nodes, self._result)

    # -- placing

    def _place_for(self, virtual_worker: int) -> tuple[Gradient, bool]:
        """Return the target for the gradient of `virtual_worker`, and whether it is added to the target's values."""
        nodes = self._tree.nodes()
        leaf = (virtual_worker, virtual_worker + 1)
        if nodes and (not self._canonical or are_siblings((nodes[-1].lo, nodes[-1].hi), leaf, self.leaves)):
            self._tree.extend(virtual_worker + 1)
            return nodes[-1].buffer, True
        target = self._pool.take()
        self._tree.hold(virtual_worker, virtual_worker + 1, target)
        return target, False

    def _put_next(self) -> None:
        """Put the next segment, which is complete, into its target."""
        segment, place = self._layout.segments[self._placed], self._places[self._placed]
        parameters, views = self._members[self._placed], self._target.views[place]
        self._placed += 1
        if self._observed is not None:
            self._observe(segment.positions)
        placing = self._mode is _Mode.PLACING
        if placing and self.keeps_norms:
            self._norms += _norms(parameters)
        self._put(parameters, views, self._adds)
        if placing:
            for parameter, view in zip(parameters, views, strict=True):
                parameter.grad = view
            self._versions[place] = map(_version, views)
        if self._reducer is not None:
            self._reducer.advance(segment.flat, segment.end)

    def _observe(self, positions: range) -> None:
        """Note a digest, computed on the device, of the present gradients of a segment's parameters."""
        assert self._observed is not None
        parts: list[torch.Tensor] = []
        for position in positions:
            grad = self._layout.parameters[position].grad
            self._observed.append(grad is not None)
            if grad is not None and grad.is_sparse:
                grad = grad.coalesce()
                parts += [grad.indices(), grad.values()]
            elif grad is not None:
                parts.append(grad)
        if parts:
            self._observed.append(together(digests(parts)))

    def _put(self, parameters: Sequence[torch.Tensor], views: list[torch.Tensor], adds: bool) -> None:
        """Put the present gradients of these parameters into `views`. In most steps each parameter has one."""
        grads: list[Any] = [*map(_grad, parameters)]
        if _any_none(grads):
            for view, grad in zip(views, grads, strict=True):
                if grad is None:
                    _put_zero(view, adds)
            views = [view for view, grad in zip(views, grads, strict=True) if grad is not None]
            grads = [grad for grad in grads if grad is not None]
            if not grads:
                return
        if any(map(_is_sparse, grads)):
            raise UserError(
                "a parameter has a sparse gradient, as of functional.embedding(…, sparse=True): gradients of all virtual "
                "workers are added up in dense memory. Write sparse=False"
            )
        if self._weight != 1.0:
            grads = list(torch._foreach_mul(grads, self._weight))
        if adds:
            torch._foreach_add_(views, grads)
        else:
            torch._foreach_copy_(views, grads)

    # -- hooks of the backward pass

    def _hook(self, last: Mapping[int, int] | None = None) -> None:
        """Add hooks to the parameters. last: by segment, the position of the parameter that comes last; None: unknown."""
        self.close()
        self._learned = last is not None
        for position, parameter in enumerate(self._layout.parameters):
            if not parameter.requires_grad:  # a loop body has frozen it: no gradient comes in this step
                continue
            segment = self._segment_of[position]
            hook: Callable[[torch.Tensor], None] = partial(self._accumulated, position, segment)
            if last is not None:
                hook = partial(self._last_came, segment) if last[segment] == position else self._arrived.append
            # torch hands the result of the script's own hook to the next one, in place of the parameter
            if getattr(parameter, "_post_accumulate_grad_hooks", None):
                hook = partial(_on_parameter, hook, parameter)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._hooks.append(handle)

    def _learn(self) -> None:
        """Learn the order of gradients from a single backward pass, if it has completed all: the next passes will use it, too."""
        position_of = {id(parameter): position for position, parameter in enumerate(self._layout.parameters)}
        order = [position_of[id(parameter)] for parameter in self._arrived]
        if len(order) == len(position_of):
            self._hook({self._segment_of[position]: position for position in order})

    def _accumulated(self, position: int, segment: int, parameter: torch.Tensor) -> None:
        """Handle autograd's completion of this parameter's gradient in one backward pass."""
        self._arrived.append(parameter)
        mode, versions = self._mode, self._versions
        if mode is _Mode.OFF or mode is _Mode.PROBING:
            return
        again = versions[position] is not None
        if parameter.grad is None:
            raise UserError(
                "a hook of a parameter (register_post_accumulate_grad_hook) has removed its gradient, as an optimizer within the "
                "backward pass does. There it is that of one micro-batch: leave it there, and call optimizer.step()"
            )
        versions[position] = parameter.grad._version
        if mode is _Mode.PLACING and not again:
            self._waiting[segment] -= 1
            self._put_complete()

    def _last_came(self, segment: int, parameter: torch.Tensor) -> None:
        """Do the same as `_accumulated` for the parameter whose gradient came last in its segment so far."""
        self._arrived.append(parameter)
        if self._mode is not _Mode.PLACING or not self._waiting[segment]:
            return
        if not _any_none(map(_grad, self._members[segment])):
            self._waiting[segment] = 0
            self._put_complete()

    def _put_complete(self) -> None:
        waiting = self._waiting
        while self._placed < len(waiting) and waiting[self._placed] == 0:
            self._put_next()

    @property
    def _placed_parameters(self) -> int:
        """Number of parameters whose gradients have been placed."""
        return self._layout.segments[self._placed - 1].positions.stop if self._placed else 0

    def _was_untouched(self) -> bool:
        """Return whether each gradient is as the backward pass left it.

        If gradients have come in another order than learned, only placed ones can be judged."""
        if not self._arrived:  # no backward pass: the script has set `p.grad = g`, by `autograd.grad` or a formula
            grads = [parameter.grad for parameter in self._layout.parameters]
            return all(grad is None or grad._version == 0 for grad in grads)  # above 0: changed in place (clipped)
        known = len(self._versions)
        if self._learned and self._mode is _Mode.PLACING:
            known = self._placed_parameters
            if len(self._arrived) < len(self._versions):
                came = {*map(id, self._arrived)}
                if any(each.grad is not None and id(each) not in came for each in self._layout.parameters):
                    return False  # the script has set this gradient without a backward pass
        return _versions([*map(_grad, self._layout.parameters[:known])]) == self._versions[:known]


def _on_parameter(hook: Callable[[torch.Tensor], None], parameter: torch.Tensor, _: torch.Tensor) -> None:
    hook(parameter)


def _any_none(grads: Iterable[torch.Tensor | None]) -> bool:
    return any(map(is_, grads, repeat(None)))


def _versions(grads: _Grads) -> _Versions:
    if _any_none(grads):
        return [None if grad is None else grad._version for grad in grads]
    return [*map(_version, grads)]


def _put_zero(view: torch.Tensor, adds: bool) -> None:
    if adds:
        view.add_(0.0)  # has an effect: it turns -0.0 into 0.0, as adding another worker's zeros does
    else:
        view.zero_()


def _norms(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the 2-norm of each parameter's present gradient; None: it has none, or a sparse one, which `_put` refuses."""
    grads = [parameter.grad for parameter in parameters]
    dense = [None if grad is None or grad.is_sparse else grad.detach() for grad in grads]
    norms = iter(torch._foreach_norm(found) if (found := [grad for grad in dense if grad is not None]) else ())
    return [None if grad is None else next(norms) for grad in dense]


def same(left: Sequence[torch.nn.Parameter], right: Sequence[torch.nn.Parameter]) -> bool:
    """Return whether these are the same parameters, in the same order."""
    return len(left) == len(right) and all(map(is_, left, right))
