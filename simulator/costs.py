"""Costs of changing a job's GPUs (EDL 2, AFS Fig. 1): presets, or a file.

``background`` is the mode of this project's runtime: training goes on while new workers start and fetch the state, and
stands still only for the switch. Its numbers are round ones above the measured values (docs/reports/benchmarks.md):

* `START_S`: from an order to the first step of a new job. Processes are forked from one that has torch loaded, so only
  building the model and reading the data remain.
* `JOIN_S`: from an order to the first step with more workers (`make bench-resize`, `make bench-runtime`).
* `PAUSE_S`: the median pauses of `make bench-resize` lie between 3 and 34 ms, the longest at 65 ms.

A real cluster has two more costs, too small to matter where jobs train for hours and 0 in the presets. `release_s`: a
leaving worker first ends its step and its process. `end_s`: a finished job writes a checkpoint and ends its processes.
`make conformance` measures all of them on the machine that it runs on. `checkpoint_every_s` is for clusters where a
preempted job goes on from its last checkpoint; this project saves the state first, so that nothing is lost.

``stop-resume`` writes a checkpoint, stops, and starts again: tens of seconds for each change (AFS Fig. 1, Pollux'
restart penalty of 30 s).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec

from ..protocol.errors import UserError

START_S = 3.0
JOIN_S = 0.3
PAUSE_S = 0.05
RESTART_S = 30.0


@dataclass(frozen=True)
class Costs:
    """Costs of changing a job's GPUs, in seconds."""

    name: str
    start_s: float  # from getting GPUs to the first step, for a job that has none
    ready_s: float  # from getting more GPUs until they take part; before that the job works with its old ones
    pause_s: float  # pause of training at a change of a running job
    release_s: float = 0.0  # until the GPUs that a running job gives up are free for another one
    end_s: float = 0.0  # from the last step until the job is over and its GPUs are free
    checkpoint_every_s: float = 0.0  # loss on giving up all GPUs: work since the last checkpoint; 0: none
    by_model: Mapping[str, Costs] = field(default_factory=dict)  # costs of models that differ

    @property
    def switches(self) -> bool:
        """Whether new GPUs may take part later than they are given."""
        return any(costs.ready_s + costs.release_s > 0 for costs in (self, *self.by_model.values()))

    @property
    def releases(self) -> bool:
        """Whether a job may have to wait for GPUs that it has been given."""
        return any(costs.release_s > 0 for costs in (self, *self.by_model.values()))

    def of(self, model: str) -> Costs:
        """Return the costs of a job of `model`."""
        return self.by_model.get(model, self)


NONE = Costs("none", 0.0, 0.0, 0.0)
STOP_RESUME = Costs("stop-resume", RESTART_S, 0.0, RESTART_S)
BACKGROUND = Costs("background", START_S, JOIN_S, PAUSE_S)
PRESETS = {costs.name: costs for costs in (NONE, STOP_RESUME, BACKGROUND)}


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs in a file; missing fields are as in the surrounding entry."""

    start_s: Seconds | None = None
    ready_s: Seconds | None = None
    pause_s: Seconds | None = None
    release_s: Seconds | None = None
    end_s: Seconds | None = None
    checkpoint_every_s: Seconds | None = None


class CostsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of costs: a preset as the base, differences for all jobs, and differences for single models."""

    base: str = "none"
    default: Numbers = Numbers()
    models: dict[str, Numbers] = {}


def build(document: CostsFile, source: str) -> Costs:
    """Return the costs that `document` describes. Raises UserError, naming `source` and field."""
    default = _changed(preset(document.base, f"{source}: base"), document.default)
    models = {model: _changed(default, numbers) for model, numbers in document.models.items()}
    return replace(default, name=source, by_model=models)


def preset(name: str, source: str) -> Costs:
    """Return the preset of this name. Raises UserError if there is none."""
    if name not in PRESETS:
        raise UserError(f"{source}: there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def _changed(base: Costs, numbers: Numbers) -> Costs:
    """Return `base` with the given numbers replaced."""
    given = {name: getattr(numbers, name) for name in numbers.__struct_fields__}
    return replace(base, **{name: value for name, value in given.items() if value is not None})
