"""Attribution of an end by its exit code."""

from __future__ import annotations

import pytest

from elasticd.protocol import exits
from elasticd.protocol.model import Fault


@pytest.mark.parametrize(
    ("exit_code", "fault"),
    [
        (0, Fault.SCRIPT),
        (1, Fault.SCRIPT),
        (-9, Fault.KILLED),
        (None, Fault.KILLED),
        (exits.NO_CHECKPOINT, Fault.SCRIPT),
        (exits.HUNG, Fault.SILENT),
        (exits.SPOILED, Fault.KILLED),
        (exits.UNREACHABLE, Fault.KILLED),
        (exits.SPEECHLESS, Fault.KILLED),
        (exits.DIVERGED, Fault.KILLED),
        (exits.DISAGREED, Fault.SCRIPT),
    ],
)
def test_only_what_the_script_has_chosen_is_its_fault(exit_code: int | None, fault: Fault) -> None:
    assert exits.fault_of(exit_code) is fault
