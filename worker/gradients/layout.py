"""Memory layout of gradients: a few flat tensors, cut into the parameters' shapes (EasyScale 3.3: buckets by parameter
order).

The trained parameters are taken in reverse, which is about the order in which a backward pass completes them, and put
into one flat tensor for each kind (dtype and device). The order follows from the model alone, never from the order of
arrival, so it is the same on every worker and after every change of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...protocol.errors import UserError

SEGMENT_ELEMENTS = 1 << 18  # elements at which a segment of parameters ends


@dataclass(frozen=True)
class Segment:
    """Consecutive parameters of one flat tensor, with gradients that are copied there together."""

    flat: int
    positions: range  # in `Layout.parameters`
    end: int  # elements of the flat tensor up to the segment's last one


class Layout:
    """The place of each trained parameter's gradient."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], padding: int) -> None:
        """parameters: in the model's order. padding: number of zeros after each flat tensor, so that it can be divided
        into as many equal parts. Raises UserError without parameters.
        """
        if not parameters:
            raise UserError("the model has no parameters to train")
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
        for parameter in reversed(parameters):
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self.parameters: list[torch.nn.Parameter] = []
        self.segments: list[Segment] = []  # in the order in which they are sent
        self.sizes: list[int] = []  # elements of each flat tensor, without the padding
        self.padding = padding
        self._kinds = list(kinds)
        self._places: list[tuple[int, int]] = []  # flat tensor and offset, by position
        for flat, members in enumerate(kinds.values()):
            self._place(flat, members)

    def _place(self, flat: int, members: Sequence[torch.nn.Parameter]) -> None:
        offset = begun = 0
        first = len(self.parameters)
        for parameter in members:
            self.parameters.append(parameter)
            self._places.append((flat, offset))
            offset += parameter.numel()
            if offset - begun >= SEGMENT_ELEMENTS or parameter is members[-1]:
                self.segments.append(Segment(flat, range(first, len(self.parameters)), offset))
                first, begun = len(self.parameters), offset
        self.sizes.append(offset)

    def place(self, position: int) -> tuple[int, int]:
        """Return the flat tensor of the parameter at this position, and its first element there."""
        return self._places[position]

    @property
    def kinds(self) -> list[tuple[torch.dtype, torch.device]]:
        """Dtype and device of each flat tensor."""
        return list(self._kinds)

    def allocate(self) -> Gradient:
        """Return a gradient of zeros."""
        flats = [
            torch.zeros(size + self.padding, dtype=dtype, device=device)
            for size, (dtype, device) in zip(self.sizes, self._kinds, strict=True)
        ]
        views = [
            _view(flats[flat], offset, parameter)
            for parameter, (flat, offset) in zip(self.parameters, self._places, strict=True)
        ]
        return Gradient(flats, views)


class Gradient:
    """One gradient: its flat tensors, and views into them with the parameters' shapes, by the layout's positions."""

    def __init__(self, flats: list[torch.Tensor], views: list[torch.Tensor]) -> None:
        self.flats = flats
        self.views = views

    def add_(self, other: Gradient) -> None:
        """Add `other`, elementwise, in place."""
        for mine, theirs in zip(self.flats, other.flats, strict=True):
            mine.add_(theirs)

    def zero_(self) -> None:
        """Set all elements to zero."""
        for flat in self.flats:
            flat.zero_()


class GradientPool:
    """Gradients for repeated use: fresh memory costs more than the sums that are computed in it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._free: list[Gradient] = []

    def take(self) -> Gradient:
        """Return a gradient with arbitrary values, and zeros in the padding."""
        return self._free.pop() if self._free else self._layout.allocate()

    def give_back(self, gradient: Gradient) -> None:
        """Take back a gradient that is no longer used."""
        self._free.append(gradient)


def _view(flat: torch.Tensor, offset: int, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return this parameter's part of `flat`, with the memory layout of the parameter if that is dense.

    The view has a version counter of its own (through `data`), which shows changes.
    """
    part = flat[offset : offset + parameter.numel()].data
    dense = sorted(zip(parameter.stride(), parameter.shape, strict=True))
    expected = 1
    for stride, length in dense:
        if length == 1:
            continue
        if stride != expected:
            return part.view(parameter.shape)
        expected *= length
    return part.as_strided(parameter.shape, parameter.stride()) if parameter.dim() else part.view(())
