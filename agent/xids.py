"""Meanings of NVIDIA's error numbers (XIDs) for the work on a GPU: a table, with the source of each row.

The sources do not agree everywhere. The table has all their statements; `followed` marks the row by which this agent
acts, and a comment gives the reason. An operator may overrule each number (`xid_actions` in agent.yaml).

An XID that a restart of the application mends is left to the job: the GPU stays in use. A GPU or server that needs a
reset takes no new work, and the jobs there are moved to other GPUs while it still computes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ..protocol.model import Severity


class Source(enum.Enum):
    """Source of a row."""

    CATALOG = "NVIDIA's XID catalog, immediate action (as of 2025-10-29)"
    VALIDATION = "NVIDIA's health validation for GB200 and GB300"
    GCM = "GPU cluster monitoring (facebookresearch/gcm)"
    HERE = "decided here"


class Advice(enum.Enum):
    """Action that a source recommends."""

    RESTART_SERVER = "restart the server"
    RESET_GPU = "reset the GPU"
    CHECK_BOARD = "check the power connectors of the board"
    LOOK = "look at it: the number alone does not tell what to do"
    DRAIN = "take the work off, and look at it"
    RESTART_JOB = "nothing: the job that ran there starts again"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Row:
    """Recommendation of one source for some numbers, and its consequence in this cluster."""

    xids: tuple[int, ...]
    advice: Advice
    severity: Severity
    source: Source
    followed: bool = True


TABLE: tuple[Row, ...] = (
    Row((79,), Advice.RESTART_SERVER, Severity.STOP, Source.CATALOG),  # the GPU is gone and computes nothing
    Row(
        (46, 62, 64, 109, 110, 119, 120, 136, 143, 155, 156, 158), Advice.RESET_GPU, Severity.MOVE_AWAY, Source.CATALOG
    ),
    Row((95, 140), Advice.RESET_GPU, Severity.STOP, Source.CATALOG),  # memory has changed, of unknown programs
    # The catalog leaves 48 to a workflow of its own; the validation drains. Memory was wrong: the stricter one is
    # followed.
    Row((48,), Advice.LOOK, Severity.NO_NEW_WORK, Source.CATALOG, followed=False),
    Row((48,), Advice.DRAIN, Severity.STOP, Source.VALIDATION),
    Row((46,), Advice.DRAIN, Severity.MOVE_AWAY, Source.VALIDATION, followed=False),  # as the catalog
    # gcm takes 109 for not critical. A GPU whose contexts do not switch lets its job hang: the catalog is followed.
    Row((109,), Advice.NOTHING, Severity.NOTE, Source.GCM, followed=False),
    Row((13, 31, 43, 45, 63, 68, 92), Advice.NOTHING, Severity.NOTE, Source.GCM, followed=False),  # as the catalog
    Row((54,), Advice.CHECK_BOARD, Severity.NO_NEW_WORK, Source.CATALOG),
    Row((74, *range(144, 151)), Advice.LOOK, Severity.NO_NEW_WORK, Source.CATALOG),  # NVLink: running work may go on
    Row((45,), Advice.LOOK, Severity.NOTE, Source.CATALOG),  # it follows another one, which counts
    Row((154,), Advice.LOOK, Severity.NOTE, Source.CATALOG),  # NVML reports the action: "recovery-action"
    Row((151,), Advice.LOOK, Severity.NO_NEW_WORK, Source.CATALOG),  # restart the virtual machine
    Row(
        (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 74), 75, 76, 77, 80, 94, *range(96, 106)),
        Advice.RESTART_JOB,
        Severity.NOTE,
        Source.CATALOG,
    ),
    Row((*range(82, 87), 88, 89, *range(126, 136), 139), Advice.RESTART_JOB, Severity.NOTE, Source.CATALOG),
    Row(
        (14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161),
        Advice.NOTHING,
        Severity.NOTE,
        Source.CATALOG,
    ),
    Row((171, 172), Advice.NOTHING, Severity.NOTE, Source.CATALOG),  # they explain a 48, which counts
)

MEANINGS: Mapping[int, str] = {
    13: "an exception in a program on the GPU",
    31: "a program used memory that it does not have",
    43: "a program on the GPU was stopped after an error of its own",
    45: "programs were removed after another error",
    46: "the GPU has stopped processing",
    48: "an uncorrectable memory error",
    54: "auxiliary power is not connected",
    62: "the GPU's controller has halted",
    63: "a part of the memory is taken out of use",
    64: "a bad part of the memory could not be taken out of use",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many memory errors, all corrected",
    94: "an uncorrectable memory error that hit one program only",
    95: "an uncorrectable memory error that may have hit any program",
    109: "switching between programs took too long",
    110: "a security fault",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor has failed",
    136: "NVLink could not be trained",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialised",
    154: "the driver recommends another action for recovery",
    158: "a fatal timeout",
}


def followed(xid: int) -> Row:
    """Return the row that applies to `xid`. An unknown number is shown only."""
    return _FOLLOWED.get(xid, Row((xid,), Advice.LOOK, Severity.NOTE, Source.HERE))


def sentence(xid: int) -> str:
    """Return the error and its remedy, for people."""
    meaning, row = MEANINGS.get(xid), followed(xid)
    return f"XID {xid}{f', {meaning}' if meaning else ''}; what mends it: {row.advice.value}"


_FOLLOWED: Mapping[int, Row] = {xid: row for row in TABLE if row.followed for xid in row.xids}
