"""The oldest pending job is found without a scan of all pending jobs."""

from __future__ import annotations

import random

from elasticd.protocol.messages import Cancel, Scale
from elasticd.protocol.model import JobPhase

from .world import World, job_spec


def test_the_oldest_pending_job_is_the_first_that_was_submitted_whatever_comes_and_goes() -> None:
    chance = random.Random(0)
    world = World({"s1": 2})
    index = world.machine.cluster.jobs.index
    assert index.oldest_pending_s() is None
    for _ in range(300):
        live = [job for job in world.machine.cluster.jobs.values() if not job.final]
        if chance.random() < 0.5 or not live:
            world.submit(job_spec("digits", 1, 1))
        elif chance.random() < 0.4:
            world.ask(Cancel(job=chance.choice(live).id))
            world.reap()
        else:
            world.ask(Scale(job=chance.choice(live).id, share=chance.choice((None, 0, 1))))
        world.turn(1.0)
        pending = [job.submission.submitted_s for job in index.phases[JobPhase.PENDING].values()]
        assert index.oldest_pending_s() == min(pending, default=None)
