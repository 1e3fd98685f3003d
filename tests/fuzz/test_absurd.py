"""Valid but absurd messages: a sample of the campaign under each policy."""

from __future__ import annotations

import pytest

from elasticd.scheduler.policies import POLICIES
from verification.fuzz.absurd import play

MESSAGES = 250


@pytest.mark.parametrize("policy", [kind.name for kind in POLICIES])
def test_no_policy_minds_absurd_messages_of_those_who_may_speak(policy: str) -> None:
    assert play(policy, "sample", MESSAGES).messages == MESSAGES


def test_a_job_that_is_measured_while_it_seems_to_end_keeps_its_gpus() -> None:
    """GPUs that such a job left idle were given to others, and the job continued after all: no policy could decide then."""
    play("afs-p", "1", 1001)
