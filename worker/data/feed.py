"""What a step asks of its data, whether that has an index (`sampling`, `loading`) or is read in sequence (`streams`)."""

from __future__ import annotations

from typing import Any, Protocol


class Sampling(Protocol):
    """Which virtual worker has how many samples in a step."""

    virtual_workers: int

    @property
    def samples_per_step(self) -> int:
        """Of a full one, or the mean."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None: nobody knows."""

    @property
    def next_epoch(self) -> int | None:
        """The epoch of the step to come, where that does not follow from its number."""

    def total_steps(self, epochs: int) -> int | None:
        """Of a job of so many epochs, if anybody knows."""

    def has_samples(self, step: int, virtual_worker: int) -> bool:
        """Whether the virtual worker has any."""

    def weight(self, step: int, virtual_worker: int) -> float:
        """What to multiply its mean gradient by, so that the mean over all N virtual workers is that over the step's samples."""


class Batching(Protocol):
    """The micro-batches themselves."""

    reads_any: bool  # can this worker read the batch of a virtual worker that another worker hosts?

    def assign(self, step: int, hosted: range, end: int | None) -> None:
        """From `step` on the virtual workers `hosted` are read, until step `end`, if that is known."""

    def begin(self, step: int) -> None:
        """`step` is to come."""

    def batch(self, step: int, virtual_worker: int) -> Any:
        """The micro-batch, on the device. The caller seeds the generators afterwards: reading draws from them."""

    def again(self, step: int) -> Any:
        """A batch that some worker has trained or trains, for one whose virtual workers have no sample in `step`."""

    def elsewhere(self, step: int, virtual_worker: int) -> Any:
        """The micro-batch of a virtual worker that another worker hosts, on the device; where `reads_any`."""

    def example(self, step: int) -> Any:
        """A micro-batch of `step`, which has been applied, or one of the same form, on the device: for a loop body of which
        nothing counts."""

    def applied(self, step: int) -> None:
        """`step` has been applied."""

    def close(self) -> None:
        """The training is over: processes that read end."""
