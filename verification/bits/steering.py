"""Scheduler of a history: the only job gets the GPUs that the driver has chosen."""

from __future__ import annotations

import random
from collections.abc import Sequence, Sized

import msgspec
import numpy as np

from elasticd.scheduler.placement.fewest_servers import Placements
from elasticd.scheduler.placement.recomputed import RecomputedPlacement
from elasticd.scheduler.policies.base import Shares
from elasticd.scheduler.scheduler import Scheduler, Stages
from elasticd.scheduler.view import JobTable, ServerInView


class NoParameters(msgspec.Struct, frozen=True):
    """This policy takes no parameters."""


class Steering:
    """Policy and placement in one, for one job and one server."""

    name = "steering"
    needs_lengths = False
    parameters = NoParameters()

    def __init__(self) -> None:
        self.gpus: tuple[int, ...] = ()  # the job's GPUs, set by the driver

    def scheduler(self) -> Scheduler:
        return Scheduler(self, self.parameters, Stages(placement=self), "the driver")

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        return Shares(np.full(len(jobs), len(self.gpus), dtype=np.int64), lambda row: None)

    def place(
        self, servers: Sequence[ServerInView], present: object, shares: Sized, *_: object, **__: object
    ) -> Placements:
        if not self.gpus or not len(shares):
            return {}
        (server,) = servers
        return {0: sum(1 << bit for bit, gpu in enumerate(server.gpus) if gpu in self.gpus)}

    def incremental(self, servers: Sequence[ServerInView]) -> RecomputedPlacement:
        return RecomputedPlacement(self.place, servers)
