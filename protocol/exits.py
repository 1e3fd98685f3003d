"""Exit codes of workers with a meaning for the cluster, beside 0 and the codes of the script itself."""

from __future__ import annotations

from .model import Fault

# A first holder of the state does not see the job's checkpoint: the server is at fault, not the script
NO_CHECKPOINT = 77
HUNG = 78  # the training thread exceeded its time limit in a step, in a pause or in the library's code
# The worker overwrote its initial values for a state transfer that never completed, and there is no checkpoint
SPOILED = 79
UNREACHABLE = 80  # a joining worker could not connect to the other workers
# The control thread could not start, or has ended: no descriptors or threads left, or a bug of the library
SPEECHLESS = 81
DIVERGED = 82  # the worker's training state differs from that of most other workers
DISAGREED = 83  # the workers' states, or the values they save, differ, and none is known to be right: the job fails
UNLIKE = 84  # a joining worker reads or computes other values than the workers that have the state: it does not join
OTHER_CODE = 85  # a joining worker's script, modules or torch version differ from those with which the job began


def fault_of(exit_code: int | None) -> Fault:
    """Return the fault that an exit code alone implies. None: the exit code is unknown; negative: minus the signal's
    number.

    `NO_CHECKPOINT` counts as the script's fault here: the cluster is at fault only where the job has a checkpoint.
    """
    if exit_code == HUNG:
        return Fault.SILENT
    if exit_code is None or exit_code < 0 or exit_code in (SPOILED, UNREACHABLE, SPEECHLESS, DIVERGED):
        return Fault.KILLED
    return Fault.SCRIPT
