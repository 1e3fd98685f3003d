"""GPUs that are kept back from promises, for servers that fail (ElasticFlow 4.4, "Node failures").

Failures come at a configured rate, each server by itself, and a server that has failed is away for a configured time. Then the
number of servers that are away at a moment has a Poisson distribution with mean servers x rate x time away. As many servers are
kept back as are exceeded with no more than a configured probability. Idle GPUs of the reserve are not wasted: jobs get them
as they get all that promises leave, and give them back when a server fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def reserved_servers(servers: int, failures_per_server_s: float, away_s: float, chance: float) -> int:
    """The least number of servers that is exceeded by those that are away with a probability of no more than `chance`."""
    mean = servers * failures_per_server_s * away_s
    if mean <= 0:
        return 0
    term = total = math.exp(-mean)
    count = 0
    while 1.0 - total > chance and count < servers:
        count += 1
        term *= mean / count
        total += term
    return count


def reserved_gpus(server_gpus: Sequence[int], failures_per_server_s: float, away_s: float, chance: float) -> int:
    """The GPUs of so many servers, the largest first. `server_gpus`: of each server."""
    count = reserved_servers(len(server_gpus), failures_per_server_s, away_s, chance)
    return sum(sorted(server_gpus, reverse=True)[:count])
