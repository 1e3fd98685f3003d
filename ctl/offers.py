"""Devices that servers started by `up` on this machine offer: its GPUs, CPU slots, or stand-ins for GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import UserError
from . import drivers, standins

Options = dict[str, str | int]  # options in an agent's configuration
OPTIONS = ("cpu_slots", *standins.OPTIONS)


@dataclass(frozen=True)
class Offer:
    """Devices that each server offers. `text`: the devices and the reason, for people."""

    slots: int | None  # CPU slots; None: GPUs
    models: tuple[str, ...]  # models of the stand-ins, for one server after the other; none: this machine's GPUs
    text: str

    def options(self, directory: Path, name: str, position: int) -> Options:
        """Return the options of a server's agent for this offer. Builds the stand-ins. Raises UserError."""
        if self.models:
            return standins.lay_out(directory, name, self.models[position % len(self.models)])
        return {} if self.slots is None else {"cpu_slots": self.slots}


def plan(slots: int | None, model: str | None, servers: int | None) -> Offer:
    """Return the offer that `--gpus`, `--gpu-model` and `--servers` select on this machine. Raises UserError."""
    cores = os.cpu_count() or 1
    each = "each server offers" if (servers or 1) > 1 else "the server offers"
    if model is not None:
        if slots is not None:
            raise UserError("--gpu-model gives the servers stand-ins for GPUs, --gpus CPU slots: give one of them")
        models = standins.models_of(model)
        named = ", ".join(dict.fromkeys(models))
        return Offer(
            None,
            models,
            f"the GPUs are stand-ins ({named}): there are none of these here, and workers compute on the CPU",
        )
    if slots is not None:
        return Offer(slots, (), f"{each} {counted(slots)}, as was asked for: workers compute on the CPU")
    if servers is not None and servers > 1:
        share = max(1, cores // servers)
        text = f"{each} {counted(share)}: {servers} servers share the {cores} processors here, and no GPU"
        return Offer(share, (), text)
    trouble = drivers.look()
    if trouble.absent:
        text = f"{each} {counted(cores)}, one for each processor: there is no NVIDIA driver here ({trouble.text})"
        return Offer(cores, (), text)
    if trouble.text:
        text = f"{each} nothing yet: the NVIDIA driver does not work ({trouble.text}), see `elasticctl servers`"
        return Offer(None, (), text)
    return Offer(None, (), f"{each} the GPUs that the NVIDIA driver tells of")


def counted(slots: int) -> str:
    """Return "1 CPU slot", "2 CPU slots"."""
    return f"{slots} CPU slot{'' if slots == 1 else 's'}"
