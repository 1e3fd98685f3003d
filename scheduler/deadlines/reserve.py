"""GPUs that are kept back from promises, for servers that fail (ElasticFlow 4.4, "Node failures").

Servers fail independently at a configured rate, and a failed server is away for a configured time. So the number of
servers that are away at a moment has a Poisson distribution with mean servers x rate x time away. The reserve is the
number of servers that is exceeded with no more than a configured probability. Idle GPUs of the reserve are not wasted:
jobs get them like all GPUs that promises leave, and give them back when a server fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def reserved_servers(servers: int, failures_per_server_s: float, away_s: float, chance: float) -> int:
    """Return the least number that the servers that are away exceed with a probability of no more than `chance`."""
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
    """Return the GPUs of the reserved servers, the largest first. `server_gpus`: GPUs of each server."""
    count = reserved_servers(len(server_gpus), failures_per_server_s, away_s, chance)
    return sum(sorted(server_gpus, reverse=True)[:count])
