"""Exit codes of workers that mean something to the cluster, beside 0 and a script's own."""

from __future__ import annotations

NO_CHECKPOINT = 77  # a first holder that does not see the job's checkpoint: the server's fault, not the script's
HUNG = 78  # its training thread took longer than it may, in a step, in a pause or in the library's code
SPOILED = (
    79  # it has lost its initial values to a state that has not come, and there is no checkpoint: another begins anew
)
UNREACHABLE = 80  # a newcomer that could not connect to the other workers

OF_THE_CLUSTER = frozenset({NO_CHECKPOINT, HUNG, SPOILED, UNREACHABLE})  # the script has not chosen to end
