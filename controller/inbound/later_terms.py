"""Reaction to an agent that knows a higher term than this controller's (`protocol.terms`).

If the controller has a store of its own, that store was lost or restored from a backup, or the agent comes from
another cluster. The controller goes on with a term above the agent's, since the agent would ignore it otherwise. The
higher term is recorded before any further message is sent. An agent that invents a term only raises this number,
within bounds, and gains nothing.

If there are several controllers, this one was elected, and another one may have been elected since, while it was
stopped or cut off from the store. It sends nothing more until the store has shown which controller leads (`StandDown`).
"""

from __future__ import annotations

from ...protocol.messages import AgentHello
from ...protocol.model import ServerId
from ...protocol.terms import MOST_AHEAD
from ..cluster import Cluster


def heard_of_term(cluster: Cluster, now: float, server: ServerId, hello: AgentHello) -> bool:
    """Examine the term in a hello; return False if `hello` must be ignored."""
    term = cluster.leader.term
    if hello.term <= term:
        return True
    if hello.term > term + MOST_AHEAD:
        cluster.warn(
            f"dropped a hello of {server}: its agent claims to have heard of term {hello.term}, and this is term {term}; if that "
            "is true, remove identity.json in its state directory when nothing runs there, and start the agent again",
            server=server,
        )
        return False
    if cluster.settings.elected:
        cluster.stand_down(hello.term, server)
        return False
    cluster.reign_beyond(hello.term)
    cluster.warn(
        f"server {server} has heard of term {hello.term}, and this was {term}: goes on as {cluster.leader.term}"
    )
    return True
