"""Kinds of jobs, and their scaling on a machine of any size. Pure.

The jobs are real: PyTorch, this project's runtime, collectives, checkpoints. But this machine has two cores, and computing jobs
would compete for them, so that a job's speed would depend on the other jobs. So the jobs mostly sleep: each micro-batch while
it waits for data, as from slow storage, and some jobs at each update, for work that every worker does in full. The models are
tiny. With N virtual workers on n GPUs a step takes ``ceil(N / n) delivery_s + update_s`` plus the runtime's overhead; the
actual time is measured, not computed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Parameters of a kind of training job."""

    name: str
    virtual_workers: int  # also the most GPUs that it can use
    delivery_s: float  # delay of the data of a micro-batch
    update_s: float  # per step, on every worker

    def arguments(self) -> tuple[str, ...]:
        """Arguments of `train`."""
        return str(self.delivery_s), str(self.update_s)


@dataclass(frozen=True)
class Case:
    """A policy, and its knowledge of throughputs: complete from the start, or as measured in the run so far."""

    policy: str
    known: bool = True

    @property
    def label(self) -> str:
        """Name on the command line: `afs-l`, `afs-l:measured`."""
        return self.policy if self.known else f"{self.policy}:measured"


KINDS = (
    Kind("linear", virtual_workers=8, delivery_s=0.04, update_s=0.0),
    Kind("saturating", virtual_workers=8, delivery_s=0.04, update_s=0.08),
    Kind("narrow", virtual_workers=4, delivery_s=0.06, update_s=0.02),
)


def kind(name: str) -> Kind:
    """Return the kind with this name."""
    return next(each for each in KINDS if each.name == name)
