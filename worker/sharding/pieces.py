"""Parts of the optimizers' state that one worker keeps: their update, transfer and composition.

A *piece* is a range of elements of one parameter with their state, in the order of the parameter's memory. State of an
optimizer is either one value for each element (`exp_avg`) or one for all of them (`step`); pieces that are cut have the
latter each.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...protocol.errors import UserError
from ..communication.communicator import Communicator
from ..inband import exchange
from ..plain import inline, pack, restored, unpack
from .elementwise import class_of, one_thread
from .intervals import GRAIN, Interval, common

PIECE_TAG = 1 << 20  # of messages; those of a whole state (`state.replication`) are far below
FOR_ALL = frozenset({"step", "mu_product", "eta", "mu"})  # state of torch.optim's classes that is one value for all


@dataclass
class Piece:
    """Elements [begin, end) of a flat tensor, all of one parameter, and their state."""

    interval: Interval
    state: dict[str, Any] = field(default_factory=dict)


def memory_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's elements in the order of its memory, as a view of one dimension.

    Raises UserError if its memory has gaps.
    """
    if not parameter.numel():
        return parameter.detach().reshape(0)
    expected = 1
    for stride, length in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if length > 1 and stride != expected:
            raise UserError(
                f"sharding: optimizer cannot divide a parameter of shape {list(parameter.shape)} whose memory has gaps: "
                "make it contiguous"
            )
        expected *= length
    return parameter.detach().as_strided((parameter.numel(),), (1,))


def cut(piece: Piece, interval: Interval) -> Piece:
    """Return the part of a piece within `interval`; its values for each element are views."""
    begin, end = interval.begin - piece.interval.begin, interval.end - piece.interval.begin
    state = {key: value[begin:end] if _is_per_element(value) else value for key, value in piece.state.items()}
    return Piece(interval, state)


def compose(interval: Interval, found: Iterable[Piece]) -> Piece:
    """Return the piece of `interval` from pieces that together contain it, in memory of its own unless one is equal."""
    parts: list[Piece] = []
    for piece in found:
        part = common(piece.interval, interval)
        if part == piece.interval == interval:
            return piece
        if part is not None and not any(common(part, each.interval) is not None for each in parts):
            parts.append(cut(piece, part))
    parts.sort(key=lambda each: each.interval)
    assert sum(each.interval.size for each in parts) == interval.size, f"parts of {interval} are missing"
    first = parts[0].state
    state: dict[str, Any] = {}
    for key, value in first.items():
        if _is_per_element(value):
            state[key] = torch.cat([each.state[key] for each in parts])
        else:
            state[key] = value.clone() if isinstance(value, torch.Tensor) else value
    return Piece(interval, state)


def on_host(piece: Piece) -> Piece:
    """Return a piece in the host's memory; a copy, unless it is there."""
    state = {key: value.to("cpu") if _is_per_element(value) else value for key, value in piece.state.items()}
    return Piece(piece.interval, state)


def per_element(piece: Piece) -> list[torch.Tensor]:
    """Return the state that has one value for each element."""
    return [value for value in piece.state.values() if _is_per_element(value)]


