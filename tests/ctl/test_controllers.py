"""Views of a cluster's controllers."""

from __future__ import annotations

from elasticd.ctl import render
from elasticd.ctl.tables import lines
from elasticd.protocol.messages import Controllers, ControllerView


def test_the_one_that_leads_is_named_with_its_term() -> None:
    views = (
        ControllerView(name="c1", leads=False, version="0.1", since_s=40.0, clients_at=("tcp://c1:7700",)),
        ControllerView(name="c2", leads=True, version="0.1", since_s=70.0, clients_at=("tcp://c2:7700",)),
    )
    answer = Controllers(controllers=views, asked="c1", term=7, time_s=100.0)
    head, first, second = lines(render.controller_table(answer), 200, False)
    assert head.split() == ["CONTROLLER", "STATE", "UP", "VERSION", "ADDRESS"]
    assert first.split()[:3] == ["c1", "stands", "by"]
    assert second.split()[:4] == ["c2", "leads,", "term", "7"]
