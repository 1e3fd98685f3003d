"""Who an agent is: what it keeps in its state directory for as long as that exists.

Two agents may be given one server name by mistake, and a server may be moved to another cluster, or its cluster's store be lost.
Names do not tell that; the identity does. It is written down before it is used, and synced: once told, it must not change.
"""

from __future__ import annotations

from ..protocol.model import Value


class Identity(Value, frozen=True, kw_only=True):
    """What an agent knows of itself."""

    agent: str = ""  # random; "": an agent without a state directory of its own (tests)
    start: int = 1  # the agent has been started so often
    cluster: str = ""  # id of the cluster that it has been a member of last
    highest_job: int = 0  # greatest number of a job that it has been told to start
    newest_event: int = 0  # of its cluster's history, that it has heard of
    term: int = 0  # the highest of a controller's reign that it has heard of (`fence`)
