"""The states of a script, and their order."""

from __future__ import annotations

import pytest

from elasticd.protocol.errors import InvalidTransition
from elasticd.worker.script import TRANSITIONS, Script, ScriptAt


def test_a_script_goes_through_its_loops_epoch_by_epoch_to_their_end() -> None:
    script = Script()
    for at in (ScriptAt.BETWEEN, ScriptAt.READING, ScriptAt.BETWEEN, ScriptAt.READING, ScriptAt.BETWEEN, ScriptAt.OVER):
        script.go(at)
    with pytest.raises(InvalidTransition, match="behind its loop over epochs, and cannot be in its loop over batches"):
        script.go(ScriptAt.READING)
    assert script.at is ScriptAt.OVER


def test_wherever_a_script_is_it_can_still_come_to_its_end() -> None:
    assert set(TRANSITIONS) == set(ScriptAt)
    assert [at for at, following in TRANSITIONS.items() if ScriptAt.OVER not in following] == [ScriptAt.OVER]
    assert {ScriptAt.BEFORE}.union(*TRANSITIONS.values()) == set(ScriptAt)


def test_batches_are_read_nowhere_but_in_the_loop_over_epochs() -> None:
    assert [at for at, following in TRANSITIONS.items() if ScriptAt.READING in following] == [ScriptAt.BETWEEN]
