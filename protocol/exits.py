"""Exit codes of workers that mean something to the cluster, beside 0 and a script's own."""

from __future__ import annotations

from .model import Fault

NO_CHECKPOINT = 77  # a first holder that does not see the job's checkpoint: the server's fault, not the script's
HUNG = 78  # its training thread took longer than it may, in a step, in a pause or in the library's code
SPOILED = 79  # it has lost its initial values to a state that has not come, and there is no checkpoint
UNREACHABLE = 80  # a newcomer that could not connect to the other workers
SPEECHLESS = 81  # its control thread could not begin, or has ended: no descriptors or threads left, or our mistake
DIVERGED = 82  # its training state differs from that of most other workers
DISAGREED = 83  # the workers' states, or what they save, differ, and none of them is known to be right: the job fails
UNLIKE = 84  # a newcomer that reads or computes something else than the workers that have the state: it does not join
OTHER_CODE = 85  # a newcomer whose script, modules or version of torch are not those that the job began with


def fault_of(exit_code: int | None) -> Fault:
    """Whose fault an end is of which nothing but the exit code is known (None: not even that; negative: minus the signal).

    `NO_CHECKPOINT` counts as the script's here: it is the cluster's only where the job has a checkpoint.
    """
    if exit_code == HUNG:
        return Fault.SILENT
    if exit_code is None or exit_code < 0 or exit_code in (SPOILED, UNREACHABLE, SPEECHLESS, DIVERGED):
        return Fault.KILLED
    return Fault.SCRIPT