def _is_per_element(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 1


# ------------------------------------------------------------------------------------------------------- whole and parts


def of_whole(parameter: torch.Tensor, interval: Interval, state: Mapping[str, Any]) -> Piece:
    """Return an optimizer's state of a whole parameter, whose elements are `interval`, as a piece."""
    own: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and key not in FOR_ALL:
            if value.stride() != parameter.stride() or value.device != parameter.device:
                value = _as(parameter, value)
            value = memory_of(value)
        own[key] = value
    return Piece(interval, own)


def _as(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a copy of `value` that is in memory as the parameter is."""
    copy = torch.empty_strided(parameter.shape, parameter.stride(), dtype=value.dtype, device=parameter.device)
    return copy.copy_(value)


def to_whole(parameter: torch.Tensor, piece: Piece) -> dict[str, Any]:
    """Return a piece of a whole parameter as the optimizer keeps it: with the parameter's shape."""
    return {
        key: value.as_strided(parameter.shape, parameter.stride()) if _is_per_element(value) else value
        for key, value in piece.state.items()
    }


# --------------------------------------------------------------------------------------------------------------- updates


@dataclass(frozen=True)
class Work:
    """A piece to update: the numbers of its optimizer and group, its elements and their gradient."""

    optimizer: int
    group: int
    piece: Piece
    values: torch.Tensor
    gradient: torch.Tensor


def update(optimizer: torch.optim.Optimizer, options: Sequence[Mapping[str, Any]], work: Sequence[Work]) -> None:
    """Update elements and their state in place, as the optimizer would. options: of its groups."""
    if not work:
        return
    kind: Any = class_of(optimizer)
    shadow: Any = kind.__new__(kind)
    vars(shadow).update(vars(optimizer))
    shadow.param_groups = [{**group, "params": []} for group in options]
    shadow.state = defaultdict(dict)
    shadow._optimizer_step_pre_hooks = OrderedDict()  # the script's hooks are called once, with the real update
    shadow._optimizer_step_post_hooks = OrderedDict()
    parameters = []
    for each in work:
        parameter = torch.nn.Parameter(each.values)
        parameter.grad = each.gradient
        shadow.param_groups[each.group]["params"].append(parameter)
        if each.piece.state:
            shadow.state[parameter] = each.piece.state
        parameters.append(parameter)
    with one_thread():
        kind.step(shadow)
    for parameter, each in zip(parameters, work, strict=True):
        each.piece.state = shadow.state[parameter]


def update_padded(optimizer: torch.optim.Optimizer, options: Sequence[Mapping[str, Any]], work: Sequence[Work]) -> None:
    """As `update`, for elements of 16 bits that are cut anywhere: each piece is filled up to a multiple of GRAIN.

    PyTorch computes a tensor's last elements one by one, and rounds there what it keeps in 32 bits elsewhere.
    """
    filled = [
        Work(each.optimizer, each.group, _filled_up(each.piece), _fill_up(each.values), _fill_up(each.gradient))
        for each in work
    ]
    update(optimizer, options, filled)
    for each, one in zip(work, filled, strict=True):
        size = each.values.numel()
        each.values.copy_(one.values[:size])
        each.piece.state = {
            key: value[:size] if _is_per_element(value) else value for key, value in one.piece.state.items()
        }


def _fill_up(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, -values.numel() % GRAIN))


def _filled_up(piece: Piece) -> Piece:
    state = {key: _fill_up(value) if _is_per_element(value) else value for key, value in piece.state.items()}
    return Piece(piece.interval, state)


def copied(piece: Piece, interval: Interval) -> Piece:
    """Return a copy of the part of a piece within `interval`, for an update of which nothing is kept."""
    part = cut(piece, interval)
    part.state = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in part.state.items()}
    return part


# ------------------------------------------------------------------------------------------------------------- transfers


def trade(
    communicator: Communicator,
    outgoing: Sequence[tuple[int, Piece]],
    devices: Sequence[torch.device],
    host: bool = False,
) -> list[Piece]:
    """Send pieces to other ranks, and return those that they send to this one. A collective.

    outgoing: rank and piece. devices: of each flat tensor. host: keep received pieces in the host's memory. Raises
    CommunicatorBroken.
    """
    listed = [
        [rank, *_plain(piece.interval), [[key, *_described(value)] for key, value in piece.state.items()]]
        for rank, piece in outgoing
    ]
    payloads = exchange(communicator, {"pieces": listed})
    sent = []
    tags = dict.fromkeys(range(communicator.size), PIECE_TAG)
    for rank, piece in outgoing:
        for value in piece.state.values():
            if _is_per_element(value):  # through the host: an accelerator's library can block where two send at once
                sent.append(communicator.send(value.to("cpu").contiguous(), rank, tags[rank]))
                tags[rank] += 1
    received: list[Piece] = []
    for source, payload in enumerate(payloads):
        tag = PIECE_TAG
        for target, flat, begin, end, described in payload["pieces"]:
            if target != communicator.rank:
                continue
            piece = Piece(Interval(flat, begin, end))
            device = torch.device("cpu") if host else devices[flat]
            for key, dtype, value, on_host in described:
                if dtype is None:
                    plain = unpack(value, lambda content, _: restored(content))
                    piece.state[key] = plain if on_host else plain.to(device)
                    continue
                tensor = torch.empty(end - begin, dtype=getattr(torch, dtype))
                communicator.wait(communicator.receive(tensor, source, tag))
                tag += 1
                piece.state[key] = tensor.to(device)
            received.append(piece)
    for work in sent:
        communicator.wait(work)
    return received


def _plain(interval: Interval) -> tuple[int, int, int]:
    return interval.flat, interval.begin, interval.end


def _described(value: Any) -> tuple[str | None, Any, bool]:
    """Return the type of a value for each element; else the value, and whether it is in the host's memory."""
    if _is_per_element(value):
        return str(value.dtype).removeprefix("torch."), None, False
    on_host = not isinstance(value, torch.Tensor) or value.device.type == "cpu"
    return None, pack(value, "the state of an optimizer", inline), on_host
