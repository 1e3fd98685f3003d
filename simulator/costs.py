"""What changing a job's GPUs costs (EDL 2, AFS Fig. 1): presets, or a file.

``background`` is how this project's runtime does it: training goes on while new workers start and fetch the state, and
stands still only for the switch. Its numbers are round ones above what was measured (docs/reports/benchmarks.md):

* `START_S`: from an order to the first step of a new job. Processes are forked from one that has torch loaded; building the
  model and reading the data is what remains.
* `JOIN_S`: from an order to the first step with more workers (`make bench-resize`, `make bench-runtime`).
* `PAUSE_S`: the median pauses of `make bench-resize` lie between 3 and 34 ms, the longest at 65 ms.

A real cluster has two more, too small to matter where jobs train for hours and 0 in the presets: `release_s`, as a worker that is
to leave first ends its step and its process, and `end_s`, as a job that is over writes a checkpoint and ends its processes.
`make conformance` measures all of them on the machine that it runs on. `checkpoint_every_s` is for clusters where a job that is
preempted goes on from its last checkpoint; ours saves the state first, so that nothing is lost.

``stop-resume`` writes a checkpoint, stops, and starts again: tens of seconds for each change (AFS Fig. 1, Pollux' restart
penalty of 30 s).
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
    """What changing a job's GPUs costs (s)."""

    name: str
    start_s: float  # from getting GPUs to the first step, for a job that has none
    ready_s: float  # from getting more GPUs until they work along; before that it works with those that it had
    pause_s: float  # training stands still so long at a change of a running job
    release_s: float = 0.0  # until GPUs that a running job is to give up are free for another one
    end_s: float = 0.0  # from the last step until the job is over and its GPUs are free
    checkpoint_every_s: float = 0.0  # who gives all GPUs up loses what came since the last checkpoint; 0: nothing
    by_model: Mapping[str, Costs] = field(default_factory=dict)  # those that differ

    @property
    def switches(self) -> bool:
        """May new GPUs work along later than they are given?"""
        return any(costs.ready_s + costs.release_s > 0 for costs in (self, *self.by_model.values()))

    @property
    def releases(self) -> bool:
        """May a job have to wait for GPUs that it has been given?"""
        return any(costs.release_s > 0 for costs in (self, *self.by_model.values()))

    def of(self, model: str) -> Costs:
        """What it costs a job of `model`."""
        return self.by_model.get(model, self)


NONE = Costs("none", 0.0, 0.0, 0.0)
STOP_RESUME = Costs("stop-resume", RESTART_S, 0.0, RESTART_S)
BACKGROUND = Costs("background", START_S, JOIN_S, PAUSE_S)
PRESETS = {costs.name: costs for costs in (NONE, STOP_RESUME, BACKGROUND)}


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out is as in the surrounding entry."""

    start_s: Seconds | None = None
    ready_s: Seconds | None = None
    pause_s: Seconds | None = None
    release_s: Seconds | None = None
    end_s: Seconds | None = None
    checkpoint_every_s: Seconds | None = None


class CostsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of costs: a preset as the base, what differs from it for all jobs, and what differs for single models."""

    base: str = "none"
    default: Numbers = Numbers()
    models: dict[str, Numbers] = {}


def build(document: CostsFile, source: str) -> Costs:
    """The costs that `document` describes. Raises UserError, naming `source` and field."""
    default = _changed(preset(document.base, f"{source}: base"), document.default)
    models = {model: _changed(default, numbers) for model, numbers in document.models.items()}
    return replace(default, name=source, by_model=models)


def preset(name: str, source: str) -> Costs:
    """Raises UserError for a name that no preset has."""
    if name not in PRESETS:
        raise UserError(f"{source}: there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def _changed(base: Costs, numbers: Numbers) -> Costs:
    """`base`, but for the numbers that are given."""
    given = {name: getattr(numbers, name) for name in numbers.__struct_fields__}
    return replace(base, **{name: value for name, value in given.items() if value is not None})
