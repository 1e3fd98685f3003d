"""Calls of `torch.nn.utils.clip_grad_norm_` in loop bodies, read as clipping of the step's gradient (`clipping`).

On one GPU such a call clips the gradient of the whole batch. A loop body has the gradient of one micro-batch, and the sum is
complete after the last body. So the call notes its limit for the update, as `Run.clip` does, and changes nothing. Its result is
the norm of the micro-batch's gradient: scripts log it, or test whether it is finite. It is the same for any number of workers.
With `error_if_nonfinite`, the error is raised in the update, for the norm of the sum.

A call is read in this way if it means all gradients that the step applies, in the 2-norm. Otherwise it is refused, since its
effect on the sum is not known. Elsewhere (outside loop bodies, for parameters that the step does not train, with `overlap=False`)
torch's function runs as ever.

**How calls are noticed.** A script may have imported the function by name before it joined the job, so another value under
`torch.nn.utils.clip_grad_norm_` would come too late. In torch 2.4 and later the function consists of a wrapper, made by a
decorator, which calls the inner function out of its closure. That one cell gets another function: the wrapper stays the same
object, under whatever names it is known. The function's code, its private helpers and its signature, which have changed between
versions, do not matter. Without such a cell nothing is replaced, and a call is refused, since it changes a gradient.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch

from ...protocol.errors import UserError
from ..source.own_code import directories, is_own_file, own_modules
from .lanes import Lanes

CALL = "clip_grad_norm_()"
IN_UPDATE = "In a function it sees the step's gradient: prepare(…, before_update=f)"


class ClipCalls:
    """The calls by loop bodies of one job."""

    def __init__(
        self,
        lanes: Lanes,
        scaler: torch.amp.GradScaler | None,
        names: Callable[[], Sequence[tuple[str, torch.Tensor]]],
        virtual_worker: Callable[[], int | None],
        stepped: Callable[[], Sequence[int]],
        clip: Callable[[int, float, str, bool], None],
    ) -> None:
        """names: of parameters. virtual_worker: whose body runs, and has yet to step its optimizer; None: no body's. stepped:
        positions of the optimizers of the step. clip: as `Stepping.clip`."""
        self._lanes = lanes
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._names = names
        self._virtual_worker = virtual_worker
        self._optimizers = stepped
        self._clip = clip
        self.refuses = ""  # why calls are refused; "": they are not
        self._unscaled: set[int] = set()  # positions of optimizers, in the present body
        self.clips = False  # whether the present body has clipped the step's gradient

    def begin(self, frame: FrameType | None) -> None:
        """Read calls from now on, when the loop is about to begin. frame: of the script."""
        _notice()
        _JOBS.add(self)
        if _is_named_in(frame):
            self._lanes.keep_norms()

    def begin_body(self) -> None:
        """Begin a loop body."""
        self._unscaled.clear()
        self.clips = False

    @property
    def in_body(self) -> bool:
        """Whether a body runs that has yet to step its optimizer."""
        return self._virtual_worker() is not None

    def unscaled(self, optimizer: int) -> None:
        """Note a call of `scaler.unscale_` for this optimizer. Raises UserError outside a loop body."""
        if not self.in_body:
            raise UserError(f"scaler.unscale_() was called outside the loop body: {_UNSCALED}")
        self._unscaled.add(optimizer)

    def step(self, optimizer: int) -> None:
        """End the body's work for this optimizer. Raises UserError if it was unscaled, and for no clipping."""
        if optimizer in self._unscaled and not self.clips:
            raise UserError(f"scaler.unscale_() was called without {CALL} behind it: {_UNSCALED}")

    def read(self, given: Sequence[Any], max_norm: float, norm_type: Any, fails: bool) -> torch.Tensor | None:
        """Read a call with these parameters. Returns its result; None: the call is not for the gradient of a step.

        fails: whether a norm that is not finite is an error. Raises UserError if the call means something else."""
        virtual_worker, lane = self._virtual_worker(), self._lanes.present
        if self.refuses and virtual_worker is not None:
            raise UserError(self.refuses)
        ours = {id(parameter) for parameter in lane.parameters}
        if virtual_worker is None or ours.isdisjoint(map(id, given)):
            return None
        if float(norm_type) != 2.0:
            raise UserError(f"{CALL} was called with norm_type={norm_type!r}: a loop body has the 2-norm. {IN_UPDATE}")
        if self._scaler is not None and not self._unscaled.issuperset(self._optimizers()):
            raise UserError(
                f"{CALL} was called without scaler.unscale_(optimizer) before it: the gradient there is that of a scaled loss"
            )
        self._lanes.keep_norms()
        norms = lane.accumulation.norms()
        if norms is None:
            raise UserError(
                f"{CALL} was called for the first time after steps without it, and not by the script's own code. Its result, the "
                "norm of the micro-batch's gradient, is not known there: write run.clip(1.0), or prepare(…, max_grad_norm=1.0)"
            )
        self._check_parts(given, ours, norms)
        self._clip(virtual_worker, max_norm, CALL, fails)
        if virtual_worker >= 0:
            lane.accumulation.seal()
        return self._norm([norms[each] for each in given if each in norms])

    def _check_parts(self, given: Sequence[Any], ours: set[int], norms: dict[torch.Tensor, torch.Tensor]) -> None:
        """Raise UserError unless these are all parameters with gradients, each once."""
        known = {id(parameter) for parameter in given}
        missing = [parameter for parameter in norms if id(parameter) not in known]
        if missing:
            raise UserError(
                f"{CALL} was called for a part of the parameters, without {self._name(missing[0])}: a loop body clips the "
                f"gradient of all that are trained together. {IN_UPDATE}. Those not to be trained: requires_grad_(False)"
            )
        other = [each for each in given if id(each) not in ours and each.grad is not None]
        if other:
            raise UserError(
                f"{CALL} was called with {self._name(other[0])}, which has a gradient, and which the step does not train: the "
                "norm would contain it. Leave it out, or freeze it: requires_grad_(False)"
            )
        if sum(each in norms for each in given) > len(norms):
            raise UserError(
                f"{CALL} was called with a parameter twice, and the norm would contain it twice. {IN_UPDATE}"
            )

    def _name(self, parameter: torch.Tensor) -> str:
        return next((name for name, each in self._names() if each is parameter), "another parameter")

    def _norm(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        if not norms:
            return torch.tensor(0.0)
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]))
        return norm if self._scaler is None else norm / self._scaler.scale(torch.ones_like(norm))


