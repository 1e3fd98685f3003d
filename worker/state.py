"""The training state as a document: a header of plain values, and tensors in a stated order (design: worker-runtime 2).

The same document is sent to joiners and written to checkpoints. What cannot be a plain value or a tensor is refused, so nothing
needs to be unpickled anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from ..protocol.errors import UserError

Registered = Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]]


class TrainingState:
    """Model, optimizer, scheduler, and the script's own values.

    Tensors stand in this order: parameters (tied ones once), buffers, optimizer state by parameter and key.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        registered: Registered | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._registered = registered if registered is not None else {}
        self._trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def header(self, counters: dict[str, int]) -> dict[str, Any]:
        """All that is not a tensor, and the shapes of all that is. Raises UserError for values that are not plain."""
        document = {
            "counters": counters,
            "model": [[name, _shape(tensor)] for name, tensor in self._model_tensors()],
            "optimizer": [self._optimizer_entry(parameter) for parameter in self._trained],
            "groups": [
                {key: _plain(value, f"optimizer option {key!r}") for key, value in group.items() if key != "params"}
                for group in self.optimizer.param_groups
            ],
            "scheduler": _plain(_scheduler_state(self.scheduler), "scheduler") if self.scheduler else None,
            "registered": self.registered_values(),
        }
        return document

    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in the header's order. They are the live ones."""
        found = [tensor.detach() for _, tensor in self._model_tensors()]
        for parameter in self._trained:
            state = self.optimizer.state.get(parameter, {})
            found += [state[key] for key in sorted(state) if isinstance(state[key], torch.Tensor)]
        return found

    def adopt(self, header: dict[str, Any]) -> list[torch.Tensor]:
        """Give the optimizer's state the header's structure and return our tensors in its order, to be filled.

        Raises UserError if the header is of another model or optimizer.
        """
        ours = [[name, _shape(tensor)] for name, tensor in self._model_tensors()]
        if ours != header["model"]:
            mine, theirs = next((a, b) for a, b in _pad(ours, header["model"]) if a != b)
            raise UserError(f"the state is of another model: here {_say(mine)}, there {_say(theirs)}")
        if len(header["optimizer"]) != len(self._trained) or len(header["groups"]) != len(self.optimizer.param_groups):
            raise UserError("the state is of another optimizer: it has other parameters or groups")
        for parameter, entry in zip(self._trained, header["optimizer"], strict=True):
            self._adopt_entry(parameter, entry)
        return self.tensors()

    def finish(self, header: dict[str, Any]) -> None:
        """Take the header's plain values: options of the optimizer, the scheduler, registered values."""
        for group, values in zip(self.optimizer.param_groups, header["groups"], strict=True):
            for key, value in values.items():
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
        if self.scheduler is not None and header["scheduler"] is not None:
            self.scheduler.load_state_dict(header["scheduler"])
        self.set_registered(header["registered"])

    def registered_values(self) -> dict[str, Any]:
        """What the script has registered, as plain values."""
        return {name: _plain(get(), f"registered value {name!r}") for name, (get, _) in self._registered.items()}

    def set_registered(self, values: dict[str, Any]) -> None:
        """Give the script's values back to it."""
        for name, (_, put) in self._registered.items():
            if name in values:
                put(values[name])

    def _model_tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [*self.model.named_parameters(), *self.model.named_buffers()]

    def _optimizer_entry(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        state = self.optimizer.state.get(parameter, {})
        return {
            "tensors": {key: _shape(state[key]) for key in sorted(state) if isinstance(state[key], torch.Tensor)},
            "values": {
                key: _plain(state[key], f"optimizer state {key!r}")
                for key in sorted(state)
                if not isinstance(state[key], torch.Tensor)
            },
        }

    def _adopt_entry(self, parameter: torch.nn.Parameter, entry: dict[str, Any]) -> None:
        state = self.optimizer.state[parameter]
        for key in [key for key in state if key not in entry["tensors"]]:
            del state[key]
        for key, (shape, dtype, on_device) in entry["tensors"].items():
            tensor = state.get(key)
            if not isinstance(tensor, torch.Tensor) or _shape(tensor) != [shape, dtype, on_device]:
                device = parameter.device if on_device else torch.device("cpu")
                state[key] = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
        state.update(entry["values"])
        if not state:
            del self.optimizer.state[parameter]


def _shape(tensor: torch.Tensor) -> list[Any]:
    """Shape, type, and whether it lives on an accelerator: Adam keeps its step counters on the CPU."""
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device.type != "cpu"]


def empty_like_header(header: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
    """Fresh tensors for all that a header tells of, in its order."""
    shapes = [shape for _, shape in header["model"]]
    for entry in header["optimizer"]:
        shapes += [entry["tensors"][key] for key in sorted(entry["tensors"])]
    return [
        torch.empty(shape, dtype=getattr(torch, dtype), device=device if on_device else "cpu")
        for shape, dtype, on_device in shapes
    ]


def _scheduler_state(scheduler: torch.optim.lr_scheduler.LRScheduler) -> dict[str, Any]:
    return {key: value for key, value in scheduler.state_dict().items() if not callable(value)}


def _plain(value: Any, what: str) -> Any:
    """`value` as numbers, text, lists and mappings. Raises UserError if it is anything else."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except (TypeError, msgspec.MsgspecError, OverflowError) as error:
        raise UserError(
            f"{what} cannot travel with the job: it must be numbers, text, lists and mappings ({error})"
        ) from None


def _pad(left: list[Any], right: list[Any]) -> list[tuple[Any, Any]]:
    length = max(len(left), len(right))
    return list(zip(left + [None] * (length - len(left)), right + [None] * (length - len(right)), strict=True))


def _say(entry: Any) -> str:
    return f"{entry[0]} {tuple(entry[1][0])} {entry[1][1]}" if entry else "nothing"
