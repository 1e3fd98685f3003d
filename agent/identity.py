"""An agent's identity, kept in its state directory for as long as that exists.

Two agents may get one server name by mistake, a server may move to another cluster, or its cluster's store may be lost.
The identity reveals these cases, which names do not. It is written and synced before it is used: once reported, it must
not change.
"""

from __future__ import annotations

from ..protocol.model import Value


class Identity(Value, frozen=True, kw_only=True):
    """The identity of an agent, with its knowledge of its cluster."""

    agent: str = ""  # random; "": an agent without a state directory of its own (tests)
    start: int = 1  # number of starts of the agent
    cluster: str = ""  # id of the cluster to which the agent belonged last
    highest_job: int = 0  # greatest number among the jobs that the agent was asked to start
    newest_event: int = 0  # of its cluster's history, as known to the agent
    term: int = 0  # the highest term received from a controller (`fence`)
