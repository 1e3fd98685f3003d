"""All times that depend on one another, in seconds, and what must hold between them (`check`).

Times that a configuration or a job file sets have their defaults there; the limits of those defaults stand here.
"""

from __future__ import annotations

# ------------------------------------------------------------------------------------------ who counts whose silence

WATCH_INTERVAL_S = 1.0  # between the turns of a process that counts how long others have been silent
AWAY_S = 2.5  # without a turn for so long, it was itself stopped or starved: that time is nobody's silence

# ------------------------------------------------------------------------------------------------------ the controller

REST_S = 5.0  # for the other workers of a finished job to end by themselves
LEAVING_PATIENCE_S = 30.0  # for a worker that no roster names any more to leave by itself
LOG_TIMEOUT_S = 5.0  # for an agent to send a piece of a log
STORE_RETRY_S = 1.0  # between two attempts to write, while the store cannot be written

# ------------------------------------------------------------------------------------------------------ a worker's start

START_TIMEOUT_S = 600.0  # from its start to `elastic.join()`, unless the job says otherwise
LOAD_TIMEOUT_S = 3600.0  # from there to its training loop: model, data

# ------------------------------------------------------------------------------------------------------- a worker's stop

STOP_GRACE_S = 5.0  # from SIGTERM to SIGKILL, for a worker that has nothing to save
LEAST_SAVE_S = 30.0  # for the step in progress to end and a checkpoint to be written, before a worker is killed
MOST_SAVE_S = 3600.0
SAVE_MARGIN = 3.0  # times what the last checkpoint and the longest step took

# --------------------------------------------------------------------------------------- a server that cannot start workers

FIRST_SERVER_BACK_OFF_S = 5.0
LONGEST_SERVER_BACK_OFF_S = 300.0

# ------------------------------------------------------------------------------------------------- a job that gets no further

DEATHS_IN_VAIN = 10  # restarts in a row that are allowed after deaths by a signal, with no new step and no server lost


def check() -> None:
    """Raises AssertionError, naming the rule, if two of these times do not fit together."""
    rules = {
        "two turns are left out before a process takes itself for absent": 2 * WATCH_INTERVAL_S < AWAY_S,
        "a worker that saves has more time than one that has nothing to save": STOP_GRACE_S < LEAST_SAVE_S,
        "the least time for saving is less than the most": LEAST_SAVE_S < MOST_SAVE_S,
        "a server's first back-off is shorter than the longest": FIRST_SERVER_BACK_OFF_S < LONGEST_SERVER_BACK_OFF_S,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    assert not broken, "; ".join(broken)
