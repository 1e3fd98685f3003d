"""All times that depend on one another, in seconds, and what must hold between them (`check`).

Times that a configuration or a job file sets have their defaults there; the limits of those defaults stand here.
"""

from __future__ import annotations

# ------------------------------------------------------------------------------------------------------- a worker's stop

STOP_GRACE_S = 5.0  # from SIGTERM to SIGKILL, for a worker that has nothing to save
LEAST_SAVE_S = 30.0  # for the step in progress to end and a checkpoint to be written, before a worker is killed
MOST_SAVE_S = 3600.0
SAVE_MARGIN = 3.0  # times what the last checkpoint and the longest step took

# --------------------------------------------------------------------------------------- a server that cannot start workers

FIRST_SERVER_BACK_OFF_S = 5.0
LONGEST_SERVER_BACK_OFF_S = 300.0


def check() -> None:
    """Raises AssertionError, naming the rule, if two of these times do not fit together."""
    rules = {
        "a worker that saves has more time than one that has nothing to save": STOP_GRACE_S < LEAST_SAVE_S,
        "the least time for saving is less than the most": LEAST_SAVE_S < MOST_SAVE_S,
        "a server's first back-off is shorter than the longest": FIRST_SERVER_BACK_OFF_S < LONGEST_SERVER_BACK_OFF_S,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    assert not broken, "; ".join(broken)