_UNSCALED = (
    "leave it out. A step's gradient is unscaled before it is clipped (run.clip(1.0), prepare(…, max_grad_norm=1.0)) and before "
    "before_update= sees it"
)
_JOBS: weakref.WeakSet[ClipCalls] = weakref.WeakSet()  # jobs of this process with a loop that has begun


def _notice() -> None:
    """Put `_called` into the closure of torch's function, once for the process."""
    function: Any = torch.nn.utils.clip_grad.clip_grad_norm_
    inner = getattr(function, "__wrapped__", None)
    for cell in getattr(function, "__closure__", None) or ():
        if inner is not None and cell.cell_contents is inner:
            cell.cell_contents = partial(_called, inner)


def _called(
    inner: Callable[..., torch.Tensor],
    parameters: Any,
    max_norm: float,
    norm_type: Any = 2.0,
    error_if_nonfinite: bool = False,
    *others: Any,
    **named: Any,
) -> torch.Tensor:
    """Handle a call of torch's function. inner: the function without what is done here."""
    jobs = [] if torch.compiler.is_compiling() else [each for each in _JOBS if each.in_body]
    if jobs:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    for job in jobs:
        if (norm := job.read(parameters, max_norm, norm_type, error_if_nonfinite)) is not None:
            return norm
    return inner(parameters, max_norm, norm_type, error_if_nonfinite, *others, **named)


def _is_named_in(frame: FrameType | None) -> bool:
    """Return whether the script's own code contains the function's name. frame: within the script."""
    own = directories()
    files = {variables.get("__file__") for variables in own_modules(own, {}).values()}
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    texts = (linecache.getlines(file) for file in files if isinstance(file, str) and is_own_file(file, own))
    return any("clip_grad_norm" in line for text in texts for line in text)
