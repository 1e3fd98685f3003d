"""Has an agent heard of a reign with a higher term than this one's? (`protocol.terms`)

With a store of its own a controller then has the past in its hands: the store was lost, or restored from a backup, or the agent
comes from another cluster. It goes on above what the agent has heard, which would not listen to it otherwise; the higher term is
recorded before anything more is sent. Whoever makes such a number up has it grow, within bounds, and gains nothing.

One of several controllers was elected, and somebody else may have been since: it was stopped, or cut off from the store. It says
nothing more until the store has told who reigns (`StandDown`).
"""

from __future__ import annotations

from ...protocol.messages import AgentHello
from ...protocol.model import ServerId
from ...protocol.terms import MOST_AHEAD
from ..cluster import Cluster


def heard_of_term(cluster: Cluster, now: float, server: ServerId, hello: AgentHello) -> bool:
    """Look at the term that a hello tells. False: `hello` is not to be taken in."""
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
    if cluster.elected:
        cluster.stand_down(hello.term, server)
        return False
    cluster.reign_beyond(hello.term)
    cluster.warn(
        f"server {server} has heard of term {hello.term}, and this was {term}: goes on as {cluster.leader.term}"
    )
    return True
