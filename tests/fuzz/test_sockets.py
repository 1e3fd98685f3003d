"""A sample of the campaign: corrupted frames at the sockets of a running controller and a running agent."""

from __future__ import annotations

import pytest

from verification.fuzz.sockets import CAMPAIGNS, place

FRAMES = 16_000


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nobody_minds_what_hostile_peers_say(name: str) -> None:
    campaign, _ = CAMPAIGNS[name]
    with place() as (context, directory):
        tally = campaign(f"{name}/sample", context, directory, FRAMES)
    assert tally.frames == FRAMES
