"""Failures of GPUs and of whole servers in simulations, from a trace or at a rate, each with its repair.

A job goes on with the GPUs that it has left, as elastic jobs of this runtime do. If these are fewer than its least
share, it stops, falls back to its last checkpoint (`Costs.checkpoint_every_s`), and waits. Failed GPUs are given to no
job until their repair.

A trace is a table: ``fail_s,server,gpu,repair_s``; without a `gpu` the whole server fails. Rates are a YAML file: times
between failures of each server and each GPU are exponentially distributed with the given mean.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from ..protocol.errors import UserError
from ..scheduler.profiles.tables import Table
from ..scheduler.view import Gpus, ServerInView

HOUR_S = 3600.0
FAIL = "fail_s"
COLUMNS = (FAIL, "server", "repair_s")
Hours = Annotated[float, msgspec.Meta(gt=0, le=1e7)]


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean hours between failures of each server and each GPU (None: they do not fail), and of a repair."""

    repair_h: Hours
    server_mtbf_h: Hours | None = None
    gpu_mtbf_h: Hours | None = None


@dataclass(frozen=True)
class Unit:
    """GPUs that fail together."""

    gpus: Gpus
    mean_s: float = math.inf  # between a repair and the next failure; inf: it fails no more
    repair_s: float = 0.0


class Outages:
    """The GPUs that are out of order as time goes on."""

    def __init__(self, failures: Rates | Table, servers: Sequence[ServerInView], seed: int) -> None:
        """Raises UserError, naming file, line and column, if a trace names what the servers do not have."""
        self.down: Gpus = 0
        self.count = 0  # failures so far
        self._rng = np.random.default_rng([seed, 0xFA11])
        self._failing: list[tuple[float, int, Unit]] = []
        self._repairs: list[tuple[float, int, Unit]] = []
        if isinstance(failures, Table):
            units = _of_trace(failures, servers)
        else:
            units = [(self._rng.exponential(unit.mean_s), unit) for unit in _units(failures, servers)]
        for number, (at_s, unit) in enumerate(units):
            heapq.heappush(self._failing, (at_s, number, unit))

    def next_s(self) -> float:
        """Return when GPUs fail or are repaired next; inf: never."""
        return min(self.repair_s(), self._failing[0][0] if self._failing else math.inf)

    def repair_s(self) -> float:
        """Return when GPUs are repaired next; inf: none are out of order."""
        return self._repairs[0][0] if self._repairs else math.inf

    def advance(self, now: float) -> bool:
        """Take in all failures and repairs until `now`; return whether there were any."""
        changed = False
        while self.next_s() <= now:
            changed = True
            if self.repair_s() <= self.next_s():
                at_s, number, unit = heapq.heappop(self._repairs)
                if unit.mean_s < math.inf:
                    heapq.heappush(self._failing, (at_s + self._rng.exponential(unit.mean_s), number, unit))
            else:
                at_s, number, unit = heapq.heappop(self._failing)
                self.count += 1
                heapq.heappush(self._repairs, (at_s + unit.repair_s, number, unit))
        if changed:
            self.down = 0
            for _, _, unit in self._repairs:
                self.down |= unit.gpus
        return changed


def _units(rates: Rates, servers: Sequence[ServerInView]) -> list[Unit]:
    repair_s, found = rates.repair_h * HOUR_S, []
    for mask, gpus in _masks(servers).values():
        if rates.server_mtbf_h is not None:
            found.append(Unit(mask, rates.server_mtbf_h * HOUR_S, repair_s))
        if rates.gpu_mtbf_h is not None:
            found += [Unit(gpu, rates.gpu_mtbf_h * HOUR_S, repair_s) for gpu in gpus]
    return found


def _of_trace(table: Table, servers: Sequence[ServerInView]) -> list[tuple[float, Unit]]:
    for column in COLUMNS:
        if column not in table:
            known = ", ".join(table.columns)
            raise UserError(f"{table.source}: line 1: no column {column!r} of a trace of failures; there are {known}")
    masks, found = _masks(servers), []
    fail_s, repair_s = table.numbers(FAIL), table.numbers("repair_s")
    for row, (name, gpu) in enumerate(
        zip(table.columns["server"], table.columns.get("gpu", [""] * len(table)), strict=True)
    ):
        if name not in masks:
            raise table.wrong(row, "server", f"no server {name!r}; there are {', '.join(list(masks)[:3])} ...")
        mask, gpus = masks[name]
        if gpu and not (gpu.isdecimal() and int(gpu) < len(gpus)):
            raise table.wrong(
                row, "gpu", f"{gpu!r} is not a GPU of {name}, from 0 to {len(gpus) - 1}; empty: the server"
            )
        found.append((float(fail_s[row]), Unit(gpus[int(gpu)] if gpu else mask, repair_s=float(repair_s[row]))))
    return found


def _masks(servers: Sequence[ServerInView]) -> dict[str, tuple[Gpus, list[Gpus]]]:
    """Return the set of each server's GPUs, and each of them, by name."""
    found, begin = {}, 0
    for server in servers:
        gpus = [1 << at for at in range(begin, begin + len(server.gpus))]
        found[str(server.server)] = sum(gpus), gpus
        begin += len(gpus)
    return found
