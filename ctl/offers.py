"""What the servers that `up` starts on this machine offer: the GPUs that are here, CPU slots, or stand-ins for GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import UserError
from . import drivers, standins

Options = dict[str, str | int]  # of an agent's configuration
OPTIONS = ("cpu_slots", *standins.OPTIONS)


@dataclass(frozen=True)
class Offer:
    """Of each server. `text`: what they offer, and why, for people."""

    slots: int | None  # of the CPU; None: GPUs
    models: tuple[str, ...]  # of the stand-ins, for one server after the other; none: the GPUs that are here
    text: str

    def options(self, directory: Path, name: str, position: int) -> Options:
        """What makes a server offer that. Stand-ins are built for it. Raises UserError."""
        if self.models:
            return standins.lay_out(directory, name, self.models[position % len(self.models)])
        return {} if self.slots is None else {"cpu_slots": self.slots}


def plan(slots: int | None, model: str | None, servers: int | None) -> Offer:
    """What `--gpus`, `--gpu-model` and `--servers` mean here. Raises UserError."""
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
    """ "1 CPU slot"."""
    return f"{slots} CPU slot{'' if slots == 1 else 's'}"
