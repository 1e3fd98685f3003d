"""Which kinds of job there are, and how they scale on a machine of any size. Pure.

The jobs are real: PyTorch, this project's runtime, collectives, checkpoints. But this machine has two cores, and jobs that
compute would take them from each other, so that a job's speed depended on who else runs. So they wait most of the time: each
micro-batch for its data, as from slow storage, and some jobs at each update, as for something that every worker does in full
and that no further worker makes shorter. Both are sleeping, and the models are tiny. With N virtual workers on n GPUs a step
takes ``ceil(N / n) delivery_s + update_s`` and what the runtime adds; it is measured, not reckoned, what it really takes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A training job's recipe."""

    name: str
    virtual_workers: int  # and the most GPUs that it can use
    delivery_s: float  # until the data of a micro-batch are there
    update_s: float  # of each step, on every worker

    def arguments(self) -> tuple[str, ...]:
        """Of `train`."""
        return str(self.delivery_s), str(self.update_s)


@dataclass(frozen=True)
class Case:
    """A policy, and what it sees of throughputs: all from the beginning, or what has been measured in the run so far."""

    policy: str
    known: bool = True

    @property
    def label(self) -> str:
        """As it is written on the command line: `afs-l`, `afs-l:measured`."""
        return self.policy if self.known else f"{self.policy}:measured"


KINDS = (
    Kind("linear", virtual_workers=8, delivery_s=0.04, update_s=0.0),
    Kind("saturating", virtual_workers=8, delivery_s=0.04, update_s=0.08),
    Kind("narrow", virtual_workers=4, delivery_s=0.06, update_s=0.02),
)


def kind(name: str) -> Kind:
    """The kind of that name."""
    return next(each for each in KINDS if each.name == name)
